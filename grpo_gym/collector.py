"""Tasks in, groups out: G copies of each task are played at once, each lane on its own."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import gymnasium

from grpo_gym.answers import Start
from grpo_gym.config import SamplingOptions
from grpo_gym.curriculum import TaskSpec
from grpo_gym.engines.base import Engine, EngineFailure, EngineStopped, Sampling, Speaker
from grpo_gym.engines.watchdog import Watchdog
from grpo_gym.episode import Episode
from grpo_gym.errors import UsageError
from grpo_gym.lane import Lane, Limits
from grpo_gym.rendering import Renderer
from grpo_gym.session import EnvironmentFailure, Session
from grpo_gym.types import Group
from grpo_gym.workers import EnvWorker

# Seconds that `Collector.close` waits for environments to close.
_CLOSING_S = 5.0

INTERRUPTED = "interrupted"
"""How the reason begins why a collection stopped at Ctrl-C."""


@dataclass(frozen=True)
class CollectorOptions:
    """How rollouts are collected.

    Attributes:
        group_size: copies of each task, G.
        rollout_tokens: most tokens after the prompt, observations included; None for no limit but the
            context.
        max_lanes: most rollouts in play at once; a group is opened when there is room for all of it, or
            when nothing else is in play.
        max_error_share: share of the rollouts of one call that may be lost to failing environments,
            rounded up, so that a small batch survives one failure. Below 1, the loss of every rollout
            is never allowed.
        env_timeout_s: seconds an environment may take for one answer before its rollout is lost.
        engine_timeout_s: seconds the engine may take for one step before the process is ended.
        patience_s: seconds that generation waits for an environment that has just been asked, unless its
            last answer took longer. Fast environments then always rejoin at the same point, which keeps
            runs reproducible; slow ones hold nobody up. `inf` makes every run reproducible, at the pace
            of the slowest environment.
    """

    group_size: int
    rollout_tokens: int | None = None
    max_lanes: int = 256
    max_error_share: float = 0.1
    env_timeout_s: float = 300.0
    engine_timeout_s: float = 3600.0
    patience_s: float = 0.02


@dataclass(frozen=True)
class Collection:
    """What one call of `Collector.collect` brought.

    Attributes:
        groups: in the order of the tasks; a task all of whose copies failed in `reset` has none.
        failures: number of rollouts lost to failing environments.
        tokens: number of tokens sampled in them.
        seconds: wall-clock time it took.
        stopped: why the rest was not played, if the policy could not go on; the groups then hold the
            rollouts that had ended.
    """

    groups: tuple[Group, ...]
    failures: int
    tokens: int
    seconds: float
    stopped: str | None = None


class BaseCollector(ABC):
    """Plays groups of rollouts through environments with one policy.

    Environments live in threads and are reused from one call to the next. Requests join those in
    flight as soon as their environment has answered, and leave them as soon as they are complete. An
    environment that fails, or does not answer in time, loses its own rollout: `error` says why, and the
    reward is nan.

    Args:
        make_env: builds an environment.
        engine: what speaks for the policy.
        sampling: how tokens are drawn.
        options: how rollouts are collected.

    Attributes:
        watchdog: watches the engine.
    """

    culprits = "failing environments"

    def __init__(
        self,
        make_env: Callable[[], gymnasium.Env[Any, Any]],
        engine: Speaker[Any, Any],
        sampling: Sampling,
        options: CollectorOptions,
    ) -> None:
        self.engine = engine
        self.watchdog = Watchdog(options.engine_timeout_s)
        self._make_env = make_env
        self._sampling = sampling
        self._options = options
        self._idle: list[EnvWorker] = []

    @property
    def group_size(self) -> int:
        """Copies of each task, G."""
        return self._options.group_size

    def collect(
        self,
        tasks: Sequence[TaskSpec],
        seed: int,
        progress: Callable[[int, int], None] | None = None,
    ) -> Collection:
        """Play G copies of every task.

        Args:
            tasks: what each group is reset with.
            seed: with the task's index, the copy and the turn it decides every random draw.
            progress: called with the number of rollouts that have ended, and their number in all.

        Raises:
            EnvironmentFailure: Copies of one task differ, or more environments failed than
                `max_error_share` allows.
            UsageError: No prompt so far fits the model's context, or an environment raised it.
            EngineFailure: The engine failed.
        """
        collection = self._play(tasks, seed, progress)
        if collection.stopped is None:
            self._check(collection.groups)
        return collection

    def _play(
        self, tasks: Sequence[TaskSpec], seed: int, progress: Callable[[int, int], None] | None
    ) -> Collection:
        started = time.perf_counter()
        session = Session(
            tasks=tasks,
            seed=seed,
            engine=self.engine,
            watchdog=self.watchdog,
            new_lane=self._new_lane,
            render=self._render,
            copies=self._options.group_size,
            max_lanes=self._options.max_lanes,
            max_error_share=self._options.max_error_share,
            timeout_s=self._options.env_timeout_s,
            patience_s=self._options.patience_s,
            borrow=self._borrow,
            give_back=self._idle.append,
            culprits=self.culprits,
        )
        stopped = None
        try:
            session.play(progress)
        except (EngineStopped, EnvironmentFailure, KeyboardInterrupt) as error:
            stopped = self._reason(error)
            if stopped is None:
                raise
        finally:
            with (
                suppress(EngineFailure, UsageError),
                self.watchdog.watch(),
            ):  # what broke it says more
                self.engine.abort()
            session.close()
        lanes = session.lanes()
        ended = ([lane for lane in row if lane.task_id and lane.over] for row in lanes)
        groups = tuple(
            Group(row[0].task_id, tuple(lane.rollout() for lane in row)) for row in ended if row
        )
        return Collection(
            groups=groups,
            failures=sum(lane.error is not None for row in lanes for lane in row),
            tokens=sum(rollout.sampled_tokens for group in groups for rollout in group.rollouts),
            seconds=time.perf_counter() - started,
            stopped=stopped,
        )

    def close(self) -> None:
        """Close the environments, and wait a moment for those that take their time."""
        for worker in self._idle:
            worker.close()
        until = time.monotonic() + _CLOSING_S
        while self._idle:
            self._idle.pop().join(max(0.0, until - time.monotonic()))

    def cost(self) -> str | None:
        """What was paid for so far, in a line; None where nothing is."""
        return None

    @abstractmethod
    def _new_lane(self, seed: tuple[int, ...]) -> Episode:
        """A rollout to be played, from the seed of its draws."""

    @abstractmethod
    def _render(self, start: Start) -> Any:
        """What the copies of a task share, from what `reset` brought."""

    @abstractmethod
    def _check(self, groups: Sequence[Group]) -> None:
        """Refuse rollouts that mean nothing."""

    def _reason(self, error: BaseException) -> str | None:
        """Why the play stopped, where what has ended is to be kept; None: the error goes on."""
        return str(error) if isinstance(error, EngineStopped) else None

    def _borrow(self) -> EnvWorker:
        return self._idle.pop() if self._idle else EnvWorker(self._make_env)


class Collector(BaseCollector):
    """Plays groups of rollouts with an engine that takes and gives token ids.

    Args:
        make_env: builds an environment.
        engine: samples the tokens.
        renderer: turns messages into token ids.
        sampling: how tokens are drawn.
        options: how rollouts are collected.
    """

    engine: Engine

    def __init__(
        self,
        make_env: Callable[[], gymnasium.Env[Any, Any]],
        engine: Engine,
        renderer: Renderer,
        sampling: Sampling,
        options: CollectorOptions,
    ) -> None:
        super().__init__(make_env, engine, sampling, options)
        self._renderer = renderer
        self._some_prompt_fits = False

    def _new_lane(self, seed: tuple[int, ...]) -> Episode:
        limits = Limits(
            self._sampling.max_tokens, self._options.rollout_tokens, self.engine.context_length
        )
        return Lane(self._renderer, self._sampling, limits, seed)

    def _render(self, start: Start) -> list[int]:
        return self._renderer.prompt(start.messages)

    def _check(self, groups: Sequence[Group]) -> None:
        lengths = {group.task_id: len(group.rollouts[0].prompt_ids) for group in groups}
        context = self.engine.context_length
        self._some_prompt_fits |= any(length < context for length in lengths.values())
        if lengths and not self._some_prompt_fits:
            shortest = min(lengths, key=lambda task_id: lengths[task_id])
            raise UsageError(
                f"no prompt fits the model's context of {context} tokens, not even that of task "
                f"{shortest!r} with its {lengths[shortest]}: use a model with a longer context, or "
                "shorter tasks"
            )


def collector_settings(
    config: SamplingOptions, copies: int, stop_token_ids: tuple[int, ...]
) -> tuple[Sampling, CollectorOptions]:
    """What a collector needs, from the options of a run."""
    sampling = Sampling(
        temperature=config.temperature,
        top_p=config.top_p,
        top_k=config.top_k,
        min_p=config.min_p,
        max_tokens=config.max_tokens,
        stop=config.stop,
        stop_token_ids=stop_token_ids,
    )
    options = CollectorOptions(
        group_size=copies,
        rollout_tokens=config.rollout_tokens,
        max_lanes=config.max_lanes,
        max_error_share=config.max_error_share,
        env_timeout_s=config.env_timeout_s,
        engine_timeout_s=config.engine_timeout_s,
        patience_s=config.patience_s,
    )
    return sampling, options
