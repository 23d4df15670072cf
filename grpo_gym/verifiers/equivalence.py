"""Whether two answers are the same mathematics. Runs in a worker process: a hard case may take long."""

import re
from functools import lru_cache

from grpo_gym.verifiers.evaluate import names_of, proportional
from grpo_gym.verifiers.leaves import equal_leaves, tree
from grpo_gym.verifiers.normalise import COMMA_GROUPS, join_commas, same_text
from grpo_gym.verifiers.reader import Node, negated
from grpo_gym.verifiers.structure import Equation, Group, Leaf, Named, Part, Relation, parts_of

UNORDERED = frozenset({"list", "{}", "union"})
EMPTY = frozenset({"\\emptyset", "\\{\\}", "\\{ \\}"})


@lru_cache(maxsize=512)
def structure(text: str) -> Part:
    """The structure of an answer, remembered: a group of completions shares its reference."""
    return parts_of(text)


def equivalent(answer: str, reference: str) -> bool:
    """Whether a normalised answer equals a normalised reference.

    "1,234" is read both as a number and as a list, and has to agree in one of the two.
    """
    if same_text(answer, reference) or equal(structure(answer), structure(reference)):
        return True
    if COMMA_GROUPS.search(answer) or COMMA_GROUPS.search(reference):
        return equal(structure(join_commas(answer)), structure(join_commas(reference)))
    return False


def equal(answer: Part, reference: Part) -> bool:
    """Whether two structured answers are equal."""
    if answer == reference:
        return True
    if isinstance(answer, Relation) or isinstance(reference, Relation):
        return (
            isinstance(answer, Relation)
            and isinstance(reference, Relation)
            and same_text(answer.text, reference.text)
        )
    if isinstance(answer, Equation) or isinstance(reference, Equation):
        return equal_equations(answer, reference)
    if isinstance(answer, Named) and isinstance(reference, Named):
        if not same_name(answer.name, reference.name):
            return False
        return answer.member == reference.member and equal(answer.part, reference.part)
    if isinstance(answer, Named):
        # "x = 5" may answer 5; "x < 5" may answer the interval, but not 5.
        return equal(answer.part, reference)
    if isinstance(reference, Named):
        return equal(answer, reference.part)
    if isinstance(answer, Leaf) and isinstance(reference, Leaf):
        return equal_leaves(answer.text, reference.text)
    return equal_groups(as_group(answer), as_group(reference))


def same_name(answer: str, reference: str) -> bool:
    """Whether two left-hand sides name the same thing: subscripts, which may number solutions, apart."""
    bare = [re.sub(r"_(\w|\{[^{}]*\})|\\text|[ {}\\]", "", name) for name in (answer, reference)]
    return bare[0] == bare[1]


def as_group(part: Part) -> Group:
    """A part as a group: a single answer is a list of one, no answer one of none."""
    if isinstance(part, Group):
        return part
    if isinstance(part, Leaf) and part.text in EMPTY:
        return Group("list", ())
    return Group("list", (part,))


def equal_groups(answer: Group, reference: Group) -> bool:
    """Whether two groups have equal parts, in any order where order means nothing."""
    if answer.kind == reference.kind == "ratio":
        return same_ratio(answer, reference)
    if len(answer.items) != len(reference.items):
        return False
    if {answer.kind, reference.kind} <= UNORDERED and not names_only_one(answer, reference):
        left = list(reference.items)
        for item in answer.items:
            match = next((index for index, other in enumerate(left) if equal(item, other)), None)
            if match is None:
                return False
            del left[match]
        return True
    if (
        answer.kind != reference.kind
        and not {answer.kind, reference.kind} <= {"list", "()"} | UNORDERED
    ):
        return False
    if (
        "{}" in (answer.kind, reference.kind)
        and answer.kind != reference.kind
        and "()" in (answer.kind, reference.kind)
    ):
        return False
    return all(equal(a, b) for a, b in zip(answer.items, reference.items, strict=True))


def names_only_one(answer: Group, reference: Group) -> bool:
    """Whether one of two lists names its parts differently (x = 1, y = 2) and the other does not."""
    kinds = [
        {part.name for part in group.items if isinstance(part, Named)}
        for group in (answer, reference)
    ]
    distinct = [len({re.sub(r"_.*", "", name) for name in names}) > 1 for names in kinds]
    return (distinct[0] and not kinds[1]) or (distinct[1] and not kinds[0])


def same_ratio(answer: Group, reference: Group) -> bool:
    """Whether a : b : c and a' : b' : c' are proportional."""
    texts = [
        [item.text for item in group.items if isinstance(item, Leaf)]
        for group in (answer, reference)
    ]
    if len(texts[0]) != len(texts[1]):
        return False
    first, second = texts
    return all(
        equal_leaves(f"({a})({second[0]})", f"({b})({first[0]})")
        for a, b in zip(first, second, strict=True)
    )


def equal_equations(answer: Part, reference: Part) -> bool:
    """Whether two equations have the same solutions, as far as a constant factor tells.

    A true equation of numbers, such as 2 + 3 = 5, may answer 5.
    """
    if isinstance(answer, Equation) and isinstance(reference, Leaf):
        sides = [tree(side) for side in answer.sides]
        if any(side is None or names_of(side) for side in sides):
            return False
        true = all(equal_leaves(answer.sides[0], side) for side in answer.sides[1:])
        return true and equal_leaves(answer.sides[-1], reference.text)
    left, right = difference(answer), difference(reference)
    return left is not None and right is not None and proportional(left, right)


def difference(part: Part) -> Node | None:
    """Left side minus right side; None where there are not two readable sides."""
    sides: tuple[str, ...] = ()
    if isinstance(part, Named) and isinstance(part.part, Leaf) and not part.member:
        sides = (part.name, part.part.text)
    elif isinstance(part, Equation):
        sides = part.sides
    trees = [side for side in map(tree, sides) if side is not None]
    if len(trees) != 2 or len(sides) != 2:
        return None
    return Node("add", (trees[0], negated(trees[1])))
