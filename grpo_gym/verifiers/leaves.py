"""Whether two answers without outer structure are equal: numbers, expressions, quantities, words.

Runs in a worker process: math-verify, the last resort, may not return.
"""

import re
from fractions import Fraction
from functools import lru_cache
from typing import Any

from math_verify import LatexExtractionConfig, parse, verify
from mpmath import mp

from grpo_gym.verifiers.evaluate import PRECISION, evaluate, names_of, same_value
from grpo_gym.verifiers.normalise import same_text
from grpo_gym.verifiers.quantity import (
    Quantity,
    plain_decimal,
    rounds_to,
    same_quantity,
    split_quantity,
    units_agree,
)
from grpo_gym.verifiers.reader import Node, number, read
from grpo_gym.verifiers.tokens import Unreadable
from grpo_gym.verifiers.units import DEGREE, PERCENT
from grpo_gym.verifiers.values import TooLarge, Undefined, approximate

CHOICE = re.compile(r"\(?(?:\\text\{)? ?\(?([A-Ja-j])\)? ?\}?\)?")
LABELLED = re.compile(r"(?:\\text\{ ?)?(?:\(([A-J])\)|([A-J])[.):])(?: ?\})?(?: (?P<rest>.*))?")
LABEL = re.compile(r"\([A-J]\)|\b[A-J][.):]")
WORDS = re.compile(r"\\text|(?<![\\A-Za-z])[A-Za-z]{4,}")
BASE = re.compile(
    r"(?P<digits>[0-9A-F]+) ?_ ?(?:\{ ?(?:\\text\{ ?)?(?P<braced>\w+)(?: ?\})? ?\}|(?P<bare>\d)(?!\d))"
)
BASE_NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")

# What the reader refuses and math-verify reads soundly; everything else it may misread.
ADVANCED = re.compile(
    r"\\(?:sum|prod|int|iint|oint|lim|frac ?\{ ?d ?\}|partial|det|begin)(?![A-Za-z])"
)
ENVIRONMENT = re.compile(r"\\(?:begin|end) ?\{[a-zA-Z]+\}")
UNSOUND = re.compile(
    r"\\text|\\ne(?![A-Za-z])|\\not|\d ?_ ?\{? ?\d|'|(?<![\\A-Za-z])[A-Za-z]{4,}|\\circ"
)


@lru_cache(maxsize=512)
def tree(text: str) -> Node | None:
    """The tree of an answer, or None where the reader refuses it."""
    try:
        return read(text)
    except (Unreadable, RecursionError):
        return None


@lru_cache(maxsize=256)
def parsed(text: str) -> list[Any]:
    """What math-verify reads in an answer, remembered: a group of completions shares its reference."""
    found: list[Any] = parse(
        r"\boxed{" + text.replace(r"\cr ", r"\\") + "}",
        extraction_config=[LatexExtractionConfig(boxed_match_priority=0)],
        fallback_mode="no_fallback",
        parsing_timeout=None,
    )
    return found


def equal_leaves(answer: str, reference: str) -> bool:
    """Whether two answers without outer structure are equal."""
    if same_text(answer, reference):
        return True
    for judge in (same_choice, same_base, same_measure):
        verdict = judge(answer, reference)
        if verdict is not None:
            return verdict
    if any(WORDS.search(ENVIRONMENT.sub("", text)) for text in (answer, reference)):
        return fold(answer) == fold(reference) != ""
    return by_math_verify(answer, reference)


def same_choice(answer: str, reference: str) -> bool | None:
    """Whether two letters of a multiple choice are the same; None if the reference is none."""
    wanted = CHOICE.fullmatch(reference)
    if wanted is None:
        return None
    if given := CHOICE.fullmatch(answer):
        return given[1].upper() == wanted[1].upper()
    if (given := LABELLED.fullmatch(answer)) and not LABEL.search(given["rest"] or ""):
        return bool((given[1] or given[2]) == wanted[1].upper())
    return None


def read_base(text: str) -> tuple[str, int] | None:
    """Digits and base of a numeral with its base as a subscript; None if it is none."""
    match = BASE.fullmatch(text)
    if match is None:
        return None
    name = match["bare"] or match["braced"]
    if name in BASE_NAMES:
        return match["digits"].lstrip("0"), BASE_NAMES.index(name)
    return (match["digits"].lstrip("0"), int(name)) if name.isdigit() else None


def same_base(answer: str, reference: str) -> bool | None:
    """Whether two numerals with bases are the same; None if neither has one.

    The base may be left out where the reference has it; it may not be added, but for base ten.
    """
    given, wanted = read_base(answer), read_base(reference)
    if given is None and wanted is None:
        return None
    if wanted is None:
        assert given is not None
        return given[1] == 10 and bool(same_quantity(Quantity(given[0]), Quantity(reference)))
    return given == wanted if given is not None else answer.lstrip("0") == wanted[0]


def same_measure(answer: str, reference: str) -> bool | None:
    """Whether two values, units included, are equal; None where one cannot be read."""
    left, right = split_quantity(answer), split_quantity(reference)
    plain = same_quantity(left, right)
    if plain is not None:
        return plain
    a, b = tree(left.body), tree(right.body)
    if a is None or b is None:
        return None
    if not units_agree(left.unit, right.unit):
        return False
    both = left.unit is not None and right.unit is not None
    a = scaled(a, left.scale * (left.unit.factor if both and left.unit else 1))
    b = scaled(b, right.scale * (right.unit.factor if both and right.unit else 1))
    if same_value(a, b):
        return True
    if both or (left.unit is None and right.unit is None):
        return rounded_value(left.body, b) or rounded_value(right.body, a)
    return same_value(*(absolute(node, quantity) for node, quantity in ((a, left), (b, right))))


def scaled(node: Node, factor: Fraction | int) -> Node:
    """A tree times a number."""
    return node if factor == 1 else Node("mul", (number(Fraction(factor)), node))


def absolute(node: Node, quantity: Quantity) -> Node:
    """A tree as the pure number it is: hundredths for a percentage, radians for degrees."""
    name = quantity.unit.name if quantity.unit else ""
    if name == PERCENT:
        return scaled(node, Fraction(1, 100))
    return Node("mul", (node, Node("degree"))) if name == DEGREE else node


def rounded_value(decimal: str, node: Node) -> bool:
    """Whether a decimal as written is the value of a tree, rounded to at least six significant digits."""
    if (
        plain_decimal(decimal) is None
        or "." not in decimal
        or names_of(node)
        or isinstance(node.value, Fraction)
    ):
        return False
    try:
        with mp.workdps(PRECISION):
            value = approximate(evaluate(node, {}))
            if mp.im(value) != 0 or not mp.isfinite(value) or abs(value) > mp.mpf(10) ** 30:
                return False
            exact = Fraction(int(mp.floor(mp.re(value) * mp.mpf(10) ** 40)), 10**40)
    except (TooLarge, Undefined):
        return False
    return rounds_to(decimal, exact, "")


def fold(text: str) -> str:
    """Words without case, styling, spacing, an article, and punctuation at the ends."""
    words = re.sub(r"\\text\{([^{}]*)\}", r" \1 ", text).casefold()
    words = re.sub(r"(?<=[a-z])-(?=[a-z])", " ", words)
    words = " ".join(words.split()).strip(" .,;:!?\"'`")
    words = re.sub(r"\s*([^\w\s])\s*|(?<=\d) (?=[a-z])", r"\1", words)
    return re.sub(r"^(?:the|a|an) ", "", words)


def by_math_verify(answer: str, reference: str) -> bool:
    """math-verify's verdict on what the reader refuses; False on what math-verify is known to misread."""
    if any(UNSOUND.search(ENVIRONMENT.sub("", text)) for text in (answer, reference)):
        return False
    if not (ADVANCED.search(answer) or ADVANCED.search(reference)):
        return False
    gold, found = parsed(reference), parsed(answer)
    return bool(
        gold
        and found
        and verify(gold, found, float_rounding=30, numeric_precision=50, timeout_seconds=None)
    )
