"""Running somebody's function for no longer than a given time."""

import asyncio
import inspect
import queue
import threading
import weakref
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any


class Caller:
    """A thread that runs one function after another; a new one takes over when one is too late.

    The thread is a daemon, is started when it is first needed, and ends with the `Caller`. Python
    cannot kill a thread: a function that is too late is left alone, goes on in the background, and
    its result is lost.
    """

    def __init__(self) -> None:
        self._inbox: queue.SimpleQueue[Any] | None = None

    def run(self, function: Callable[[], Any], seconds: float | None) -> Any:
        """What `function` returns, or raises.

        Args:
            function: what to run.
            seconds: how long to wait; None for no limit.

        Raises:
            TimeoutError: It took longer.
        """
        if self._inbox is None:
            self._inbox = queue.SimpleQueue()
            weakref.finalize(self, self._inbox.put, None)
            threading.Thread(target=_serve, args=(self._inbox,), daemon=True, name="tool").start()
        future: Future[Any] = Future()
        self._inbox.put((function, future))
        try:
            return future.result(seconds)
        except TimeoutError:
            if future.done():
                raise  # the function's own
            self.close()
            raise _late(seconds) from None

    def close(self) -> None:
        """Let the thread end when it is done with what it is doing."""
        if self._inbox is not None:
            self._inbox.put(None)
            self._inbox = None


def run_within(
    function: Callable[[], Any], seconds: float | None, caller: Caller | None = None
) -> Any:
    """What `function` returns; a coroutine is run to its end, and cancelled when it is too late.

    Args:
        function: what to run.
        seconds: how long to wait; None to run it in this thread, without a limit.
        caller: whose thread it runs in; by default one of its own.

    Raises:
        TimeoutError: It took longer.
        BaseException: Whatever the function raised, SystemExit too.
    """
    if seconds is not None:
        return (caller or Caller()).run(lambda: _finish(function(), seconds), seconds)
    result = function()
    if not inspect.isawaitable(result):
        return result
    # The caller's thread may have an event loop that is running, as in a notebook.
    return Caller().run(lambda: _finish(result, None), None)


def _serve(inbox: "queue.SimpleQueue[Any]") -> None:
    while (item := inbox.get()) is not None:
        function, future = item
        try:
            future.set_result(function())
        except BaseException as error:  # it is raised in the thread that waits
            future.set_exception(error)
        del item, function, future  # hold nothing while waiting for the next


def _finish(result: Any, seconds: float | None) -> Any:
    return asyncio.run(_await(result, seconds)) if inspect.isawaitable(result) else result


async def _await(result: Awaitable[Any], seconds: float | None) -> Any:
    try:
        return await asyncio.wait_for(result, seconds)
    except TimeoutError as error:
        raise (error if str(error) else _late(seconds)) from None


def _late(seconds: float | None) -> TimeoutError:
    return TimeoutError("no result in time" if seconds is None else f"no result in {seconds:g} s")
