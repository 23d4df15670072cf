"""Exceptions as data: what one side raised, raised again on the other."""

import builtins
from typing import Any


class ProgramError(Exception):
    """The program raised an exception of a type of its own."""


def failure(error: Exception) -> dict[str, Any]:
    """The answer that says what was raised."""
    return {"error": type(error).__name__, "message": str(error)[:1000]}


def exception(name: str, message: str) -> Exception:
    """The builtin exception of this name, or `ProgramError`."""
    kind = getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        try:
            return kind(message)
        except TypeError:  # UnicodeDecodeError and its like take more arguments
            return ProgramError(f"{name}: {message}")
    return ProgramError(f"{name}: {message}")
