"""Ctrl-C and SIGTERM, heard only where stopping leaves nothing half done."""

import shlex
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
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

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) == signal.SIG_IGN:
                    continue  # a background job of a script: Ctrl-C is not meant for it
                self._before[number] = signal.signal(number, self._on_signal)
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
            self._welcome = False
            raise KeyboardInterrupt
