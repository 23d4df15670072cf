"""Running somebody's function for no longer than a given time."""

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from typing import Any


def run_within(function: Callable[[], Any], seconds: float | None) -> Any:
    """What `function` returns; a coroutine is run to its end.

    With a limit, or for a coroutine, it runs in a thread of its own, a daemon. Python cannot kill a
    thread: a function that is too late is left alone, goes on in the background, and its result is
    lost. A coroutine is cancelled first.

    Args:
        function: what to run.
        seconds: how long to wait; None for no limit.

    Raises:
        TimeoutError: It took longer.
        BaseException: Whatever the function raised, SystemExit too.
    """
    if seconds is None:
        result = function()
        if not inspect.isawaitable(result):
            return result
        # The caller's thread may have an event loop that is running, as in a notebook.
        return _in_thread(lambda: asyncio.run(_await(result, None)), None)
    return _in_thread(lambda: _finish(function(), seconds), seconds)


def _finish(result: Any, seconds: float) -> Any:
    return asyncio.run(_await(result, seconds)) if inspect.isawaitable(result) else result


async def _await(result: Awaitable[Any], seconds: float | None) -> Any:
    try:
        return await asyncio.wait_for(result, seconds)
    except TimeoutError as error:
        raise (error if str(error) else _late(seconds)) from None


def _in_thread(function: Callable[[], Any], seconds: float | None) -> Any:
    box: list[tuple[bool, Any]] = []

    def work() -> None:
        try:
            box.append((True, function()))
        except BaseException as error:  # it is raised in the thread that waits
            box.append((False, error))

    thread = threading.Thread(target=work, daemon=True, name="tool")
    thread.start()
    thread.join(seconds)
    if not box:
        raise _late(seconds)
    well, value = box[0]
    if not well:
        raise value
    return value


def _late(seconds: float | None) -> TimeoutError:
    return TimeoutError("no result in time" if seconds is None else f"no result in {seconds:g} s")
