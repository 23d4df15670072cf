"""Countdown: reach a target with the given numbers and the four operations."""

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from grpo_gym.env import TextEnv
from grpo_gym.errors import UsageError
from grpo_gym.rewards import Score
from grpo_gym.tasks import ProceduralTasks, Task, TaskSource
from grpo_gym.verifiers.extract import extract_answer

MAX_LENGTH = 300
_ALLOWED = re.compile(r"[0-9+\-*/() ]*")
_FRACTION = re.compile(r"\\[dt]?frac\{([^{}]*)\}\{([^{}]*)\}")
_SYMBOLS = (
    (re.compile(r"\\(?:times|cdot|ast)(?![A-Za-z])|[×·∗⋅]"), "*"),
    (re.compile(r"\\div(?![A-Za-z])|÷"), "/"),
    (re.compile(r"[−–]"), "-"),
    (re.compile(r"\\(?:left|right)(?![A-Za-z])|\\[,;:! ]|\$"), ""),
    (re.compile(r"\s+|~"), " "),
)


@dataclass(frozen=True)
class Level:
    """How hard the puzzles are.

    Attributes:
        count: how many numbers are given.
        largest: the largest of them; the smallest is 1.
        operators: what the solution may need.
        low: the least target.
        high: the greatest target.
    """

    count: int
    largest: int
    operators: str
    low: int
    high: int


LEVELS = (
    Level(3, 9, "+-", 1, 30),
    Level(3, 20, "+-*", 1, 100),
    Level(4, 25, "+-*/", 10, 100),
    Level(5, 50, "+-*/", 10, 500),
    Level(6, 100, "+-*/", 100, 999),
)


def puzzle(rng: np.random.Generator, level: Level) -> tuple[tuple[int, ...], int, str]:
    """Numbers, target, and an expression that reaches it with every number used once.

    Random pairs of numbers are combined by operations that keep whole and positive, until one number
    is left; it is the target if the level's bounds hold it, and none of the numbers is it already.
    """
    while True:
        numbers = tuple(int(n) for n in rng.integers(1, level.largest + 1, size=level.count))
        draws = rng.random((level.count - 1, 3))
        parts = [(number, str(number)) for number in numbers]
        for first, second, which in draws:
            a = parts.pop(int(first * len(parts)))
            b = parts.pop(int(second * len(parts)))
            parts.append(_combine(max(a, b), min(a, b), level, which))
        target, expression = parts[0]
        if level.low <= target <= level.high and target not in numbers:
            return numbers, target, expression[1:-1]


def _combine(a: tuple[int, str], b: tuple[int, str], level: Level, which: float) -> tuple[int, str]:
    """One operation on two parts of which the first is at least as large."""
    results = {"+": a[0] + b[0]}
    if "-" in level.operators and a[0] > b[0]:
        results["-"] = a[0] - b[0]
    if "*" in level.operators and b[0] > 1 and a[0] * b[0] <= 10 * level.high:
        results["*"] = a[0] * b[0]
    if "/" in level.operators and b[0] > 1 and a[0] % b[0] == 0:
        results["/"] = a[0] // b[0]
    operator = list(results)[int(which * len(results))]
    return results[operator], f"({a[1]} {operator} {b[1]})"


def read_expression(text: str) -> tuple[Fraction, list[int]]:
    r"""The value of an expression, exactly, and the numbers it uses.

    The text is numbers, `+ - * /` and brackets, with the usual signs and LaTeX for them.

    Raises:
        ValueError: It is something else, too long, or divides by zero.
    """
    if len(text) > MAX_LENGTH:
        raise ValueError(f"an expression has at most {MAX_LENGTH} characters")
    for pattern, plain in _SYMBOLS:
        text = pattern.sub(plain, text)
    while _FRACTION.search(text):
        text = _FRACTION.sub(r"((\1)/(\2))", text)
    if not _ALLOWED.fullmatch(text):
        raise ValueError("an expression is made of whole numbers and + - * / ( )")
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError("this is no expression") from error
    numbers: list[int] = []
    try:
        return _value(tree.body, numbers), numbers
    except ZeroDivisionError as error:
        raise ValueError("division by zero") from error


def _value(node: ast.expr, numbers: list[int]) -> Fraction:
    match node:
        case ast.Constant(value=int() as number):
            numbers.append(number)
            return Fraction(number)
        case ast.UnaryOp(op=ast.USub()):
            return -_value(node.operand, numbers)
        case ast.BinOp(op=ast.Add()):
            return _value(node.left, numbers) + _value(node.right, numbers)
        case ast.BinOp(op=ast.Sub()):
            return _value(node.left, numbers) - _value(node.right, numbers)
        case ast.BinOp(op=ast.Mult()):
            return _value(node.left, numbers) * _value(node.right, numbers)
        case ast.BinOp(op=ast.Div()):
            return _value(node.left, numbers) / _value(node.right, numbers)
    raise ValueError("an expression is made of whole numbers and + - * / ( )")


def uses(found: Sequence[int], given: Sequence[int], every: bool) -> bool:
    """Whether each given number is used at most once and no other is; with `every`, all of them."""
    left = list(given)
    for number in found:
        if number not in left:
            return False
        left.remove(number)
    return not (every and left)


class CountdownEnv(TextEnv):
    r"""Reach the target with the given numbers; one turn, the expression in a box.

    `\boxed{(7 - 3) * 6}` and `\boxed{(7 - 3) \times 6 = 24}` are answers; what follows an equals sign
    must be the target. Values are exact: 1/3*3 is 1. A minus in front of a number is allowed, as every
    expression with one can be written without.

    Args:
        level: difficulty, 1 to 5; see `LEVELS`.
        use_all: whether every number must be used; otherwise each at most once.
        **kwargs: as in `TextEnv`.
    """

    max_turns = 1
    system_prompt = "Put the final expression in \\boxed{}."

    def __init__(self, *, level: int = 1, use_all: bool = True, **kwargs: Any) -> None:
        if level not in range(1, len(LEVELS) + 1):
            raise UsageError(f"level must be between 1 and {len(LEVELS)}, got {level}")
        self.level = level
        self.use_all = use_all
        super().__init__(**kwargs)

    def default_tasks(self) -> TaskSource:
        """Endless puzzles of this level, each with a solution."""
        return ProceduralTasks(self._problem)

    def respond(self, task: Task, action: str) -> Score:
        """1 for an expression of the target by the rules, and `valid` for any by the rules."""
        expression, *rest = (extract_answer(action) or "").split("=")
        try:
            value, found = read_expression(expression)
            claimed = [read_expression(text)[0] for text in rest]
        except ValueError:
            return _score(valid=False, correct=False)
        target = int(task.answer)
        valid = uses(found, task.metadata["numbers"], self.use_all) and len(rest) <= 1
        return _score(valid, valid and all(n == target for n in (value, *claimed)))

    def solution(self, task: Task) -> tuple[str, ...]:
        """The expression that the puzzle was made from."""
        return (f"\\boxed{{{task.metadata['expression']}}}",)

    def mistakes(self, task: Task, rng: np.random.Generator) -> tuple[str, ...]:
        """The right value, with a number too many, or with one that was not given."""
        number = int(rng.choice(task.metadata["numbers"]))
        wrong = (f"{task.metadata['expression']} + {number} - {number}", task.answer)
        return (f"\\boxed{{{wrong[int(rng.integers(2))]}}}",)

    def _problem(self, rng: np.random.Generator) -> tuple[str, str, dict[str, Any]]:
        numbers, target, expression = puzzle(rng, LEVELS[self.level - 1])
        listed = ", ".join(map(str, numbers))
        rule = "each exactly once" if self.use_all else "each at most once"
        prompt = f"Use the numbers {listed}, {rule}, with + - * / and brackets to make {target}."
        return prompt, str(target), {"numbers": numbers, "expression": expression}


def _score(valid: bool, correct: bool) -> Score:
    return Score(float(correct), correct, {"correct": float(correct), "valid": float(valid)})
