"""Calls as Hermes and Qwen write them: JSON between tags."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from grpo_gym.tools.call import BadCall, Call, read_json, schemas, skip_spaces
from grpo_gym.tools.function import AnyTool

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


@dataclass(frozen=True)
class HermesCodec:
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, the form of Hermes and Qwen."""

    def instructions(self, tools: Sequence[AnyTool]) -> str:
        """The form of a call, and one JSON schema a line."""
        form = self.render(Call("NAME", {})).replace("{}", "{...}")
        return f"To call a tool, write {form}\nTools:\n{schemas(tools)}"

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
    try:
        body, end = read_json(text, start)
    except ValueError as error:
        close = text.find(_CLOSE, start)
        if close < 0:
            return BadCall(f"the call is not closed by {_CLOSE}"), len(text)
        return BadCall(f"the call is not valid JSON ({error})"), close
    end = skip_spaces(text, end)
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
