"""One thread per environment: it is built, reset and stepped in the thread it lives in."""

import copy
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

import gymnasium

from grpo_gym.answers import Answer, BadAnswer, Start, read_reset, read_step
from grpo_gym.errors import UsageError, in_a_line

Env = gymnasium.Env[Any, Any]
Result = TypeVar("Result")


class EnvWorker:
    """An environment in a thread of its own, so that a slow one holds nobody up.

    The thread is a daemon: an environment that never answers cannot keep the process alive.

    Attributes:
        seconds: how long the last "reset" and the last "step" took, building the environment aside.
    """

    def __init__(self, make: Callable[[], Env]) -> None:
        self.seconds: dict[str, float] = {}
        self._make = make
        self._env: Env | None = None
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, daemon=True, name="env")
        self._thread.start()

    def reset(self, seed: int, options: dict[str, Any] | None) -> Future[Start]:
        """Ask for a reset; the environment may do to `options` what it likes.

        The future raises `BadAnswer` when the environment raised, or returned what cannot be used; a
        `UsageError` stays one.
        """
        own = copy.deepcopy(options)
        return self._ask("reset", lambda env: read_reset(env.reset(seed=seed, options=own)))

    def step(self, action: str) -> Future[Answer]:
        """Ask for a step; the future is as for `reset`."""
        return self._ask("step", lambda env: read_step(env.step(action)))

    def close(self) -> None:
        """Have the environment closed once it has answered what it was asked; do not wait for it."""
        self._inbox.put(None)

    def join(self, seconds: float) -> None:
        """Wait until the environment is closed, but no longer than this."""
        self._thread.join(seconds)

    def _ask(self, call: str, ask: Callable[[Env], Result]) -> Future[Result]:
        future: Future[Result] = Future()
        self._inbox.put(lambda: self._answer(call, ask, future))
        return future

    def _serve(self) -> None:
        while (task := self._inbox.get()) is not None:
            task()
        # What an environment raises when it is closed concerns nobody any more.
        with suppress(BaseException):
            if self._env is not None:
                self._env.close()

    def _answer(self, call: str, ask: Callable[[Env], Result], future: Future[Result]) -> None:
        try:
            if self._env is None:
                self._env = self._make()
            started = time.monotonic()
            result = ask(self._env)
            self.seconds[call] = time.monotonic() - started
        except (UsageError, BadAnswer) as error:
            future.set_exception(error)
        # An environment is somebody's code: whatever it raises, SystemExit too, is its answer.
        except BaseException as error:
            future.set_exception(BadAnswer(f"{call} raised {in_a_line(error)}"))
        else:
            future.set_result(result)
