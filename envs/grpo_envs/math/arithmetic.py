"""Sums and products in five levels, each a pure function of a seed."""

from typing import Any

import numpy as np

from grpo_envs.math.grading import verify_number
from grpo_gym.env import TextEnv
from grpo_gym.errors import UsageError
from grpo_gym.rewards import Score
from grpo_gym.tasks import ProceduralTasks, Task, TaskSource


def expression(rng: np.random.Generator, level: int) -> tuple[str, int]:
    """A random expression and its value.

    Args:
        rng: the source of randomness.
        level: 1: a sum of two digits. 2: a sum or difference of digits. 3: a sum or difference of
            two-digit numbers. 4: a sum, difference or product of two-digit numbers. 5: three terms
            with brackets.
    """
    low, high = (0, 10) if level <= 2 else (10, 100)
    # One number at a time: NumPy draws the same ones as in an array, in less time.
    a, b = int(rng.integers(low, high)), int(rng.integers(low, high))
    if level == 1:
        return f"{a} + {b}", a + b
    c = int(rng.integers(low, high))
    operators = ("+-", "+-", "+-*", "+-*")[level - 2]
    first, second = _one_of(rng, operators), _one_of(rng, operators)
    text, value = f"{a} {first} {b}", _apply(a, first, b)
    if level < 5:
        return text, value
    if rng.integers(2):
        return f"({text}) {second} {c}", _apply(value, second, c)
    return f"{c} {second} ({text})", _apply(c, second, value)


def problem(rng: np.random.Generator, level: int) -> tuple[str, str, dict[str, str]]:
    """Question, answer, and the expression as metadata."""
    text, value = expression(rng, level)
    return f"What is {text}?", str(value), {"expression": text}


def check_level(level: int) -> int:
    """The level, when it is one. Raises `UsageError` when it is not between 1 and 5."""
    if level not in range(1, 6):
        raise UsageError(f"level must be between 1 and 5, got {level}")
    return level


def near_miss(task: Task, rng: np.random.Generator) -> str:
    """A wrong answer within 9 of the right one."""
    return str(int(task.answer) + int(rng.choice([-1, 1])) * int(rng.integers(1, 10)))


def _one_of(rng: np.random.Generator, options: str) -> str:
    return options[rng.integers(len(options))]


def _apply(a: int, operator: str, b: int) -> int:
    return {"+": a + b, "-": a - b, "*": a * b}[operator]


class ArithmeticEnv(TextEnv):
    """One question, one answer in a box.

    Args:
        level: difficulty, 1 to 5; see `expression`.
        **kwargs: as in `TextEnv`.
    """

    max_turns = 1
    system_prompt = "Put the final answer in \\boxed{}."

    def __init__(self, *, level: int = 1, **kwargs: Any) -> None:
        self.level = check_level(level)
        super().__init__(**kwargs)

    def default_tasks(self) -> TaskSource:
        """Endless expressions of this level."""
        return ProceduralTasks(lambda rng: problem(rng, self.level))

    def respond(self, task: Task, action: str) -> Score:
        """Score the boxed answer."""
        return verify_number(action, task.answer)

    def solution(self, task: Task) -> tuple[str, ...]:
        """The expression and its value."""
        return (_equation(task, task.answer),)

    def mistakes(self, task: Task, rng: np.random.Generator) -> tuple[str, ...]:
        """The expression and a value that is a little off."""
        return (_equation(task, near_miss(task, rng)),)


def _equation(task: Task, value: str) -> str:
    return f"{task.metadata['expression']} = \\boxed{{{value}}}"
