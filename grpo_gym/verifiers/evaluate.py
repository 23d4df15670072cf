"""Values of trees, and equality of trees by value.

Two expressions in the same names are taken as equal when they agree at several points, chosen once
for all: exactly where the values are rational, else to forty digits.
"""

from collections.abc import Iterator, Mapping
from fractions import Fraction

from mpmath import mp

from grpo_gym.verifiers.reader import Node
from grpo_gym.verifiers.values import (
    CONSTANTS,
    OPERATIONS,
    TooLarge,
    Undefined,
    Value,
    approximate,
    product,
)

PRECISION = 60
CLOSE = mp.mpf(10) ** -40
PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71)


def evaluate(node: Node, names: Mapping[str, Fraction]) -> Value:
    """The value of a tree where its names have these values.

    Raises:
        TooLarge: it has too many digits.
        Undefined: it has no value there.
    """
    if isinstance(node.value, Fraction):
        return node.value
    if node.op == "const":
        return CONSTANTS[str(node.value)]()
    if node.op == "name":
        return names[str(node.value)]
    try:
        value = OPERATIONS[node.op](*(evaluate(part, names) for part in node.args))
    except (ZeroDivisionError, ValueError, TypeError, OverflowError) as error:
        raise Undefined from error
    if not isinstance(value, Fraction) and mp.isnan(value):
        raise Undefined
    return value


def names_of(node: Node) -> set[str]:
    """The names in a tree."""
    if node.op == "name":
        return {str(node.value)}
    return set().union(*map(names_of, node.args)) if node.args else set()


def has_sum(node: Node) -> bool:
    """Whether anything is added in a tree."""
    return node.op == "add" or any(map(has_sum, node.args))


def with_natural_logs(node: Node) -> Node:
    """A tree whose logarithms without a base are natural ones."""
    op = "log" if node.op == "bare_log" else node.op
    return Node(op, tuple(map(with_natural_logs, node.args)), node.value)


def points(names: set[str]) -> Iterator[dict[str, Fraction]]:
    """Points to compare at: always the same, positive first, with no relation among the names."""
    for shift, sign in ((1, 1), (4, 1), (7, 1), (2, -1), (5, -1)):
        yield {
            name: sign
            * Fraction(
                PRIMES[(3 * index + shift) % len(PRIMES)],
                PRIMES[(5 * index + 2 * shift + 3) % len(PRIMES)] + 2,
            )
            for index, name in enumerate(sorted(names))
        }


def close(left: Value, right: Value) -> bool:
    """Whether two values agree: exactly if both are exact, else to forty digits."""
    if isinstance(left, Fraction) and isinstance(right, Fraction):
        return left == right
    a, b = approximate(left), approximate(right)
    if mp.isinf(a) or mp.isinf(b):
        return bool(a == b)
    return bool(abs(a - b) <= CLOSE * max(abs(a), abs(b)))


def agree_at(left: Node, right: Node, names: Mapping[str, Fraction]) -> bool:
    """Whether two trees have the same value at a point.

    Raises:
        TooLarge: one has too many digits, or they are too large to tell apart.
        Undefined: one has no value there.
    """
    with mp.workdps(PRECISION):
        a, b = evaluate(left, names), evaluate(right, names)
        if close(a, b):
            exact = isinstance(a, Fraction) and isinstance(b, Fraction)
            huge = not exact and mp.isfinite(approximate(a)) and abs(approximate(a)) > 1 / CLOSE
            if huge and (has_sum(left) or has_sum(right)):
                raise TooLarge
            return True
        tiny = max(abs(approximate(a)), abs(approximate(b))) < CLOSE
    if not tiny or (isinstance(a, Fraction) and isinstance(b, Fraction)):
        return False
    # Both nearly zero: cancellation, if they keep shrinking with the precision.
    with mp.workdps(5 * PRECISION):
        a, b = evaluate(left, names), evaluate(right, names)
        return close(a, b) or max(abs(approximate(a)), abs(approximate(b))) < CLOSE**4


def same_value(left: Node, right: Node) -> bool:
    """Whether two trees are equal wherever both are defined, as far as a few points can tell.

    Two trees too large to evaluate are equal only if they are written the same. A logarithm without
    a base is taken to base ten; where both trees have one, they may also be equal as natural ones.
    """
    if left == right or same_as_written(left, right):
        return True
    natural = with_natural_logs(left), with_natural_logs(right)
    return left != natural[0] and right != natural[1] and same_as_written(*natural)


def same_as_written(left: Node, right: Node) -> bool:
    """Whether two trees agree at every point where both are defined, and at two at least."""
    names = names_of(left) | names_of(right)
    if len(names) > len(PRIMES):
        return False
    agreed = 0
    try:
        for point in points(names):
            try:
                if not agree_at(left, right, point):
                    return False
            except Undefined:
                continue
            agreed += 1
            if not names:
                return True
    except TooLarge:
        return False
    return agreed >= 2


def proportional(left: Node, right: Node) -> bool:
    """Whether one tree is a constant multiple of the other, neither being zero throughout."""
    names = names_of(left) | names_of(right)
    pairs: list[tuple[Value, Value]] = []
    with mp.workdps(PRECISION):
        for point in points(names):
            try:
                pairs.append((evaluate(left, point), evaluate(right, point)))
            except Undefined:
                continue
            except TooLarge:
                return False
        pairs = [(a, b) for a, b in pairs if a != 0 or b != 0]
        return len(pairs) >= 2 and all(
            close(product(a, pairs[0][1]), product(b, pairs[0][0])) and a != 0 and b != 0
            for a, b in pairs
        )
