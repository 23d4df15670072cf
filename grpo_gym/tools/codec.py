"""How a tool call is written in the model's text, and how it is read back."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from grpo_gym.tools.function import Tool


@dataclass(frozen=True)
class Call:
    """A tool call that could be read."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class BadCall:
    """A tool call that could not be read, and why. It is never run."""

    reason: str


class Codec(Protocol):
    """The text format of tool calls."""

    def instructions(self, tools: Sequence[Tool]) -> str:
        """What the system message says of the tools, and of how to call them."""
        ...

    def parse(self, text: str, limit: int) -> tuple[Call | BadCall, ...]:
        """At most `limit` calls in `text`, in order; () when there is none. Never raises."""
        ...

    def render(self, call: Call) -> str:
        """A call as text, the inverse of `parse`."""
        ...


_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


@dataclass(frozen=True)
class HermesCodec:
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, the form of Hermes and Qwen."""

    def instructions(self, tools: Sequence[Tool]) -> str:
        """The form of a call, and one JSON schema a line."""
        schemas = "\n".join(json.dumps(tool.schema, ensure_ascii=False) for tool in tools)
        form = self.render(Call("NAME", {})).replace("{}", "{...}")
        return f"To call a tool, write {form}\nTools:\n{schemas}"

    def render(self, call: Call) -> str:
        """A call between its tags."""
        body = {"name": call.name, "arguments": dict(call.arguments)}
        return f"{_OPEN}{json.dumps(body, ensure_ascii=False)}{_CLOSE}"

    def parse(self, text: str, limit: int = 16) -> tuple[Call | BadCall, ...]:
        """At most `limit` calls, in order. An unclosed one, cut off as it may be, is a bad one."""
        calls: list[Call | BadCall] = []
        at = text.find(_OPEN)
        while at >= 0 and len(calls) < limit:
            call, end = _read(text, at + len(_OPEN))
            calls.append(call)
            at = text.find(_OPEN, end)
        return tuple(calls)


def _read(text: str, start: int) -> tuple[Call | BadCall, int]:
    """One call whose opening tag ends at `start`, and where to look for the next.

    The JSON comes first and the closing tag after it, so that a tag inside a string is only text.
    """
    while text[start : start + 1].isspace():
        start += 1
    try:
        body, end = _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError) as error:
        close = text.find(_CLOSE, start)
        if close < 0:
            return BadCall(f"the call is not closed by {_CLOSE}"), len(text)
        reason = error.msg if isinstance(error, json.JSONDecodeError) else type(error).__name__
        return BadCall(f"the call is not valid JSON ({reason})"), close
    while text[end : end + 1].isspace():
        end += 1
    if not text.startswith(_CLOSE, end):
        return BadCall(f"the call is not closed by {_CLOSE}"), end
    return _as_call(body), end + len(_CLOSE)


def _as_call(body: object) -> Call | BadCall:
    form = 'a call is {"name": ..., "arguments": {...}}'
    if not isinstance(body, dict):
        return BadCall(f"{form}, not {type(body).__name__}")
    name, arguments = body.get("name"), body.get("arguments", {})
    if (
        not isinstance(name, str)
        or not isinstance(arguments, dict)
        or set(body) - {"name", "arguments"}
    ):
        return BadCall(form)
    return Call(name, arguments)


def _reject(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_reject)
