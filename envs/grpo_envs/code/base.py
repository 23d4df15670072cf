"""`CodeEnv`: one question, one program, judged in the sandbox."""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from grpo_envs.code.problem import Grader, Problem, fenced
from grpo_envs.rows import Build, load_tasks
from grpo_gym.env import TextEnv
from grpo_gym.errors import UsageError
from grpo_gym.rewards import Score
from grpo_gym.sandbox import Limits, backend
from grpo_gym.tasks import Task, TaskSource
from grpo_gym.verifiers.code import extract_program


class CodeEnv(TextEnv):
    """A program is asked for; the last fenced Python block of the action is it, or else all of it.

    A task's metadata holds its `Problem` under "problem".

    Args:
        build: makes a task of each row of a file or data set; None where the tasks come from elsewhere.
        path: a `.jsonl` or `.parquet` file, or a folder with one for each split.
        dataset: id of a data set on the Hugging Face hub, instead of `path`.
        config: the configuration of that data set.
        split: the split that `reset` draws from, and that the rows of a single file belong to.
        seconds: time for one program and its tests, both of the clock and of the processor.
        memory_mb: address space of a program.
        partial: reward the share of passed tests. Success is all of them in any case.
        sandbox: name of the back end; see `grpo_gym.sandbox.backend`.
        paths: folders that programs may import from; without them they have the standard library.
        **kwargs: as in `TextEnv`.

    Raises:
        SandboxError: No back end confines programs on this machine.
        UsageError: As in `load_tasks` and `TextEnv`; a limit that is not positive.
    """

    max_turns = 1
    system_prompt = "Answer with one Python program in a fenced block, ```python ... ```."

    def __init__(
        self,
        build: Build | None = None,
        /,
        *,
        path: str | Path | None = None,
        dataset: str | None = None,
        config: str | None = None,
        split: str = "train",
        tasks: TaskSource | None = None,
        seconds: float = 5.0,
        memory_mb: int = 512,
        partial: bool = False,
        sandbox: str = "auto",
        paths: Sequence[str] = (),
        **kwargs: Any,
    ) -> None:
        if not 0 < seconds < math.inf:
            raise UsageError(f"seconds must be positive and finite, got {seconds!r}")
        limits = Limits(wall_s=seconds, cpu_s=seconds, memory_mb=memory_mb)
        self.grader = Grader(limits, partial, sandbox, tuple(paths))
        # Fails here rather than in the first episode.
        backend(sandbox, tuple(str(Path(folder).resolve()) for folder in paths))
        if tasks is None and build is not None:
            tasks = load_tasks(build, path=path, dataset=dataset, config=config, split=split)
        super().__init__(tasks=tasks, split=split, **kwargs)

    def program(self, task: Task, action: str) -> str:
        """Hook: the program that an action holds."""
        return extract_program(action)

    def respond(self, task: Task, action: str) -> Score:
        """Run the program's tests."""
        return self.grader.report(problem_of(task), self.program(task, action)).score

    def solution(self, task: Task) -> tuple[str, ...]:
        """The published solution, where there is one."""
        source = problem_of(task).solution
        return (fenced(source),) if source else ()

    def mistakes(self, task: Task, rng: np.random.Generator) -> tuple[str, ...]:
        """A program that has the right form and gives nothing."""
        return (fenced(stub(problem_of(task))),)


def problem_of(task: Task) -> Problem:
    """The tests of a task's program."""
    problem: Problem = task.metadata["problem"]
    return problem


def stub(problem: Problem) -> str:
    """Functions of the right names that return None."""
    names = problem.entry_points or ("main",)
    return "\n\n".join(f"def {name}(*arguments):\n    return None" for name in names)


def unix_lines(source: str) -> str:
    """Source with plain line ends, and no blank ones around it."""
    return re.sub(r"\r\n?", "\n", source).strip("\n")
