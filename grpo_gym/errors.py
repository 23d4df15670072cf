"""Errors that are the user's to mend, and what others' code raised in a line."""

import traceback
from pathlib import Path


class UsageError(ValueError):
    """A mistake in what the user gave: an option, a file, a model, an environment.

    The message is one line that says what is wrong, where, and what to do. The command line prints it
    without a traceback and exits with status 2; from Python it is an ordinary exception.
    """


def in_a_line(error: BaseException) -> str:
    """What somebody's code raised, as a line that says where; an error that cannot be told does no harm."""
    text = " ".join("".join(traceback.format_exception_only(error)).split())[:300]
    frames = traceback.extract_tb(error.__traceback__)[1:]  # the first is who called the code
    places = [
        f"{Path(f.filename).name}:{f.lineno}" for f in frames if "importlib" not in f.filename
    ]
    return f"{text} ({places[-1]})" if places else text
