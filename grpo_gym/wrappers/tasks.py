"""A wrapper that plays some of an environment's tasks only."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from grpo_gym.env import TextEnv
from grpo_gym.errors import UsageError
from grpo_gym.tasks import Task, TaskSource
from grpo_gym.wrappers.base import TextWrapper

_TRIES = 10_000


@dataclass(frozen=True)
class FilteredTasks:
    """The tasks of a source that a function keeps.

    Attributes:
        source: where the tasks come from.
        keep: whether a task is kept; a pure function of it.
    """

    source: TaskSource
    keep: Callable[[Task], bool]

    def task_ids(self, split: str) -> Sequence[str] | None:
        """The ids that are kept, or None when there is no end of them.

        Raises:
            UsageError: An unknown split, or none of its tasks is kept.
        """
        ids = self.source.task_ids(split)
        if ids is None:
            return None
        kept = tuple(task_id for task_id in ids if self.keep(self.source.get(task_id)))
        if not kept:
            raise UsageError(f"the filter keeps none of the {len(ids)} tasks of split {split!r}")
        return kept

    def draw(self, rng: np.random.Generator, split: str) -> Task:
        """A random task that is kept: tasks are drawn until one is.

        Raises:
            UsageError: None was kept in ten thousand draws.
        """
        for _ in range(_TRIES):
            task = self.source.draw(rng, split)
            if self.keep(task):
                return task
        raise UsageError(f"the filter kept no task of split {split!r} in {_TRIES} draws")

    def get(self, task_id: str) -> Task:
        """The task of that id. Raises `UsageError` when there is none, or it is not kept."""
        task = self.source.get(task_id)
        if not self.keep(task):
            raise UsageError(f"task {task_id!r} is filtered out")
        return task


class TaskFilter(TextWrapper):
    """Plays only the tasks that `keep` says; evaluation and training then see no others.

    Args:
        env: a `TextEnv`, whose tasks are filtered in place.
        keep: whether a task is kept; a pure function of it.

    Raises:
        UsageError: The environment has no tasks to filter, or none of the split is kept.
    """

    def __init__(self, env: gymnasium.Env[Any, str], keep: Callable[[Task], bool]) -> None:
        super().__init__(env, keep=keep)
        inner = env.unwrapped
        if not isinstance(inner, TextEnv):
            raise UsageError(f"TaskFilter needs a TextEnv, got {type(inner).__name__}")
        tasks = FilteredTasks(inner.tasks, keep)
        tasks.task_ids(inner.split)
        inner.tasks = tasks
