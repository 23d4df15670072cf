"""Values of trees, exact where they are rational, else to sixty digits; and equality of trees by value.

Two expressions in the same names are taken as equal when they agree at several points chosen once for all.
Nothing here runs away: a power, factorial or binomial too large to hold raises `TooLarge` at once.
"""

from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from math import comb, factorial, gcd, lcm
from typing import Any

from mpmath import mp

from grpo_gym.verifiers.reader import Node

PRECISION = 60
CLOSE = mp.mpf(10) ** -40
MAX_EXACT_BITS = 200_000
MAX_EXPONENT_BITS = 2_000
MAX_EXACT_FACTORIAL = 5_000

Value = Any
"""A Fraction where the value is rational and was reached exactly; else an mpmath number."""


class TooLarge(Exception):
    """The value has too many digits to be held."""


class Undefined(Exception):
    """The expression has no value there."""


def approximate(value: Value) -> Any:
    """A value as an mpmath number."""
    if isinstance(value, Fraction):
        return mp.mpf(value.numerator) / value.denominator
    return value


def bits(value: Fraction) -> int:
    """Length of a fraction."""
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def power(base: Value, exponent: Value) -> Value:
    """A power; a negative base under an odd root gives the real root."""
    if isinstance(exponent, Fraction) and exponent.denominator == 1:
        whole = exponent.numerator
        if base == 0 and whole < 0:
            raise Undefined
        if isinstance(base, Fraction):
            if base in (0, 1):
                return base if whole else Fraction(1)
            if bits(base) * abs(whole) <= MAX_EXACT_BITS:
                return base**whole
        if whole.bit_length() > MAX_EXPONENT_BITS:
            raise TooLarge
        return approximate(base) ** whole
    base_value, exponent_value = approximate(base), approximate(exponent)
    if mp.isfinite(exponent_value) and abs(exponent_value) > mp.mpf(2) ** MAX_EXPONENT_BITS:
        raise TooLarge
    if base_value == 0:
        if mp.re(exponent_value) <= 0:
            raise Undefined
        return Fraction(0)
    negative = mp.im(base_value) == 0 and mp.re(base_value) < 0
    if negative and isinstance(exponent, Fraction) and exponent.denominator % 2:
        size = mp.power(-base_value, exponent_value)
        return -size if exponent.numerator % 2 else size
    return mp.power(base_value, exponent_value)


def root(radicand: Value, index: Value) -> Value:
    """The index-th root; exact where both are squares."""
    if not isinstance(index, Fraction) or index == 0:
        raise Undefined
    return power(radicand, 1 / index)


def whole(value: Value) -> int:
    """A value that must be an integer."""
    if isinstance(value, Fraction) and value.denominator == 1:
        return value.numerator
    raise Undefined


def faculty(value: Value) -> Value:
    """The factorial of a natural number."""
    n = whole(value)
    if n < 0:
        raise Undefined
    if n.bit_length() > 200:
        raise TooLarge
    return Fraction(factorial(n)) if n <= MAX_EXACT_FACTORIAL else mp.factorial(n)


def binomial(n: Value, k: Value) -> Value:
    """A binomial coefficient of naturals."""
    top, bottom = whole(n), whole(k)
    if top < 0 or bottom < 0:
        raise Undefined
    if top <= MAX_EXACT_FACTORIAL:
        return Fraction(comb(top, bottom))
    if top.bit_length() > 200:
        raise TooLarge
    return mp.binomial(top, bottom)


def logarithm(value: Value, base: Value = None) -> Value:
    """The logarithm, natural without a base."""
    number = approximate(value)
    if number == 0:
        raise Undefined
    if base is None:
        return mp.log(number)
    return mp.log(number) / mp.log(approximate(base))


def rounded(direction: Callable[[Any], Any]) -> Callable[[Value], Value]:
    """Floor or ceiling as a function of values."""
    return lambda value: Fraction(
        int(direction(value if isinstance(value, Fraction) else mp.re(value)))
    )


def exact_or(exact: Callable[..., Any], inexact: Callable[..., Any]) -> Callable[..., Value]:
    """A function that is computed exactly on fractions, else by mpmath."""

    def apply(*values: Value) -> Value:
        if all(isinstance(value, Fraction) for value in values):
            return exact(*values)
        return inexact(*map(approximate, values))

    return apply


def elementary(function: Callable[[Any], Any]) -> Callable[[Value], Value]:
    """An mpmath function as a function of values."""

    def apply(value: Value) -> Value:
        number = approximate(value)
        if abs(number) > mp.mpf(2) ** MAX_EXPONENT_BITS:
            raise TooLarge
        return function(number)

    return apply


def total(*values: Value) -> Value:
    """The sum."""
    if all(isinstance(value, Fraction) for value in values):
        return sum(values, Fraction(0))
    return mp.fsum(map(approximate, values))


def product(*values: Value) -> Value:
    """The product."""
    if (
        all(isinstance(value, Fraction) for value in values)
        and sum(map(bits, values)) < MAX_EXACT_BITS
    ):
        out = Fraction(1)
        for value in values:
            out *= value
        return out
    return mp.fprod(map(approximate, values))


OPERATIONS: Mapping[str, Callable[..., Value]] = {
    "add": total,
    "mul": product,
    "pow": power,
    "root": root,
    "factorial": faculty,
    "binomial": binomial,
    "log": logarithm,
    "exp": lambda value: power(mp.e, value),
    "abs": exact_or(abs, abs),
    "max": exact_or(max, max),
    "min": exact_or(min, min),
    "gcd": lambda *values: Fraction(gcd(*map(whole, values))),
    "lcm": lambda *values: Fraction(lcm(*map(whole, values))),
    "mod": lambda value, modulus: Fraction(whole(value) % whole(modulus)),
    "sgn": exact_or(lambda value: Fraction((value > 0) - (value < 0)), mp.sign),
    "lfloor": rounded(lambda value: value // 1 if isinstance(value, Fraction) else mp.floor(value)),
    "lceil": rounded(
        lambda value: -(-value // 1) if isinstance(value, Fraction) else mp.ceil(value)
    ),
    "degree": lambda: mp.pi / 180,
    "Re": elementary(mp.re),
    "Im": elementary(mp.im),
    "arg": elementary(mp.arg),
    "arcsin": elementary(mp.asin),
    "arccos": elementary(mp.acos),
    "arctan": elementary(mp.atan),
    "arccot": elementary(mp.acot),
    **{
        name: elementary(getattr(mp, name))
        for name in "sin cos tan cot sec csc sinh cosh tanh".split()
    },
}
CONSTANTS: Mapping[str, Callable[[], Any]] = {
    "pi": lambda: +mp.pi,
    "e": lambda: +mp.e,
    "i": lambda: mp.mpc(0, 1),
    "inf": lambda: mp.inf,
}


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


def points(names: set[str]) -> Iterator[dict[str, Fraction]]:
    """Points to compare at: the same every time, positive ones first, with no special relation among them."""
    primes = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71)
    for shift, sign in ((1, 1), (4, 1), (7, 1), (2, -1), (5, -1)):
        yield {
            name: sign
            * Fraction(
                primes[(3 * index + shift) % 20], primes[(5 * index + 2 * shift + 3) % 20] + 2
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

    Two trees too large to evaluate are equal only if they are written the same.
    """
    if left == right:
        return True
    names = names_of(left) | names_of(right)
    if names_of(left) != names_of(right) and len(names) > 20:
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
