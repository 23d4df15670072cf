"""The arithmetic of answers: values exact where they are rational, else mpmath numbers.

Nothing here runs away: a power, factorial or binomial too large to hold raises `TooLarge` at once.
"""

from collections.abc import Callable, Mapping
from fractions import Fraction
from math import comb, factorial, gcd, lcm
from typing import Any

from mpmath import mp

from grpo_gym.verifiers.tokens import HYPERBOLIC, TRIGONOMETRIC

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
    "bare_log": lambda value: logarithm(value, Fraction(10)),
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
    **{name: elementary(getattr(mp, name)) for name in (*TRIGONOMETRIC, *HYPERBOLIC)},
}
CONSTANTS: Mapping[str, Callable[[], Any]] = {
    "pi": lambda: +mp.pi,
    "e": lambda: +mp.e,
    "i": lambda: mp.mpc(0, 1),
    "inf": lambda: mp.inf,
}
