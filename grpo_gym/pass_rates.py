"""A stream of tasks that leaves out those which the policy was seen to solve always, or never."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from grpo_gym.curriculum import TaskSpec, TaskStream
from grpo_gym.errors import UsageError
from grpo_gym.types import Group


@dataclass(frozen=True)
class Band:
    """Which tasks are worth playing, by the share of rollouts that solved them.

    Attributes:
        low: tasks solved less often are left out.
        high: tasks solved more often are left out.
        tries: rollouts that must be seen before a task is judged.
        refresh: passes over the tasks after which what was seen of a task is forgotten, so that it
            is tried again: the policy has changed by then.

    Raises:
        UsageError: Not 0 <= low <= high <= 1, or a count below 1.
    """

    low: float = 0.05
    high: float = 0.95
    tries: int = 8
    refresh: int = 4

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high <= 1:
            raise UsageError(f"need 0 <= low <= high <= 1, got {self.low} and {self.high}")
        if self.tries < 1 or self.refresh < 1:
            raise UsageError(
                f"tries and refresh must be at least 1, got {self.tries} and {self.refresh}"
            )

    def keeps(self, seen: "Seen | None") -> bool:
        """Whether a task of which this was seen is worth playing."""
        if seen is None or seen.tries < self.tries:
            return True
        return self.low <= seen.passes / seen.tries <= self.high


@dataclass(frozen=True)
class Seen:
    """What was seen of a task: rollouts that solved it, rollouts in all, and since which position."""

    passes: int
    tries: int
    since: int


class FilteredStream:
    """A `TaskStream` over a finite set of tasks, from which those outside a band are skipped.

    What comes next is a pure function of the stream's seed and of `state()`, so that a run resumes
    by it. When a whole pass would be skipped, everything is forgotten and tried again: the stream
    never ends. Skipped tasks keep their place, so that `TaskSpec.index` stays unique.

    Endless tasks have no ids to remember: make a pool of them first, such as `TaskStream(seed,
    split="train", task_ids=[f"train-{n}" for n in range(1000)])` for procedural tasks.

    Raises:
        UsageError: The stream is endless.
    """

    def __init__(self, stream: TaskStream, band: Band | None = None) -> None:
        if not stream.is_finite:
            raise UsageError("only a finite set of tasks can be filtered by pass rate: make a pool")
        self._stream = stream
        self._size = stream.size
        self.band = Band() if band is None else band
        self.seen: dict[str, Seen] = {}

    @property
    def position(self) -> int:
        """Where the stream stands, skipped tasks included."""
        return self._stream.position

    @position.setter
    def position(self, value: int) -> None:
        self._stream.position = value

    def take(self, count: int) -> list[TaskSpec]:
        """The next `count` tasks that are worth playing."""
        return [self._next() for _ in range(count)]

    def observe(self, task_id: str, passes: int, tries: int) -> None:
        """Remember that `passes` of `tries` rollouts solved a task.

        Raises:
            UsageError: Not 0 <= passes <= tries.
        """
        if not 0 <= passes <= tries:
            raise UsageError(
                f"task {task_id!r}: {passes} of {tries} rollouts cannot have solved it"
            )
        if tries == 0:
            return
        old = self._known(task_id) or Seen(0, 0, self.position)
        self.seen[task_id] = Seen(old.passes + passes, old.tries + tries, old.since)

    def observe_groups(self, groups: Iterable[Group]) -> None:
        """Remember what groups of rollouts brought; those without a verdict do not count."""
        for group in groups:
            verdicts = [
                rollout.success
                for rollout in group.rollouts
                if rollout.error is None and rollout.success is not None
            ]
            self.observe(group.task_id, sum(verdicts), len(verdicts))

    def state(self) -> dict[str, Any]:
        """All that changes, as JSON data."""
        seen = {name: [s.passes, s.tries, s.since] for name, s in self.seen.items()}
        return {"position": self.position, "seen": seen}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state()`.

        Raises:
            UsageError: It is not one.
        """
        try:
            seen = {
                str(name): Seen(*(int(n) for n in numbers))
                for name, numbers in state["seen"].items()
            }
            position = int(state["position"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UsageError(f"not the state of a filtered stream: {error!r}") from error
        self.seen, self.position = seen, position

    def _next(self) -> TaskSpec:
        for _ in range(self._size):
            (task,) = self._stream.take(1)
            if self.band.keeps(self._known(str((task.options or {})["task_id"]))):
                return task
        self.seen.clear()
        return self._stream.take(1)[0]

    def _known(self, task_id: str) -> Seen | None:
        """What was seen of a task, unless it is too old."""
        seen = self.seen.get(task_id)
        if seen is None or self.position - seen.since >= self.band.refresh * self._size:
            return None
        return seen
