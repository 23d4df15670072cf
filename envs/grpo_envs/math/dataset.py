"""Any data set of problems with final answers: JSON lines, Parquet or the Hugging Face hub."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from grpo_envs.math.grading import is_answerable, near, verify_answer
from grpo_envs.rows import Build, Row, load_tasks
from grpo_gym.env import TextEnv
from grpo_gym.errors import UsageError
from grpo_gym.rewards import Score
from grpo_gym.tasks import Task
from grpo_gym.verifiers.extract import extract_answer


class ProblemEnv(TextEnv):
    """One problem from a data set, one answer in a box.

    Args:
        build: makes a task of each row.
        path: a `.jsonl` or `.parquet` file, or a folder with one for each split.
        dataset: id of a data set on the Hugging Face hub, read with `datasets`; instead of `path`.
        config: the configuration of that data set.
        split: the split that `reset` draws from, and that the rows of a single file belong to.
        **kwargs: as in `TextEnv`.

    Raises:
        UsageError: As in `load_tasks`.
    """

    max_turns = 1
    system_prompt = "Put the final answer in \\boxed{}."

    def __init__(
        self,
        build: Build,
        /,
        *,
        path: str | Path | None = None,
        dataset: str | None = None,
        config: str | None = None,
        split: str = "train",
        **kwargs: Any,
    ) -> None:
        if kwargs.get("tasks") is None:
            kwargs["tasks"] = load_tasks(
                build, path=path, dataset=dataset, config=config, split=split
            )
        super().__init__(split=split, **kwargs)

    def respond(self, task: Task, action: str) -> Score:
        """Score the boxed answer."""
        return verify_answer(action, task.answer, task.prompt)

    def solution(self, task: Task) -> tuple[str, ...]:
        """The published reasoning, where there is any, and the answer."""
        return (self._boxed(task, task.answer),)

    def mistakes(self, task: Task, rng: np.random.Generator) -> tuple[str, ...]:
        """The same reasoning, and an answer that is one off."""
        return (self._boxed(task, near(task.answer)),)

    @staticmethod
    def _boxed(task: Task, answer: str) -> str:
        reasoning = task.metadata.get("reasoning", "")
        return f"{reasoning}\n\\boxed{{{answer}}}".lstrip()


class MathDatasetEnv(ProblemEnv):
    r"""Problems and answers from columns that you name.

    An answer may be bare, or end a solution: the last `\boxed{}`, or what follows `####`, counts.
    Rows whose answer cannot be graded (none, prose, unbalanced braces) are left out.

    Args:
        columns: which column is the "prompt" (by default "problem") and which the "answer" (by
            default "answer"). "reward_model.ground_truth" and "prompt.0.content" look inside.
        skip_unanswerable: False refuses a file with such rows instead of leaving them out.
        **kwargs: as in `ProblemEnv`: path, dataset, config, split, and those of `TextEnv`.

    Raises:
        UsageError: As in `load_tasks`; a missing column, with those that there are.
    """

    def __init__(
        self,
        *,
        columns: Mapping[str, str] | None = None,
        skip_unanswerable: bool = True,
        **kwargs: Any,
    ) -> None:
        named = prompt_and_answer(columns)
        super().__init__(Columns(**named, skip_unanswerable=skip_unanswerable), **kwargs)


def prompt_and_answer(columns: Mapping[str, str] | None) -> dict[str, str]:
    """The map of columns. Raises `UsageError` when it maps anything but prompt and answer."""
    if not isinstance(columns or {}, Mapping):
        raise UsageError(f"columns is a map from prompt and answer to columns, not {columns!r}")
    named = dict(columns or {})
    unknown = sorted(set(named) - {"prompt", "answer"})
    if unknown:
        raise UsageError(f"columns maps prompt and answer, not {', '.join(unknown)}")
    return named


@dataclass(frozen=True)
class Columns:
    """Makes a task of a row's prompt and answer columns."""

    prompt: str = "problem"
    answer: str = "answer"
    skip_unanswerable: bool = True

    def __call__(self, row: Row) -> Task | None:
        """The task; None if its answer cannot be graded. Raises `UsageError` on a missing column."""
        prompt, written = row.text(self.prompt), row.value(self.answer)
        written = "" if written is None else row.text(self.answer)
        marked = extract_answer(written)
        answer = (written if marked is None else marked).strip()
        if prompt.strip() and is_answerable(answer):
            return Task(row.task_id, prompt, answer, row.split)
        if self.skip_unanswerable:
            return None
        raise UsageError(f"{row.where}: the answer {answer[:80]!r} cannot be graded")
