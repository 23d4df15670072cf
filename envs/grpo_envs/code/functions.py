"""The functions that CodeRepair breaks, each with the ways in which it can be broken."""

import string
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


FUNCTIONS: tuple[Function, ...] = (
    Function(
        "count_above",
        "count the numbers of a list that are greater than <M>.",
        """def count_above(numbers):
    count = 0
    for number in numbers:
        if number > <M>:
            count += 1
    return count
""",
        (("> <M>", ">= <M>"), ("count = 0", "count = 1"), ("count += 1", "count += number")),
        integers(0, 14, least=3),
    ),
    Function(
        "running_sums",
        "give the sums of the first one, two, three, ... numbers of a list.",
        """def running_sums(numbers):
    total, sums = 0, []
    for number in numbers:
        total += number
        sums.append(total)
    return sums
""",
        (
            (
                "total += number\n        sums.append(total)",
                "sums.append(total)\n        total += number",
            ),
            ("total += number", "total = number"),
            ("return sums", "return total"),
        ),
        integers(-9, 10, least=2),
    ),
    Function(
        "second_largest",
        "give the second largest of the different numbers in a list, or None where there is none.",
        """def second_largest(numbers):
    ordered = sorted(set(numbers))
    if len(ordered) < 2:
        return None
    return ordered[-2]
""",
        (("sorted(set(numbers))", "sorted(numbers)"), ("[-2]", "[1]"), ("< 2", "< 3")),
        integers(0, 5, most=5),
    ),
    Function(
        "is_palindrome",
        "tell whether a text reads the same backwards, letters alone and upper case as lower case.",
        """def is_palindrome(text):
    letters = [c.lower() for c in text if c.isalpha()]
    return letters == letters[::-1]
""",
        (("c.lower()", "c"), (" if c.isalpha()", ""), ("letters[::-1]", "sorted(letters)")),
        lambda rng: (
            ["Abba", "No on!", "a, B a", "abc", "Aa", "ba", "x-y", "Was it"][rng.integers(8)],
        ),
    ),
    Function(
        "digit_sum",
        "add the digits of a whole number, whose sign does not matter.",
        """def digit_sum(number):
    rest, total = abs(number), 0
    while rest > 0:
        total += rest % 10
        rest //= 10
    return total
""",
        (("abs(number)", "number"), ("rest > 0", "rest > 9"), ("rest % 10", "rest % 9")),
        number(-9999, 99999),
    ),
    Function(
        "rotate",
        "move the first <K> items of a list to its end; in a shorter list, go round as often as it takes.",
        """def rotate(items):
    if not items:
        return []
    shift = <K> % len(items)
    return items[shift:] + items[:shift]
""",
        (
            ("<K> % len(items)", "<K>"),
            ("items[shift:] + items[:shift]", "items[:shift] + items[shift:]"),
            ("items[shift:] + items[:shift]", "items[-shift:] + items[:-shift]"),
        ),
        integers(0, 10),
    ),
    Function(
        "chunks",
        "cut a list into pieces of <K> items, of which the last may be shorter.",
        """def chunks(items):
    pieces = []
    for start in range(0, len(items), <K>):
        pieces.append(items[start:start + <K>])
    return pieces
""",
        (
            ("range(0, len(items), <K>)", "range(0, len(items) - <K> + 1, <K>)"),
            ("start + <K>", "start + <K> - 1"),
            ("range(0, len(items), <K>)", "range(0, len(items))"),
        ),
        integers(0, 10, most=11, least=2),
    ),
    Function(
        "caesar",
        "move each small letter of a text <M> places on in the alphabet, from z back to a.",
        """def caesar(text):
    result = ""
    for letter in text:
        if "a" <= letter <= "z":
            place = (ord(letter) - ord("a") + <M>) % 26
            letter = chr(ord("a") + place)
        result += letter
    return result
""",
        (
            (" % 26", ""),
            ("% 26", "% 25"),
            ("+ <M>", "- <M>"),
            ("        result += letter", "            result += letter"),
        ),
        words(string.ascii_lowercase + " !.AZ"),
    ),
    Function(
        "first_index",
        "find the first place of a target in an ordered list, or -1 if it is not there.",
        """def first_index(numbers, target):
    low, high = 0, len(numbers)
    while low < high:
        middle = (low + high) // 2
        if numbers[middle] < target:
            low = middle + 1
        else:
            high = middle
    if low < len(numbers) and numbers[low] == target:
        return low
    return -1
""",
        (
            ("numbers[middle] < target", "numbers[middle] <= target"),
            ("return low", "return middle"),
            ("low < len(numbers) and ", ""),
            ("high = middle", "high = middle - 1"),
        ),
        sorted_and_target,
    ),
    Function(
        "balanced",
        "tell whether the brackets ( ) [ ] of a text are closed in the right order.",
        """def balanced(text):
    pairs = {")": "(", "]": "["}
    stack = []
    for c in text:
        if c in "([":
            stack.append(c)
        elif c in pairs:
            if not stack or stack.pop() != pairs[c]:
                return False
    return not stack
""",
        (
            ("return not stack", "return True"),
            ("not stack or ", ""),
            ("stack.pop() != pairs[c]", "not stack.pop()"),
        ),
        words("()[]", most=4),
    ),
    Function(
        "run_lengths",
        "give the runs of equal letters in a text as pairs of letter and length.",
        """def run_lengths(text):
    runs = []
    for letter in text:
        if runs and runs[-1][0] == letter:
            runs[-1] = (letter, runs[-1][1] + 1)
        else:
            runs.append((letter, 1))
    return runs
""",
        (
            ("runs[-1][0] == letter", "runs[0][0] == letter"),
            ("(letter, 1)", "(letter, 0)"),
            ("runs[-1] = ", "runs[0] = "),
        ),
        words("aab"),
    ),
    Function(
        "sum_of_multiples",
        "add the positive whole numbers below a limit that are multiples of <K> or of <M>.",
        """def sum_of_multiples(limit):
    total = 0
    for number in range(1, limit):
        if number % <K> == 0 or number % <M> == 0:
            total += number
    return total
""",
        (
            ("range(1, limit)", "range(1, limit - 1)"),
            (" or ", " and "),
            ("total += number", "total += 1"),
            ("return total", "return total + limit"),
        ),
        number(5, 60),
    ),
    Function(
        "diagonals",
        "give the sums of the two diagonals of a square matrix, from the top left one first.",
        """def diagonals(matrix):
    size = len(matrix)
    down = sum(matrix[i][i] for i in range(size))
    up = sum(matrix[i][size - 1 - i] for i in range(size))
    return down, up
""",
        (
            ("size - 1 - i", "i - 1"),
            ("return down, up", "return up, down"),
            ("range(size)", "range(size - 1)"),
        ),
        square,
    ),
    Function(
        "merge_intervals",
        "merge intervals that overlap or touch, and give them in order.",
        """def merge_intervals(intervals):
    merged = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged
""",
        (
            ("max(end, merged[-1][1])", "end"),
            ("start <= merged", "start < merged"),
            ("sorted(intervals)", "intervals"),
        ),
        intervals,
    ),
    Function(
        "merge_sorted",
        "merge two ordered lists into one that is in order.",
        """def merge_sorted(first, second):
    merged, i, j = [], 0, 0
    while i < len(first) and j < len(second):
        if first[i] <= second[j]:
            merged.append(first[i])
            i += 1
        else:
            merged.append(second[j])
            j += 1
    return merged + first[i:] + second[j:]
""",
        (
            (" + first[i:] + second[j:]", ""),
            (" + second[j:]", ""),
            ("first[i] <= second[j]", "first[i] >= second[j]"),
        ),
        sorted_lists,
    ),
    Function(
        "roman",
        "write a whole number between 1 and 99 in Roman numerals.",
        """def roman(number):
    signs = [(90, "XC"), (50, "L"), (40, "XL"), (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I")]
    text = ""
    for value, sign in signs:
        while number >= value:
            text += sign
            number -= value
    return text
""",
        (
            ("number >= value", "number > value"),
            ('(9, "IX"), ', ""),
            ('(40, "XL"), ', ""),
            ("while number", "if number"),
        ),
        number(1, 100),
    ),
    Function(
        "window_maxima",
        "give the greatest number of every <K> neighbours in a list.",
        """def window_maxima(numbers):
    maxima = []
    for start in range(len(numbers) - <K> + 1):
        maxima.append(max(numbers[start:start + <K>]))
    return maxima
""",
        (
            (" - <K> + 1", " - <K>"),
            ("max(", "min("),
            ("start + <K>", "start + <K> - 1"),
            (" - <K> + 1", ""),
        ),
        integers(0, 30, most=9, least=6),
    ),
    Function(
        "most_common",
        "give the letter that occurs most often in a text; of several, the first in the alphabet.",
        """def most_common(text):
    counts = {}
    for letter in text:
        counts[letter] = counts.get(letter, 0) + 1
    most = max(counts.values())
    return min(letter for letter in counts if counts[letter] == most)
""",
        (
            ("return min(letter", "return max(letter"),
            ("max(counts.values())", "min(counts.values())"),
            ("counts.get(letter, 0) + 1", "1"),
        ),
        words("abcd", most=7),
    ),
)
