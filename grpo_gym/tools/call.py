"""A tool call as read from the model's text, and what a text format of calls can do."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from grpo_gym.tools.function import AnyTool


@dataclass(frozen=True)
class Call:
    """A tool call that could be read.

    Attributes:
        name: of the tool.
        arguments: by the names of the parameters.
        untyped: whether every argument is text, as the format does not tell 3 from "3"; the tool's
            types then decide.
    """

    name: str
    arguments: Mapping[str, Any]
    untyped: bool = False


@dataclass(frozen=True)
class BadCall:
    """A tool call that could not be read, and why. It is never run."""

    reason: str


class Codec(Protocol):
    """The text format of tool calls."""

    def instructions(self, tools: Sequence[AnyTool]) -> str:
        """What the system message says of the tools, and of how to call them."""
        ...

    def parse(self, text: str, limit: int) -> tuple[Call | BadCall, ...]:
        """At most `limit` calls in `text`, in order; () when there is none. Never raises."""
        ...

    def render(self, call: Call) -> str:
        """A call as text, the inverse of `parse`.

        Raises:
            UsageError: The format cannot write this call.
        """
        ...


def schemas(tools: Sequence[AnyTool]) -> str:
    """The JSON schema of each tool, one a line."""
    return "\n".join(json.dumps(tool.schema, ensure_ascii=False) for tool in tools)


def read_json(text: str, start: int) -> tuple[Any, int]:
    """The JSON value that begins at or after `start`, spaces aside, and where it ends.

    NaN, infinities and objects that name a key twice are not JSON here.

    Raises:
        ValueError: There is none; the message is for whoever wrote the text.
    """
    start = skip_spaces(text, start)
    try:
        return _DECODER.raw_decode(text, start)
    except json.JSONDecodeError as error:
        raise ValueError(error.msg) from None
    except RecursionError:
        raise ValueError("nested too deeply") from None


def skip_spaces(text: str, start: int) -> int:
    """Where the next character that is no space stands."""
    while text[start : start + 1].isspace():
        start += 1
    return start


def _reject(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key occurs twice")
    return found


_DECODER = json.JSONDecoder(parse_constant=_reject, object_pairs_hook=_distinct)
