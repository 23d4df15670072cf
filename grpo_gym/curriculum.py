"""Which tasks come next: an endless stream that is a pure function of its seed and position."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from grpo_gym.errors import UsageError


@dataclass(frozen=True)
class TaskSpec:
    """What the copies of one task are reset with.

    Attributes:
        index: position in the stream; with the run's seed it decides how the copies sample.
        seed: given to `reset`.
        options: given to `reset`; None for environments that are not ours.
    """

    index: int
    seed: int
    options: dict[str, Any] | None = None


class TaskStream:
    """An endless stream of tasks.

    A finite set of tasks is shuffled anew for each pass over it, so that every task comes once a pass;
    other environments get a fresh seed for each task. Nothing but `position` changes, so that a run resumes
    by setting it.
    """

    def __init__(
        self, seed: int, *, split: str | None = None, task_ids: Sequence[str] | None = None
    ) -> None:
        self._seed = seed
        self._split = split
        self._task_ids = task_ids
        self.position = 0

    @classmethod
    def of(cls, env: gymnasium.Env[Any, Any], seed: int, split: str) -> "TaskStream":
        """The stream of an environment: ours by task ids where they are finite, others by seed."""
        source = getattr(env.unwrapped, "tasks", None)
        if source is None:
            return cls(seed)
        return cls(seed, split=split, task_ids=source.task_ids(split))

    @classmethod
    def evaluation(cls, env: gymnasium.Env[Any, Any], seed: int, split: str | None) -> "TaskStream":
        """The stream of evaluation tasks: of `split`, else of "test", else of what the environment has."""
        source = getattr(env.unwrapped, "tasks", None)
        if source is None or split is not None:
            return cls.of(env, seed, split or "")
        try:
            return cls.of(env, seed, "test")
        except UsageError:  # it has no split of that name
            return cls.of(env, seed, getattr(env.unwrapped, "split", "train"))

    @property
    def is_finite(self) -> bool:
        """Whether there is an end to the tasks of one pass."""
        return self._task_ids is not None

    def take(self, count: int) -> list[TaskSpec]:
        """The next `count` tasks."""
        first, self.position = self.position, self.position + count
        return [self._at(index) for index in range(first, self.position)]

    def finite(self, limit: int) -> list[TaskSpec]:
        """At most `limit` different tasks in a fixed order, for evaluation."""
        count = limit if self._task_ids is None else min(limit, len(self._task_ids))
        return [self._at(index) for index in range(count)]

    def _at(self, index: int) -> TaskSpec:
        seed = int(np.random.SeedSequence((self._seed, index)).generate_state(1)[0])
        if self._split is None:
            return TaskSpec(index, seed)
        options: dict[str, Any] = {"split": self._split}
        if self._task_ids is not None:
            turn, place = divmod(index, len(self._task_ids))
            order = np.random.default_rng((self._seed, turn)).permutation(len(self._task_ids))
            options["task_id"] = self._task_ids[order[place]]
        return TaskSpec(index, seed, options)
