"""Questions of number theory and counting that take a few lines of code, each a function of a seed."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

LEVELS = 3


@dataclass(frozen=True)
class Kind:
    """A kind of question.

    Attributes:
        text: the question; {a}, {b} and {c} are numbers.
        answer: the answer for these numbers.
        cells: Python code that works it out another way, in two calls; the second shows the answer.
        ranges: for each number the least value, and the one that is too great, at level 1.
        growth: by what level 2 multiplies the range of `a`; level 3 does so again.
    """

    text: str
    answer: Callable[[int, int, int], int]
    cells: tuple[str, str]
    ranges: tuple[tuple[int, int], tuple[int, int], tuple[int, int]]
    growth: int = 3


def question(rng: np.random.Generator, level: int) -> tuple[str, str, Mapping[str, Any]]:
    """Question, answer, and as metadata the cells that work it out.

    Args:
        rng: the source of randomness.
        level: size of the numbers, 1 to 3.
    """
    kind = KINDS[int(rng.integers(len(KINDS)))]
    scale = kind.growth ** (level - 1)
    (low, high), *rest = kind.ranges
    bounds = [(low * scale, high * scale), *rest]
    a, b, c = (int(rng.integers(*bound)) for bound in bounds)
    names = {"a": a, "b": b, "c": c}
    cells = tuple(_filled(cell, names) for cell in kind.cells)
    return _filled(kind.text, names), str(kind.answer(a, b, c)), {"cells": cells}


def _filled(text: str, names: Mapping[str, int]) -> str:
    for name, value in names.items():
        text = text.replace(f"{{{name}}}", str(value))
    return text


def primes(limit: int) -> list[int]:
    """The primes below a limit, by a sieve."""
    sieve = bytearray([0, 0]) + bytearray([1]) * max(0, limit - 2)
    for n in range(2, math.isqrt(max(limit - 1, 0)) + 1):
        if sieve[n]:
            sieve[n * n :: n] = bytes(len(range(n * n, limit, n)))
    return [n for n in range(limit) if sieve[n]]


def prime_sum(a: int, b: int, c: int) -> int:
    """The sum of the primes below `a` that leave the remainder `c % b` when divided by `b`."""
    return sum(p for p in primes(a) if p % b == c % b)


def digit_sums(a: int, b: int, c: int) -> int:
    """How many numbers from 1 to `a` have the digit sum `b`, by their digits from the left."""
    digits = [int(d) for d in str(a)]
    ways = {(0, True): 1}
    for digit in digits:
        step: dict[tuple[int, bool], int] = {}
        for (total, tight), number in ways.items():
            for d in range((digit if tight else 9) + 1):
                key = (total + d, tight and d == digit)
                step[key] = step.get(key, 0) + number
        ways = step
    return sum(number for (total, _), number in ways.items() if total == b)


def change(a: int, b: int, c: int) -> int:
    """How many ways there are to pay `a` with coins of 1, `b` and `b + c`, by the number of the largest."""
    large = b + c
    return sum((a - n * large) // b + 1 for n in range(a // large + 1))


def fibonacci(a: int, b: int, c: int) -> int:
    """The `a`-th Fibonacci number modulo `b`, by doubling."""

    def pair(n: int) -> tuple[int, int]:
        if n == 0:
            return 0, 1
        x, y = pair(n // 2)
        even, odd = x * (2 * y - x) % b, (x * x + y * y) % b
        return (odd, (even + odd) % b) if n % 2 else (even, odd)

    return pair(a)[0] % b


def divisor_counts(a: int, b: int, c: int) -> int:
    """The sum of the numbers of divisors of 1 to `a`, by the multiples of each divisor."""
    return sum(a // d for d in range(1, a + 1))


def circle(a: int, b: int, c: int) -> int:
    """How many points with whole coordinates lie within `a` of the origin, column by column."""
    return sum(2 * math.isqrt(a * a - x * x) + 1 for x in range(-a, a + 1))


def coprime_pairs(a: int, b: int, c: int) -> int:
    """How many pairs x < y up to `a` have no common divisor, by Euler's totient."""
    phi = list(range(a + 1))
    for p in primes(a + 1):
        for n in range(p, a + 1, p):
            phi[n] -= phi[n] // p
    return sum(phi[2:])


def factorial_digits(a: int, b: int, c: int) -> int:
    """The sum of the digits of `a`!."""
    return sum(map(int, str(math.factorial(a))))


def reversible_prime(a: int, b: int, c: int) -> int:
    """The least prime above `a` whose digits from right to left are another prime."""

    def is_prime(n: int) -> bool:
        return n > 1 and all(n % d for d in range(2, math.isqrt(n) + 1))

    return next(
        n
        for n in count(a + 1)
        if n != int(str(n)[::-1]) and is_prime(n) and is_prime(int(str(n)[::-1]))
    )


def partitions(a: int, b: int, c: int) -> int:
    """The number of partitions of `a`, modulo `b`, by Euler's pentagonal numbers."""
    p = [1]
    for n in range(1, a + 1):
        total = 0
        for k in count(1):
            if k * (3 * k - 1) // 2 > n:
                break
            sign = 1 if k % 2 else -1
            for pentagonal in (k * (3 * k - 1) // 2, k * (3 * k + 1) // 2):
                if pentagonal <= n:
                    total += sign * p[n - pentagonal]
        p.append(total)
    return p[a] % b


ANY = (0, 1)
KINDS: tuple[Kind, ...] = (
    Kind(
        "What is the sum of all primes below {a} that leave the same remainder as {c} when divided by {b}?",
        prime_sum,
        (
            "def is_prime(n):\n    return n > 1 and all(n % d for d in range(2, int(n ** 0.5) + 1))",
            "sum(n for n in range({a}) if n % {b} == {c} % {b} and is_prime(n))",
        ),
        ((1000, 3000), (3, 8), (1, 8)),
    ),
    Kind(
        "How many whole numbers from 1 to {a} have digits that add up to {b}?",
        digit_sums,
        (
            "def digit_sum(n):\n    return sum(map(int, str(n)))",
            "sum(digit_sum(n) == {b} for n in range(1, {a} + 1))",
        ),
        ((2000, 9000), (5, 20), ANY),
    ),
    Kind(
        "In how many ways can {a} be written as a sum of ones, {b}s and ({b} + {c})s, their order aside?",
        change,
        (
            "ways = [1] + [0] * {a}",
            "for coin in (1, {b}, {b} + {c}):\n    for n in range(coin, {a} + 1):\n"
            "        ways[n] += ways[n - coin]\nways[{a}]",
        ),
        ((200, 900), (3, 12), (1, 9)),
    ),
    Kind(
        "What is the remainder when the Fibonacci number F({a}) is divided by {b}? "
        "(F(1) = F(2) = 1)",
        fibonacci,
        (
            "x, y = 0, 1",
            "for _ in range({a}):\n    x, y = y, (x + y) % {b}\nx % {b}",
        ),
        ((1000, 9000), (1000, 9999), ANY),
    ),
    Kind(
        "Add up how many divisors each of the numbers 1, 2, ..., {a} has. What is the total?",
        divisor_counts,
        (
            "counts = [0] * ({a} + 1)\nfor d in range(1, {a} + 1):\n    for n in range(d, {a} + 1, d):\n"
            "        counts[n] += 1",
            "sum(counts)",
        ),
        ((300, 2000), ANY, ANY),
    ),
    Kind(
        "How many points (x, y) with whole coordinates satisfy x^2 + y^2 <= {a}^2?",
        circle,
        (
            "r = {a}",
            "sum(x * x + y * y <= r * r for x in range(-r, r + 1) for y in range(-r, r + 1))",
        ),
        ((15, 60), ANY, ANY),
    ),
    Kind(
        "How many pairs of whole numbers x < y from 1 to {a} have no common divisor but 1?",
        coprime_pairs,
        (
            "from math import gcd",
            "sum(gcd(x, y) == 1 for y in range(2, {a} + 1) for x in range(1, y))",
        ),
        ((40, 120), ANY, ANY),
    ),
    Kind(
        "What is the sum of the decimal digits of {a} factorial?",
        factorial_digits,
        (
            "product = 1\nfor n in range(2, {a} + 1):\n    product *= n",
            "total = 0\nwhile product:\n    product, digit = divmod(product, 10)\n    total += digit\ntotal",
        ),
        ((25, 120), ANY, ANY),
    ),
    Kind(
        "What is the smallest prime above {a} that read from right to left is a different prime?",
        reversible_prime,
        (
            "limit = 10 ** (len(str({a})) + 1)\nsieve = bytearray([0, 0]) + bytearray([1]) * (limit - 2)\n"
            "for n in range(2, int(limit ** 0.5) + 1):\n    if sieve[n]:\n"
            "        sieve[n * n :: n] = bytes(len(range(n * n, limit, n)))",
            "n = {a} + 1\nwhile not (sieve[n] and str(n) != str(n)[::-1] and sieve[int(str(n)[::-1])]):\n"
            "    n += 1\nn",
        ),
        ((1000, 9000), ANY, ANY),
    ),
    Kind(
        "In how many ways is {a} a sum of positive whole numbers, their order aside? "
        "Give the remainder when that is divided by {b}.",
        partitions,
        (
            "ways = [1] + [0] * {a}\nfor part in range(1, {a} + 1):\n    for n in range(part, {a} + 1):\n"
            "        ways[n] += ways[n - part]",
            "ways[{a}] % {b}",
        ),
        ((40, 120), (1000, 9999), ANY),
    ),
)
"""Every kind; answer and cells come by different ways, and the contract compares them."""
