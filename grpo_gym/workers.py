"""One thread per environment: it is built, reset and stepped in the thread it lives in."""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import gymnasium

Ask = Callable[[gymnasium.Env[Any, Any]], Any]


class EnvWorker:
    """An environment in a thread of its own, so that a slow one holds nobody up.

    The thread is a daemon: an environment that never answers cannot keep the process alive.
    """

    def __init__(self, make: Callable[[], gymnasium.Env[Any, Any]]) -> None:
        self._inbox: queue.SimpleQueue[tuple[Future[Any], Ask] | None]
        self._inbox = queue.SimpleQueue()
        threading.Thread(target=self._serve, args=(make,), daemon=True, name="env").start()

    def reset(self, seed: int, options: dict[str, Any] | None) -> Future[Any]:
        """Ask for a reset; the future gives what the environment's `reset` returns."""
        return self._call(lambda env: env.reset(seed=seed, options=options))

    def step(self, action: str) -> Future[Any]:
        """Ask for a step; the future gives what the environment's `step` returns."""
        return self._call(lambda env: env.step(action))

    def close(self) -> None:
        """Close the environment once it has answered what it was asked."""
        self._inbox.put(None)

    def _call(self, ask: Ask) -> Future[Any]:
        future: Future[Any] = Future()
        self._inbox.put((future, ask))
        return future

    def _serve(self, make: Callable[[], gymnasium.Env[Any, Any]]) -> None:
        env: gymnasium.Env[Any, Any] | None = None
        while (request := self._inbox.get()) is not None:
            future, ask = request
            try:
                env = env or make()
                future.set_result(ask(env))
            # An environment is somebody's code: whatever it raises, SystemExit too, is its answer.
            except BaseException as error:
                future.set_exception(error)
        if env is not None:
            env.close()
