"""One call of the collector: rows of lanes are opened, played and closed.

A row is the G lanes of one task. Its environments are reset together and proved equal; from then on each
lane goes its own way: sample, step, sample, until it is over.
"""

import json
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from typing import Any

from grpo_gym.curriculum import TaskSpec
from grpo_gym.engines.base import Engine, Sampling
from grpo_gym.errors import UsageError
from grpo_gym.lane import Lane, Limits
from grpo_gym.rendering import Renderer
from grpo_gym.types import as_messages
from grpo_gym.workers import EnvWorker


class EnvironmentFailure(RuntimeError):
    """Too many environments failed, or the copies of a task were not copies."""


@dataclass(eq=False)
class Seat:
    """A lane, the worker its environment lives in, and the answer it waits for.

    Attributes:
        number: of the lane; names its requests.
        since: when the environment was asked.
        slow: whether it has once kept others waiting; it is not waited for again.
    """

    number: int
    lane: Lane
    worker: EnvWorker
    answer: Future[Any] | None = None
    since: float = 0.0
    slow: bool = False

    def ask(self, answer: Future[Any]) -> None:
        """Begin to wait for the environment."""
        self.answer, self.since = answer, time.monotonic()


@dataclass(eq=False)
class Row:
    """The seats of one task; `begun` once its environments are reset and proved equal."""

    task: TaskSpec
    seats: list[Seat]
    begun: bool = False

    @property
    def over(self) -> bool:
        """Whether every lane has ended."""
        return all(seat.lane.over for seat in self.seats)


@dataclass(eq=False)
class Session:
    """State of one call of `Collector.collect`; see there for what the fields mean."""

    tasks: Sequence[TaskSpec]
    seed: int
    engine: Engine
    renderer: Renderer
    sampling: Sampling
    limits: Limits
    copies: int
    max_lanes: int
    max_error_share: float
    timeout_s: float
    patience_s: float
    borrow: Callable[[], EnvWorker]
    give_back: Callable[[EnvWorker], None]
    _rows: list[Row] = field(default_factory=list)
    _open: list[Row] = field(default_factory=list)
    _failed: int = 0

    def play(self, progress: Callable[[int, int], None] | None) -> None:
        """Play every task to its end."""
        todo = deque(self.tasks)
        ended = 0
        while todo or self._open:
            while todo and (len(self._open) + 1) * self.copies <= max(self.max_lanes, self.copies):
                self._open_row(todo.popleft())
            self._wait()
            self._take_answers()
            for number, completion in self.engine.step() if self.engine.busy else ():
                seat = self._seat(number)
                seat.ask(seat.worker.step(seat.lane.take(completion)))
            for row in [row for row in self._open if row.begun and row.over]:
                self._close_row(row)
                ended += self.copies
                if progress is not None:
                    progress(ended, len(self.tasks) * self.copies)

    def lanes(self) -> list[list[Lane]]:
        """The lanes of every task, in the order of the tasks."""
        return [[seat.lane for seat in row.seats] for row in self._rows]

    def close(self) -> None:
        """Let go of the environments of rows that were interrupted."""
        for row in list(self._open):
            self._close_row(row)

    def _open_row(self, task: TaskSpec) -> None:
        first = len(self._rows) * self.copies
        seats = [
            Seat(
                first + copy,
                Lane(self.renderer, self.sampling, self.limits, (self.seed, task.index, copy)),
                self.borrow(),
            )
            for copy in range(self.copies)
        ]
        for seat in seats:
            seat.ask(seat.worker.reset(task.seed, task.options))
        self._rows.append(Row(task, seats))
        self._open.append(self._rows[-1])

    def _close_row(self, row: Row) -> None:
        self._open.remove(row)
        for seat in row.seats:
            if seat.answer is None and seat.lane.error is None:
                self.give_back(seat.worker)
            else:
                seat.worker.close()

    def _seat(self, number: int) -> Seat:
        return self._rows[number // self.copies].seats[number % self.copies]

    def _waiting(self) -> list[Seat]:
        return [seat for row in self._open for seat in row.seats if seat.answer is not None]

    def _wait(self) -> None:
        """Wait for environments: a moment for fast ones; for any, when there is nothing else to do.

        While nothing has been sampled yet, every reset is waited for, so that the first batch is the same
        in every run.
        """
        waiting = self._waiting()
        start = bool(waiting) and not self.engine.busy and not any(row.begun for row in self._open)
        fast = waiting if start else [seat for seat in waiting if not seat.slow]
        patience = self.timeout_s if start else min(self.patience_s, self.timeout_s)
        if fast:
            until = max(seat.since for seat in fast) + patience
            left = max(0.0, until - time.monotonic())
            _, late = wait([seat.answer for seat in fast if seat.answer is not None], left)
            for seat in fast:
                seat.slow = not start and seat.answer in late and not math.isinf(self.patience_s)
        if waiting and not self.engine.busy:
            left = min(seat.since for seat in waiting) + self.timeout_s - time.monotonic()
            answers = [seat.answer for seat in waiting if seat.answer is not None]
            wait(answers, max(0.0, left), return_when=FIRST_COMPLETED)

    def _take_answers(self) -> None:
        """Take what is there, in the order of the lanes, and ask the engine for more."""
        now = time.monotonic()
        speak: list[Seat] = []
        for row in self._open:
            if not row.begun and all(self._answered(seat, now) for seat in row.seats):
                self._begin(row)
                speak += row.seats
                continue
            for seat in row.seats if row.begun else ():
                if seat.answer is not None and self._answered(seat, now):
                    self._step_answer(seat)
                    speak.append(seat)
        requests = [seat.lane.request(seat.number) for seat in speak if not seat.lane.over]
        self.engine.submit([request for request in requests if request is not None])

    def _answered(self, seat: Seat, now: float) -> bool:
        assert seat.answer is not None
        return seat.answer.done() or now - seat.since >= self.timeout_s

    def _begin(self, row: Row) -> None:
        """Prove that the copies of a task are equal, and render their prompt once."""
        first: tuple[str, str] | None = None
        ids: list[int] = []
        for seat in row.seats:
            result = self._result(seat, "reset")
            if result is None:
                continue
            try:
                observation, info = result
                prompt = as_messages(observation)
                key = (
                    str(info.get("task_id", f"seed-{row.task.seed}")),
                    json.dumps(prompt, sort_keys=True),
                )
                if first is None:
                    first, ids = key, self.renderer.prompt(prompt)
            except (TypeError, ValueError, AttributeError) as error:
                if isinstance(error, UsageError):
                    raise
                self._fail(seat, f"reset gave no messages: {error}")
                continue
            if key != first:
                raise EnvironmentFailure(_difference(first, key, row.task))
            seat.lane.start(key[0], prompt, ids)
        for seat in row.seats:
            if first is not None and seat.lane.error is not None:
                seat.lane.start(first[0], (), ids)
        row.begun = True

    def _step_answer(self, seat: Seat) -> None:
        result = self._result(seat, "step")
        if result is None:
            return
        try:
            seat.lane.answer(*result)
        except UsageError:
            raise
        except (TypeError, ValueError, AttributeError) as error:
            self._fail(seat, f"step gave what cannot be used: {error}")

    def _result(self, seat: Seat, call: str) -> Any:
        """What the environment answered; None when it failed, and its lane with it."""
        answer = seat.answer
        assert answer is not None
        if not answer.done():
            self._fail(seat, f"{call} gave no answer in {self.timeout_s:g} s")
            return None
        seat.answer = None
        error = answer.exception()
        if isinstance(error, UsageError):
            raise error
        if error is not None:
            self._fail(seat, f"{call} raised {type(error).__name__}: {error}")
            return None
        return answer.result()

    def _fail(self, seat: Seat, error: str) -> None:
        """A failing environment loses its rollout; too many lose the run."""
        seat.lane.fail(error)
        self._failed += 1
        total = len(self.tasks) * self.copies
        if self._failed > self.max_error_share * total:
            raise EnvironmentFailure(
                f"{self._failed} of {total} rollouts are lost to failing environments, more than the "
                f"allowed share of {self.max_error_share:g}; the last: {error}"
            )


def _difference(first: tuple[str, str], other: tuple[str, str], task: TaskSpec) -> str:
    what, one, two = next(
        (what, one, two)
        for what, one, two in zip(("task id", "observation"), first, other, strict=True)
        if one != two
    )
    return (
        f"copies of one task differ: reset(seed={task.seed}, options={task.options}) gave the {what}s "
        f"{one[:100]} and {two[:100]}; an environment must draw its task from the seed alone"
    )
