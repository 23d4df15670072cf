"""MATH: competition problems with full solutions (Hendrycks et al., 2021, arXiv:2103.03874)."""

from dataclasses import dataclass
from typing import Any

from grpo_envs.math.dataset import ProblemEnv
from grpo_envs.rows import Row
from grpo_gym.errors import UsageError
from grpo_gym.tasks import Task
from grpo_gym.verifiers.extract import last_box


class MATHEnv(ProblemEnv):
    r"""Problems of MATH in the published form: "problem", and "solution" with its last `\boxed{}`.

    Args:
        level: keep the problems of this level only, 1 to 5 (column "level", as in "Level 3").
        subject: keep this subject only, as in "Algebra" (column "type" or "subject").
        **kwargs: as in `ProblemEnv`: path, dataset, config, split, and those of `TextEnv`.

    Raises:
        UsageError: As in `load_tasks`; a missing column, or a solution without a box.
    """

    def __init__(
        self, *, level: int | None = None, subject: str | None = None, **kwargs: Any
    ) -> None:
        if level is not None and level not in range(1, 6):
            raise UsageError(f"level must be between 1 and 5, got {level}")
        super().__init__(Published(level, subject), **kwargs)

    def solution(self, task: Task) -> tuple[str, ...]:
        """The published solution."""
        return (task.metadata["reasoning"],)


@dataclass(frozen=True)
class Published:
    """Makes a task of a row as published; None for another level or subject than asked for."""

    level: int | None = None
    subject: str | None = None

    def __call__(self, row: Row) -> Task | None:
        """The task. Raises `UsageError` on a missing column or a solution without a box."""
        if self.level is not None and row.text("level").split()[-1:] != [str(self.level)]:
            return None
        column = "type" if "type" in row.values else "subject"
        if self.subject is not None and row.text(column).casefold() != self.subject.casefold():
            return None
        solution = row.text("solution")
        answer = (last_box(solution) or "").strip()
        if not answer:
            raise UsageError(f"{row.where}: the solution has no answer in \\boxed{{}}")
        return Task(
            row.task_id, row.text("problem"), answer, row.split, {"reasoning": solution.strip()}
        )
