"""Which tasks come next: an endless stream that is a pure function of its seed and position."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from grpo_gym.errors import UsageError
from grpo_gym.types import IntArray


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

    Raises:
        UsageError: A negative seed, or a split without tasks.
    """

    def __init__(
        self, seed: int, *, split: str | None = None, task_ids: Sequence[str] | None = None
    ) -> None:
        if seed < 0:
            raise UsageError(f"the seed is {seed}, but must be at least 0")
        if task_ids is not None and len(task_ids) == 0:
            raise UsageError(f"the split {split!r} has no tasks")
        self._seed = seed
        self._split = split
        self._task_ids = task_ids
        self._pass = -1
        self._order: IntArray = np.empty(0, dtype=np.int64)
        self.position = 0

    @classmethod
    def of(cls, env: gymnasium.Env[Any, Any], seed: int, split: str) -> "TaskStream":
        """The stream of an environment: ours by task ids where they are finite, others by seed alone.

        Raises:
            UsageError: The environment has no such split.
        """
        source = _source(env)
        return cls(seed) if source is None else cls(seed, split=split, task_ids=source(split))

    @classmethod
    def evaluation(cls, env: gymnasium.Env[Any, Any], seed: int, split: str | None) -> "TaskStream":
        """The stream of evaluation tasks: of `split`, else of "test", else of what the environment has.

        Raises:
            UsageError: The environment has no such split.
        """
        source = _source(env)
        if source is None and split is not None:
            raise UsageError(f"this environment has no splits, so {split!r} cannot be asked for")
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

    @property
    def size(self) -> int:
        """Tasks of one pass; 0 when there is no end of them."""
        return 0 if self._task_ids is None else len(self._task_ids)

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
            number, place = divmod(index, len(self._task_ids))
            options["task_id"] = self._task_ids[self._shuffled(number)[place]]
        return TaskSpec(index, seed, options)

    def _shuffled(self, number: int) -> IntArray:
        """The order of the tasks in a pass; the last one is kept."""
        assert self._task_ids is not None
        if number != self._pass:
            rng = np.random.default_rng((self._seed, number))
            self._pass, self._order = number, rng.permutation(len(self._task_ids))
        return self._order


def _source(env: gymnasium.Env[Any, Any]) -> Callable[[str], Sequence[str] | None] | None:
    """What tells the task ids of a split, in an environment that has a `TaskSource`."""
    task_ids = getattr(getattr(env.unwrapped, "tasks", None), "task_ids", None)
    return task_ids if callable(task_ids) else None
