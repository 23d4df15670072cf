"""CodeRepair: submit a program, see which test fails and how, try again."""

import math
from pathlib import Path
from typing import Any

import numpy as np

from grpo_envs.code.base import CodeEnv, problem_of
from grpo_envs.code.bugs import broken_function
from grpo_envs.code.mbpp import MBPP
from grpo_envs.code.problem import feedback, fenced
from grpo_gym.env import Reply
from grpo_gym.rewards import Score
from grpo_gym.tasks import ProceduralTasks, Task, TaskSource


class CodeRepairEnv(CodeEnv):
    """A function to mend, or with `path=` to write, in a few turns.

    After each turn the model sees the first test that fails, and what came instead of the right value or
    what was raised; of hidden tests it learns only that one fails. The reward is 1 once all pass. With
    `partial` the last turn earns its share.

    Without a file the tasks are short functions with a bug, from a seed. With `path=` or `dataset=` they
    are those of MBPP, to be written from the question.

    Args:
        path: a file in the form of MBPP; see `MBPPEnv`.
        dataset: id of a data set on the Hugging Face hub in that form.
        shown: how many tests of such a task are public; the others are hidden.
        **kwargs: as in `CodeEnv`.
    """

    max_turns = 4

    def __init__(
        self,
        *,
        path: str | Path | None = None,
        dataset: str | None = None,
        shown: int = 1,
        **kwargs: Any,
    ) -> None:
        build = None if path is None and dataset is None else MBPP(shown)
        super().__init__(build, path=path, dataset=dataset, **kwargs)

    def default_tasks(self) -> TaskSource:
        """Endless short functions with a bug each."""
        return ProceduralTasks(broken_function)

    def respond(self, task: Task, action: str) -> Score | Reply:  # type: ignore[override]
        """Run the tests; a failure is told, and the episode goes on."""
        problem = problem_of(task)
        report = self.grader.report(problem, self.program(task, action))
        if report.score.success or math.isnan(report.score.value):
            return report.score
        last = self.turn + 1 >= self.max_turns
        reward = report.score.value if last else 0.0
        return Reply(feedback(problem, report), reward, dict(report.score.components))

    def solution(self, task: Task) -> tuple[str, ...]:
        """The broken function, where there is one, and after its failure the right one."""
        broken = task.metadata.get("broken")
        right = super().solution(task)
        return (fenced(broken), *right) if broken else right

    def mistakes(self, task: Task, rng: np.random.Generator) -> tuple[str, ...]:
        """The broken function as it is."""
        broken = task.metadata.get("broken")
        return (fenced(broken),) if broken else super().mistakes(task, rng)
