"""Keeps the scorers of reasoning-gym from running what a model wrote.

Nine of them hand the answer to `eval`, or to SymPy's parser, which evaluates Python too. In the worker
process the first is replaced by a reader of literals, and the second admits arithmetic only: that also
stops answers such as `Integral(x**2, x)`, which the scorers of integrals would take for the solution.
"""

import ast
import importlib
import re
from collections.abc import Callable, Mapping
from typing import Any

EVALUATES_LISTS = (
    "algorithmic.binary_matrix",
    "algorithmic.spiral_matrix",
    "algorithmic.string_insertion",
    "games.n_queens",
)
PARSES_EXPRESSIONS = ("games.countdown", "games.puzzle24")

LONGEST_EXPRESSION = 2000
_FUNCTIONS = "sin cos tan cot sec csc asin acos atan sinh cosh tanh exp log ln sqrt Abs pi E I C"
FUNCTIONS = frozenset(_FUNCTIONS.split())
_SYMBOLS = re.compile(r"[0-9A-Za-z+\-*/^()., \t\r\n]*")
_NAME = re.compile(r"[A-Za-z]+")
_ATTRIBUTE = re.compile(r"\.\s*[A-Za-z]")


def check_arithmetic(text: str) -> str:
    """The text, when it is arithmetic in single letters and known functions.

    Raises:
        ValueError: It is something else, or very long.
    """
    if len(text) > LONGEST_EXPRESSION:
        raise ValueError("an expression of that length is not read")
    if not _SYMBOLS.fullmatch(text) or _ATTRIBUTE.search(text):
        raise ValueError("not an arithmetic expression")
    strange = [n for n in _NAME.findall(text) if len(n) > 1 and n not in FUNCTIONS]
    if strange:
        raise ValueError(f"no function {strange[0]}")
    return text


def disarm() -> None:
    """Replace the dangerous functions in this process. Imports reasoning-gym and SymPy."""
    import sympy

    parse = sympy.parse_expr

    def parse_arithmetic(text: str, *args: Any, **kwargs: Any) -> Any:
        return parse(check_arithmetic(text), *args, **kwargs)

    sympy.parse_expr = parse_arithmetic
    for name in PARSES_EXPRESSIONS:
        _module(name)["parse_expr"] = parse_arithmetic
    for name in EVALUATES_LISTS:
        _module(name)["eval"] = ast.literal_eval


def _module(name: str) -> dict[str, Any]:
    return vars(importlib.import_module(f"reasoning_gym.{name}"))


def uses_the_given_numbers(answer: str, entry: Mapping[str, Any]) -> bool:
    """Whether an expression uses each given number once."""
    used = sorted(int(n) for n in re.findall(r"\d+", answer))
    return used == sorted(entry["metadata"]["numbers"])


def says_the_same(answer: str, entry: Mapping[str, Any]) -> bool:
    """Whether the answer is the reference answer, capitals aside."""
    return answer.strip().casefold() == str(entry["answer"]).casefold()


CONDITIONS: Mapping[str, Callable[[str, Mapping[str, Any]], bool]] = {
    "game_of_life_halting": says_the_same,
    "puzzle24": uses_the_given_numbers,
}
"""What a full score needs besides.

The scorer of game_of_life_halting gives it to any text at all, as it compares the truth of two strings;
that of puzzle24 does not look at the numbers that the task gave.
"""
