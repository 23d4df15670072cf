"""Ctrl-C and SIGTERM, heard only where stopping leaves nothing half done."""

import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self


class Interrupted(Exception):
    """The user asked to stop; the run can go on from the step that is saved."""

    def __init__(self, folder: Path, step: int) -> None:
        super().__init__(
            f"stopped; saved after step {step}; go on with: "
            f"grpo-gym train --run-dir {shlex.quote(str(folder))} --resume"
        )


@contextmanager
def not_dropped(forget: Callable[[], None] = lambda: None) -> Iterator[None]:
    """A Ctrl-C that comes within a destructor, where Python drops exceptions, comes again after it.

    Args:
        forget: called first, if the handler of the signal counts how often it came.
    """
    before, main = sys.unraisablehook, threading.main_thread().ident

    def on_dropped(dropped: "sys.UnraisableHookArgs") -> None:
        if issubclass(dropped.exc_type, KeyboardInterrupt):
            forget()
            threading.Timer(0.01, signal.pthread_kill, (main, signal.SIGINT)).start()
        else:
            before(dropped)

    sys.unraisablehook = on_dropped
    try:
        yield
    finally:
        sys.unraisablehook = before


class Interrupts:
    """While entered, a signal is remembered; inside `welcome` it raises `KeyboardInterrupt` at once.

    A second signal raises wherever it comes. Outside the main thread, where Python delivers no
    signals, nothing changes.

    Attributes:
        asked: a signal has come.
        twice: a second one has, so what was going on may be half done.
    """

    def __init__(self) -> None:
        self.asked = False
        self.twice = False
        self._welcome = False
        self._before: dict[int, Any] = {}
        self._opened = ExitStack()

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) == signal.SIG_IGN:
                    continue  # a background job of a script: Ctrl-C is not meant for it
                self._before[number] = signal.signal(number, self._on_signal)
            self._opened.enter_context(not_dropped(self._forget))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()
        self._opened.close()

    @contextmanager
    def welcome(self) -> Iterator[None]:
        """A signal in here raises `KeyboardInterrupt`, and so does one that came before."""
        self._welcome = True
        try:
            if self.asked:
                raise KeyboardInterrupt
            yield
        finally:
            self._welcome = False

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.twice = self.asked
        self.asked = True
        if self._welcome or self.twice:
            raise KeyboardInterrupt

    def _forget(self) -> None:
        self.asked = self.twice
