"""An engine that fails or hangs ends the run, with the reason: nothing waits for it for ever."""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar
from weakref import ref

from grpo_gym.engines.base import EngineFailure, EngineStopped, Speaker
from grpo_gym.errors import UsageError

AnyEngine = TypeVar("AnyEngine", bound=Speaker[Any, Any])


class Watchdog:
    """Watches the calls of an engine.

    What a call raises becomes an `EngineFailure`. A call that does not return ends the process, with status
    1 and a line on stderr: a thread that is stuck in C++ or waits for a device can be ended by nothing else.

    Args:
        limit_s: seconds that a call may take, inf for any number; while the process is stopped they do not
            count.

    Attributes:
        last_words: called before the process ends, in a thread of its own, while the engine's call is stuck;
            it may take as long as that. Returns what to add to the line.
    """

    def __init__(self, limit_s: float) -> None:
        self.last_words: Callable[[], str] = lambda: ""
        self._limit_s = limit_s
        self._tick_s = min(1.0, limit_s / 10)
        self._call: object | None = None
        self._seen: object | None = None  # the call that the thread counts the time of
        self._age_s = 0.0
        self._thread: threading.Thread | None = None
        # Held to the very end: a call that returns after all goes no further.
        self._lock = threading.Lock()

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Watch what is done within.

        Raises:
            EngineFailure: It raised something that is neither that nor for the user to mend.
        """
        with self._lock:
            self._call = object()
            if self._thread is None and self._limit_s < threading.TIMEOUT_MAX:
                self._seen, self._age_s = self._call, 0.0
                self._thread = threading.Thread(
                    target=_guard, args=(ref(self), self._tick_s), name="watchdog", daemon=True
                )
                self._thread.start()
        try:
            yield
        except (UsageError, EngineStopped, EngineFailure):
            raise
        except Exception as error:
            line = " ".join(str(error).split())
            raise EngineFailure(f"the engine failed: {type(error).__name__}: {line}") from error
        finally:
            with self._lock:
                self._call = None

    def _look(self, passed_s: float) -> bool:
        """Count the time of the call that goes on, until it has none left; whether one goes on."""
        with self._lock:
            if self._call is None:
                self._thread = self._seen = None
                return False
            if self._call is not self._seen:
                self._seen, self._age_s = self._call, 0.0
            else:
                self._age_s += min(passed_s, 2 * self._tick_s)
            if self._age_s >= self._limit_s:
                self._end()
            return True

    def _end(self) -> None:
        words: list[str] = []

        def speak() -> None:
            try:
                words.append(self.last_words())
            except Exception as error:
                words.append(f"nothing could be saved: {type(error).__name__}: {error}")

        speaker = threading.Thread(target=speak, daemon=True)
        speaker.start()
        speaker.join(self._limit_s)
        parts = [f"the engine gave no answer in {self._limit_s:g} s (engine_timeout_s)", *words]
        line = " ".join("; ".join(part for part in parts if part).split())
        print(f"grpo-gym: error: {line}", file=sys.stderr, flush=True)
        os._exit(1)


def _guard(watchdog: "ref[Watchdog]", tick_s: float) -> None:
    """Have it look at its clock, without keeping it and all that its last words are about."""
    going_on = True
    while going_on:
        before = time.monotonic()
        time.sleep(tick_s)
        dog = watchdog()
        going_on = dog is not None and dog._look(time.monotonic() - before)
        del dog


@contextmanager
def closing_engine(engine: AnyEngine, limit_s: float) -> Iterator[AnyEngine]:
    """Close the engine in the end; what went wrong before is told, not what goes wrong in consequence."""
    dog = Watchdog(limit_s)
    try:
        yield engine
    except BaseException:
        with suppress(EngineFailure, UsageError), dog.watch():
            engine.close()
        raise
    with dog.watch():
        engine.close()
