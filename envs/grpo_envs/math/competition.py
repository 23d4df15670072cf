"""Competitions whose answers are whole numbers, such as the AIME."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from grpo_envs.math.dataset import ProblemEnv, prompt_and_answer
from grpo_envs.math.grading import verify_number
from grpo_envs.rows import Row
from grpo_gym.errors import UsageError
from grpo_gym.rewards import Score
from grpo_gym.tasks import Task


class CompetitionEnv(ProblemEnv):
    """One problem, one whole number in a box.

    Args:
        columns: which column is the "prompt" (by default "problem") and which the "answer" (by
            default "answer").
        low: the least answer that the competition allows.
        high: the greatest. An answer outside means that the wrong file or column was given.
        **kwargs: as in `ProblemEnv`: path, dataset, config, split, and those of `TextEnv`.

    Raises:
        UsageError: As in `load_tasks`; an answer is no whole number between `low` and `high`.
    """

    def __init__(
        self,
        *,
        columns: Mapping[str, str] | None = None,
        low: int = 0,
        high: int = 999,
        **kwargs: Any,
    ) -> None:
        named = prompt_and_answer(columns)
        super().__init__(IntegerColumns(**named, low=low, high=high), **kwargs)

    def respond(self, task: Task, action: str) -> Score:
        """Score the boxed number."""
        return verify_number(action, task.answer)


@dataclass(frozen=True)
class IntegerColumns:
    """Makes a task of a row whose answer is a whole number, as text or as a number."""

    prompt: str = "problem"
    answer: str = "answer"
    low: int = 0
    high: int = 999

    def __call__(self, row: Row) -> Task:
        """The task. Raises `UsageError` on a missing column, or an answer that is out of bounds."""
        written = row.text(self.answer).strip()
        digits = written.removesuffix(".0").removeprefix("-")
        number = int(written.removesuffix(".0")) if _is_short_whole(digits) else None
        if number is None or not self.low <= number <= self.high:
            raise UsageError(
                f"{row.where}: the answer {written[:80]!r} is no whole number between {self.low} "
                f"and {self.high}"
            )
        return Task(row.task_id, row.text(self.prompt), str(number), row.split)


def _is_short_whole(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 100
