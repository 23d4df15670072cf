"""Reading what a server answers: JSON, an error in one line, a time to wait."""

import json
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from grpo_gym.errors import UsageError


class ServerError(UsageError):
    """A server cannot be reached, takes too long, or answers with an error or with nonsense.

    The message is one line and holds no key.

    Attributes:
        status: of the answer; None where there was none.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class Unreachable(ServerError):
    """No connection to a server can be made."""


class TooSlow(ServerError):
    """An answer did not come in time."""


def parsed(content: bytes) -> Any:
    """The JSON of an answer; None if it is empty.

    Raises:
        ValueError: It is something else.
    """
    if not content:
        return None
    try:
        return json.loads(content, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def one_line(text: str) -> str:
    """One line that can be printed."""
    return "".join(c if c.isprintable() else " " for c in " ".join(text.split()))


def error_message(content: bytes) -> str:
    """What an error's body says: OpenAI's form, FastAPI's, or its beginning."""
    text = content[:10_000].decode("utf-8", "replace")
    try:
        return said_in(json.loads(text))
    except (ValueError, RecursionError):
        return text


def said_in(found: Any) -> str:
    """What the JSON of an error says."""
    for name in ("error", "message", "detail"):
        if isinstance(found, dict) and found.get(name):
            found = found[name]
    return found if isinstance(found, str) else json.dumps(found)


def seconds_to_wait(retry_after: str | None) -> float:
    """A Retry-After header, seconds or a date, as seconds; 0 where it is neither."""
    if retry_after is None:
        return 0.0
    if retry_after.strip().isdecimal():
        return float(retry_after[:20])
    try:
        until = parsedate_to_datetime(retry_after)
        return max(0.0, (until - datetime.now(UTC)).total_seconds())
    except (OverflowError, TypeError, ValueError):
        return 0.0


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
