"""One call of the collector: rows of lanes are opened, played and closed.

A row is the G lanes of one task. Its environments are reset together and proved equal; from then on each
lane goes its own way: sample, step, sample, until it is over.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from typing import Any

from grpo_gym.answers import Answer, BadAnswer, Start, difference
from grpo_gym.curriculum import TaskSpec
from grpo_gym.engines.base import EngineStopped, Lost, Speaker
from grpo_gym.engines.watchdog import Watchdog
from grpo_gym.episode import Episode
from grpo_gym.workers import EnvWorker


class EnvironmentFailure(RuntimeError):
    """Too many environments failed, or the copies of a task were not copies."""


@dataclass(eq=False)
class Seat:
    """A lane, the worker its environment lives in, and the answer it waits for.

    Attributes:
        number: of the lane; names its requests.
        since: when the environment was asked.
        slow: whether nobody waits for the answer, since the last one to such a question took long.
        released: whether the worker has been let go of.
    """

    number: int
    lane: Episode
    worker: EnvWorker
    answer: Future[Any] | None = None
    since: float = 0.0
    slow: bool = False
    released: bool = False

    def reset(self, task: TaskSpec, patience_s: float) -> None:
        """Ask the environment for the task."""
        self._ask("reset", self.worker.reset(task.seed, task.options), patience_s)

    def step(self, action: str, patience_s: float) -> None:
        """Ask the environment what an action brings."""
        self._ask("step", self.worker.step(action), patience_s)

    def _ask(self, call: str, answer: Future[Any], patience_s: float) -> None:
        self.answer, self.since = answer, time.monotonic()
        self.slow = self.worker.seconds.get(call, 0.0) > patience_s


@dataclass(eq=False)
class Row:
    """The seats of one task; `begun` once its environments are reset and proved equal."""

    task: TaskSpec
    seats: list[Seat]
    begun: bool = False


@dataclass(eq=False)
class Session:
    """State of one call of `Collector.collect`; see there for what the fields mean.

    Attributes:
        new_lane: an episode from the seed of its draws.
        render: what all copies of a task share, from what the first `reset` brought.
        watchdog: watches the engine.
    """

    tasks: Sequence[TaskSpec]
    seed: int
    engine: Speaker[Any, Any]
    watchdog: Watchdog
    new_lane: Callable[[tuple[int, ...]], Episode]
    render: Callable[[Start], Any]
    copies: int
    max_lanes: int
    max_error_share: float
    timeout_s: float
    patience_s: float
    borrow: Callable[[], EnvWorker]
    give_back: Callable[[EnvWorker], None]
    culprits: str = "failing environments"
    _rows: list[Row] = field(default_factory=list)
    _open: list[Row] = field(default_factory=list)
    _errors: list[str] = field(default_factory=list)
    _ended: int = 0

    def play(self, progress: Callable[[int, int], None] | None) -> None:
        """Play every task to its end.

        Raises:
            EnvironmentFailure: Copies of a task differ, or too many rollouts were lost.
            EngineStopped: The policy cannot go on.
            EngineFailure: The engine failed.
        """
        try:
            self._play(progress)
        except EngineStopped:
            self._take_last_answers()
            raise

    def _play(self, progress: Callable[[int, int], None] | None) -> None:
        todo = deque(self.tasks)
        while todo or self._open:
            while todo and self._room():
                self._open_row(todo.popleft())
            self._wait()
            self._take_answers()
            for number, completion in self._step() if self.engine.busy else ():
                self._take(
                    self._rows[number // self.copies].seats[number % self.copies], completion
                )
            if self._close_ended() and progress is not None:
                progress(self._ended, len(self.tasks) * self.copies)

    def _step(self) -> list[tuple[int, Any]]:
        with self.watchdog.watch():
            return self.engine.step()

    def lanes(self) -> list[list[Episode]]:
        """The lanes of every task, in the order of the tasks."""
        return [[seat.lane for seat in row.seats] for row in self._rows]

    def close(self) -> None:
        """Let go of all environments; those that were interrupted at work are closed."""
        for seat in [seat for row in self._open for seat in row.seats if not seat.released]:
            self._release(seat)

    def _room(self) -> bool:
        """Whether all copies of one more task fit; they always do when nothing is in play."""
        live = sum(not seat.lane.over for row in self._open for seat in row.seats)
        return live == 0 or live + self.copies <= self.max_lanes

    def _open_row(self, task: TaskSpec) -> None:
        first = len(self._rows) * self.copies
        row = Row(task, [])
        self._rows.append(row)
        self._open.append(row)
        for copy in range(self.copies):
            key = (self.seed, task.index, copy)
            row.seats.append(Seat(first + copy, self.new_lane(key), self.borrow()))
        for seat in row.seats:
            seat.reset(task, self.patience_s)

    def _close_ended(self) -> bool:
        """Let go of the environments of lanes that have ended; say whether there were any."""
        ended = [
            seat for row in self._open for seat in row.seats if seat.lane.over and not seat.released
        ]
        for seat in ended:
            self._release(seat)
        self._ended += len(ended)
        self._open = [row for row in self._open if not all(seat.released for seat in row.seats)]
        return bool(ended)

    def _release(self, seat: Seat) -> None:
        seat.released = True
        if seat.answer is None and seat.lane.error is None:
            self.give_back(seat.worker)
        else:
            seat.worker.close()

    def _wait(self) -> None:
        """Wait for environments: a moment for fast ones; for any, when there is nothing else to do.

        Before anything has been sampled, patience has no end, so that the first batch is the same in every
        run: environments are often still being built then.
        """
        waiting = [seat for row in self._open for seat in row.seats if seat.answer is not None]
        fast = [seat for seat in waiting if not seat.slow]
        if fast:
            started = any(row.begun for row in self._rows)
            patience = min(self.patience_s, self.timeout_s) if started else self.timeout_s
            _await(fast, max(seat.since for seat in fast) + patience)
            for seat in fast:
                seat.slow = seat.answer is not None and not seat.answer.done()
        if waiting and not self.engine.busy:
            _await(waiting, min(seat.since for seat in waiting) + self.timeout_s, FIRST_COMPLETED)

    def _take_answers(self) -> None:
        """Take what is there, in the order of the lanes, and ask the engine for more."""
        now = time.monotonic()
        speak: list[Seat] = []
        for row in self._open:
            if row.begun:
                for seat in row.seats:
                    if self._answered(seat, now):
                        self._step_answer(seat)
                        speak.append(seat)
            elif all(self._answered(seat, now) for seat in row.seats):
                self._begin(row)
                speak += row.seats
        requests = [seat.lane.request(seat.number) for seat in speak if not seat.lane.over]
        with self.watchdog.watch():
            self.engine.submit([request for request in requests if request is not None])

    def _take_last_answers(self) -> None:
        """The policy has stopped, but the answers that are still to come may end a rollout."""
        seats = [seat for row in self._open if row.begun for seat in row.seats]
        waiting = [seat for seat in seats if seat.answer is not None]
        _await(waiting, time.monotonic() + self.timeout_s)
        for seat in waiting:
            if seat.answer is not None and seat.answer.done():
                self._step_answer(seat)

    def _answered(self, seat: Seat, now: float) -> bool:
        if seat.answer is None:
            return False
        return seat.answer.done() or now - seat.since >= self.timeout_s

    def _begin(self, row: Row) -> None:
        """Prove that the copies of a task are equal, and render their prompt once."""
        starts: list[Start | None] = [self._result(seat, "reset") for seat in row.seats]
        first = next((start for start in starts if start is not None), None)
        if first is not None:
            task_id = first.task_id if first.task_id is not None else f"seed-{row.task.seed}"
            rendered = self.render(first)
            for seat, start in zip(row.seats, starts, strict=True):
                if start is not None and start != first:
                    raise EnvironmentFailure(
                        f"copies of one task differ: reset(seed={row.task.seed}, "
                        f"options={row.task.options}) gave the {difference(first, start)}; an environment "
                        "must draw its task from the seed alone"
                    )
                seat.lane.start(task_id, first.messages, rendered)
        row.begun = True

    def _take(self, seat: Seat, completion: Any) -> None:
        """Hand what the policy said to the environment."""
        if not isinstance(completion, Lost):
            seat.step(seat.lane.take(completion), self.patience_s)
        elif completion.limit is not None:
            seat.lane.truncate(completion.limit)
        else:
            self._fail(seat, completion.reason)

    def _step_answer(self, seat: Seat) -> None:
        answer: Answer | None = self._result(seat, "step")
        if answer is not None:
            seat.lane.answer(answer)

    def _result(self, seat: Seat, call: str) -> Any:
        """What the environment answered; None when it failed, and its lane with it."""
        answer, seat.answer = seat.answer, None
        assert answer is not None
        if not answer.done():
            self._fail(seat, f"{call} gave no answer in {self.timeout_s:g} s")
            return None
        try:
            return answer.result()
        except BadAnswer as error:
            self._fail(seat, str(error))
            return None

    def _fail(self, seat: Seat, error: str) -> None:
        """A failing environment or request loses its rollout; too many lose the run."""
        seat.lane.fail(error)
        self._errors.append(error)
        failed, total = len(self._errors), len(self.tasks) * self.copies
        # Rounded up, so that a small batch survives one failure; but not the failure of everything.
        allowed = math.ceil(self.max_error_share * total - 1e-9)
        if failed > allowed or (failed == total and self.max_error_share < 1):
            first = "; ".join(list(dict.fromkeys(self._errors))[:3])
            raise EnvironmentFailure(
                f"{failed} of {total} rollouts are lost to {self.culprits}, more than the allowed "
                f"share of {self.max_error_share:g}: {first}"
            )


def _await(seats: Collection[Seat], until: float, when: str = ALL_COMPLETED) -> None:
    left = min(max(0.0, until - time.monotonic()), threading.TIMEOUT_MAX)
    wait([seat.answer for seat in seats if seat.answer is not None], left, when)
