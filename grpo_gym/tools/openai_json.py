"""Calls in the JSON of OpenAI's chat API."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from grpo_gym.tools.call import BadCall, Call, read_json, schemas
from grpo_gym.tools.function import AnyTool

_START = re.compile(r'\{\s*"tool_calls"\s*:')
_FORM = '{"tool_calls": [{"type": "function", "function": {"name": "NAME", "arguments": "{...}"}}]}'


@dataclass(frozen=True)
class OpenAICodec:
    """`{"tool_calls": [{"type": "function", "function": {"name": ..., "arguments": "{...}"}}]}`.

    The arguments are an object, or a string that holds its JSON, as the API has it.
    """

    def instructions(self, tools: Sequence[AnyTool]) -> str:
        """The form of a message with calls, and one JSON schema a line."""
        return f"To call tools, write {_FORM}\nTools:\n{schemas(tools)}"

    def render(self, call: Call) -> str:
        """A message with one call."""
        arguments = json.dumps(dict(call.arguments), ensure_ascii=False)
        function = {"name": call.name, "arguments": arguments}
        body = {"tool_calls": [{"type": "function", "function": function}]}
        return json.dumps(body, ensure_ascii=False)

    def parse(self, text: str, limit: int = 16) -> tuple[Call | BadCall, ...]:
        """At most `limit` calls, in order. Nothing is read in or after a message that is cut off."""
        calls: list[Call | BadCall] = []
        start = _START.search(text)
        while start is not None and len(calls) < limit:
            found, end = _read(text, start.start())
            calls += found
            start = _START.search(text, end)
        return tuple(calls[:limit])


def _read(text: str, start: int) -> tuple[list[Call | BadCall], int]:
    """The calls of the message at `start`, and where to look for the next message."""
    try:
        body, end = read_json(text, start)
    except ValueError as error:
        return [BadCall(f"the tool calls are not valid JSON ({error})")], len(text)
    items = body["tool_calls"]
    if not isinstance(items, list) or not items or len(body) > 1:
        return [BadCall(f"tool calls are written {_FORM}")], end
    return [_as_call(item) for item in items], end


def _as_call(item: object) -> Call | BadCall:
    form = BadCall(f"tool calls are written {_FORM}")
    function = item.get("function") if isinstance(item, dict) else None
    if not isinstance(item, dict) or not isinstance(function, dict):
        return form
    if set(item) - {"id", "type", "function"} or item.get("type", "function") != "function":
        return form
    name, arguments = function.get("name"), function.get("arguments", {})
    if set(function) - {"name", "arguments"} or not isinstance(name, str):
        return form
    if isinstance(arguments, str):
        try:
            arguments, end = read_json(arguments, 0)
        except ValueError as error:
            return BadCall(f"the arguments are not valid JSON ({error})")
        if function["arguments"][end:].strip():
            return BadCall("the arguments are not valid JSON (there is text after them)")
    return Call(name, arguments) if isinstance(arguments, dict) else form
