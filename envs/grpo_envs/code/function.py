"""A function that CodeRepair breaks, and random arguments for it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Draw = Callable[[np.random.Generator], tuple[Any, ...]]


@dataclass(frozen=True)
class Function:
    """A function and its bugs. <K> and <M> in the texts stand for small numbers.

    Attributes:
        name: of the function.
        asked: what it should do, after "It should".
        source: of the right function.
        bugs: parts of the source, and what stands there instead. Every broken function still ends.
        draw: random arguments.
    """

    name: str
    asked: str
    source: str
    bugs: tuple[tuple[str, str], ...]
    draw: Draw


def integers(low: int, high: int, most: int = 8, least: int = 0) -> Draw:
    """One list of whole numbers from `low` up to and without `high`."""

    def draw(rng: np.random.Generator) -> tuple[Any, ...]:
        return (_list(rng, low, high, most, least),)

    return draw


def words(letters: str, most: int = 12) -> Draw:
    """One text made of these letters."""

    def draw(rng: np.random.Generator) -> tuple[Any, ...]:
        picks = rng.integers(len(letters), size=int(rng.integers(1, most + 1)))
        return ("".join(letters[int(pick)] for pick in picks),)

    return draw


def number(low: int, high: int) -> Draw:
    """One whole number from `low` up to and without `high`."""
    return lambda rng: (int(rng.integers(low, high)),)


def sorted_lists(rng: np.random.Generator) -> tuple[Any, ...]:
    """Two lists in order."""
    return sorted(_list(rng, 0, 20, 6, 0)), sorted(_list(rng, 0, 20, 6, 0))


def sorted_and_target(rng: np.random.Generator) -> tuple[Any, ...]:
    """A list in order with repetitions, and a number that is in it more often than not."""
    numbers = sorted(_list(rng, 0, 9, 9, 1))
    return numbers, numbers[int(rng.integers(len(numbers)))] if rng.integers(4) else 9


def intervals(rng: np.random.Generator) -> tuple[Any, ...]:
    """A list of intervals, in any order."""
    starts = _list(rng, 0, 20, 6, 1)
    return ([(start, start + int(rng.integers(1, 7))) for start in starts],)


def square(rng: np.random.Generator) -> tuple[Any, ...]:
    """A square matrix."""
    size = int(rng.integers(2, 5))
    return ([[int(n) for n in row] for row in rng.integers(-9, 10, size=(size, size))],)


def _list(rng: np.random.Generator, low: int, high: int, most: int, least: int) -> list[int]:
    return [int(n) for n in rng.integers(low, high, size=int(rng.integers(least, most + 1)))]
