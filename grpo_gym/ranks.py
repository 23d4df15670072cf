"""The processes of one run, as `accelerate launch` starts them: they fail, stop and go on together.

Each process is a rank. Between two exchanges a rank works alone; what goes wrong there is told to all in the
next one, so that none waits for one that has left.
"""

import atexit
import gc
import hashlib
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import timedelta
from types import TracebackType
from typing import Any, Self, TypeVar

from grpo_gym.collector import Collection, Collector
from grpo_gym.config import TrainConfig
from grpo_gym.curriculum import TaskSpec
from grpo_gym.engines.base import Engine, EngineFailure, Sharing
from grpo_gym.engines.watchdog import Watchdog
from grpo_gym.errors import UsageError
from grpo_gym.launch import launched
from grpo_gym.learner import Learner
from grpo_gym.session import EnvironmentFailure
from grpo_gym.sync import SyncError, verify_sync
from grpo_gym.types import Batch, Group

T = TypeVar("T")

# A rank waits for the others' environments as long as they take; one that dies is noticed at once.
_PATIENCE = timedelta(days=7)

# And at the end of a run until all have said what they had to say.
_FAREWELL = timedelta(seconds=15)


class RankFailure(RuntimeError):
    """Another process of the run failed; its own message says more."""


class Ranks:
    """The processes of a run; a process that was started alone is a run of one.

    Every rank must make the same calls in the same order. As a context manager, it holds back the ranks that
    are ready until all are, if they end alike: a launcher kills what still runs when one process has failed.

    Attributes:
        accelerator: of `accelerate`, set up as the launcher says; None for a process alone.
        index: of this process.
        count: of all.

    Raises:
        UsageError: accelerate does not see the processes that the launcher has started.
    """

    def __init__(self) -> None:
        self.accelerator: Any = None
        self.index, self.count = 0, 1
        self._agreed = False
        said = launched()
        if said[1] == 1:
            return
        import torch
        from accelerate import Accelerator

        # Without a device accelerate would let the processes run side by side, unaware of each other.
        self.accelerator = Accelerator(cpu=not torch.accelerator.is_available())
        self.index = int(self.accelerator.process_index)
        self.count = int(self.accelerator.num_processes)
        if (self.index, self.count) != said:
            raise UsageError(
                f"this process was launched as number {said[0]} of {said[1]}, but accelerate takes it for "
                f"{self.index} of {self.count}: launch with accelerate launch or torchrun"
            )
        if self.count > 1:  # objects travel over the CPU, whatever way the gradients go
            self._objects: Any = torch.distributed.new_group(backend="gloo", timeout=_PATIENCE)
            self._farewell: Any = torch.distributed.new_group(backend="gloo", timeout=_FAREWELL)
            atexit.register(_leave)  # for scripts, which train without this as a context manager

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.count > 1 and (error is None or self._agreed):
            import torch

            with suppress(RuntimeError):  # another has left already: there is nothing to wait for
                torch.distributed.barrier(group=self._farewell)
            self._objects = self._farewell = None
            _leave()

    def together(self, work: Callable[[], T]) -> list[T]:
        """What `work` gives on every rank, in their order.

        Raises:
            BaseException: What the first failing rank raised, on all ranks.
            RankFailure: The same, where another rank raised what is no ordinary end of a run; or another
                rank has died.
        """
        if self.count == 1:
            return [work()]
        import torch

        result: T | None = None
        error: BaseException | None = None
        try:
            result = work()
        except (Exception, KeyboardInterrupt) as raised:
            error = raised
        answers: list[Any] = [None] * self.count
        said = None if error is None else _said(error)
        try:
            torch.distributed.all_gather_object(answers, (result, said), group=self._objects)
        except RuntimeError as lost:
            raise _gone(lost) from (error or lost)
        for rank, (_, failure) in enumerate(answers):
            if failure is not None:
                self._agreed = True
                if error is not None and rank == self.index:
                    raise error
                raise _heard(failure, rank) from error
        return [answer for answer, _ in answers]

    @contextmanager
    def exchanging(self) -> Iterator[None]:
        """Within, ranks may exchange more than `together` does, such as gradients.

        Raises:
            RankFailure: Another rank has died.
        """
        try:
            yield
        except RuntimeError as error:
            import torch

            if not isinstance(error, torch.distributed.DistError) and "/gloo/" not in str(error):
                raise
            raise _gone(error) from error

    def alike(self, work: Callable[[], T]) -> T:
        """What `work` gives on this rank, once it has succeeded on all; raises as `together`."""
        own: list[T] = []
        self.together(lambda: own.append(work()))
        return own[0]

    def first(self, work: Callable[[], T]) -> T:
        """What `work` gives on rank 0, which alone does it; raises as `together`."""
        answers: list[Any] = self.together(lambda: work() if self.index == 0 else None)
        answer: T = answers[0]
        return answer

    def agree(self, mark: str, what: str) -> None:
        """Be sure that something has the same mark on all ranks.

        Raises:
            UsageError: It differs.
        """
        marks = self.together(lambda: mark)
        for rank, other in enumerate(marks):
            if other != marks[0]:
                self._agreed = True
                raise UsageError(f"{what} of process {rank} differs from that of process 0")

    def sharing(self) -> Sharing:
        """How this rank's client of a server goes with those of the other ranks."""
        return Sharing(self.first(lambda: uuid.uuid4().hex), leads=self.index == 0)

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """This rank's part of `items`; the parts of all ranks in their order are the whole."""
        first, end = (-(-len(items) * rank // self.count) for rank in (self.index, self.index + 1))
        return items[first:end]


class RankCollector(Collector):
    """A collector whose tasks are shared over the ranks; each gets the groups of all of them.

    Args:
        ranks: who shares.
        welcome: within it an interrupt may end the collection.
        arguments: those of `Collector`.
    """

    def __init__(
        self, ranks: Ranks, welcome: Callable[[], AbstractContextManager[None]], *arguments: Any
    ) -> None:
        super().__init__(*arguments)
        self._ranks = ranks
        self._welcome = welcome

    def _play(
        self, tasks: Sequence[TaskSpec], seed: int, progress: Callable[[int, int], None] | None
    ) -> Collection:
        def share() -> Collection:
            with self._welcome():
                return super(RankCollector, self)._play(self._ranks.share(tasks), seed, progress)

        parts = self._ranks.together(share)
        return Collection(
            groups=tuple(group for part in parts for group in part.groups),
            failures=sum(part.failures for part in parts),
            tokens=sum(part.tokens for part in parts),
            seconds=max(part.seconds for part in parts),
        )


class RankSync:
    """Keeps the engines of all ranks at the learner's weights.

    Args:
        ranks: whose engines they are.
        engine: of this rank.
        learner: whose weights it takes.
        config: says at which temperature and precision both are compared, and how long a call may take.

    Attributes:
        watchdog: watches the engine.
    """

    def __init__(self, ranks: Ranks, engine: Engine, learner: Learner, config: TrainConfig) -> None:
        self.watchdog = Watchdog(config.engine_timeout_s)
        self._ranks, self._engine, self._learner, self._config = ranks, engine, learner, config

    def sleep(self) -> None:
        """Have every engine leave its memory to the learner."""
        self._ranks.alike(self._watched(self._engine.sleep))

    def load(self) -> None:
        """Have every engine take the weights; no rank goes on, and samples, before all have."""
        learner = self._learner
        self._ranks.alike(
            self._watched(lambda: self._engine.load(learner.state(), learner.version))
        )

    def verify(self, batch: Batch) -> float:
        """The largest difference between the log-probs of an engine and the learner's; see `verify_sync`."""
        engine, learner, config = self._engine, self._learner, self._config
        compare = self._watched(
            lambda: verify_sync(engine, learner, batch, config.temperature, config.precision)
        )
        return max(self._ranks.together(compare))

    def _watched(self, work: Callable[[], T]) -> Callable[[], T]:
        def watched() -> T:
            with self.watchdog.watch():
                return work()

        return watched


def mark(groups: Sequence[Group]) -> str:
    """What ranks must agree on before they train: which rollouts there are, and what each is worth."""
    rollouts = [(r.task_id, len(r.token_ids), r.reward) for g in groups for r in g.rollouts]
    return hashlib.sha256(repr((len(groups), rollouts)).encode()).hexdigest()


def _leave() -> None:
    """End what connects the processes while its threads can still be joined: later they would abort."""
    import torch

    if torch.distributed.is_initialized():
        with suppress(RuntimeError):  # another has left already
            torch.distributed.destroy_process_group()
    gc.collect()  # a group's threads end with the last object that refers to it


def _kinds() -> dict[str, type[BaseException]]:
    """The ways in which a run ends that are no fault of the program."""
    kinds = (UsageError, EnvironmentFailure, SyncError, EngineFailure, KeyboardInterrupt, OSError)
    return {kind.__name__: kind for kind in kinds}


def _gone(error: RuntimeError) -> RankFailure:
    line = " ".join(str(error).split())[:200]
    return RankFailure(f"another process of this run is gone: {line}")


def _said(error: BaseException) -> tuple[str, str]:
    """An error as a name and a line: it is told, not sent, since not every one can be copied."""
    names = [name for name, kind in _kinds().items() if isinstance(error, kind)]
    return (names or [type(error).__name__])[0], " ".join(str(error).split())


def _heard(failure: tuple[str, str], rank: int) -> BaseException:
    name, line = failure
    kind = _kinds().get(name)
    if kind is not None:
        return kind(line)
    return RankFailure(f"process {rank} failed with {name}: {line[:300]}")
