"""The conversation in the form of the API."""

import re
from collections.abc import Collection, Sequence
from typing import Any

from grpo_gym.chat.answer import ChatAnswer, NativeCall
from grpo_gym.engines.http_text import parsed
from grpo_gym.types import Message

_NOT_IN_A_NAME = re.compile(r"[^a-zA-Z0-9_-]")


def said(answer: ChatAnswer, tools: Collection[str] = ()) -> dict[str, Any]:
    """What the model said, as a message of the conversation that goes on.

    Args:
        answer: of the endpoint.
        tools: names of those that were offered.
    """
    message: dict[str, Any] = {"role": "assistant", "content": answer.content}
    if answer.calls:
        message["content"] = answer.content or None
        message["tool_calls"] = [_call(call, tools) for call in answer.calls]
    return message


def observed(messages: Sequence[Message], calls: Sequence[NativeCall] = ()) -> list[dict[str, Any]]:
    """What the environment said after a turn with these native calls.

    The API wants a message of role tool for each call, right after the turn, and none without a call:
    results of calls in a text format are then put as the chat templates of such models put them, into
    a message of the user.
    """
    waiting = list(calls)
    results: list[dict[str, Any]] = []
    others: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] != "tool" or "tool_call_id" in message:
            others.append(dict(message))
        elif waiting:
            results.append(_result(waiting.pop(0), message["content"]))
        else:
            text = f"<tool_response>\n{message['content']}\n</tool_response>"
            others.append({"role": "user", "content": text})
    results += [_result(call, "Error: this call was not run") for call in waiting]
    return results + others


def _result(call: NativeCall, content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call.id, "content": content}


def _call(call: NativeCall, tools: Collection[str]) -> dict[str, Any]:
    """A call that servers take back: many parse the arguments, and refuse what is no JSON object.

    What was wrong with the call stands in its result.
    """
    name = call.name
    if name not in tools:
        name = _NOT_IN_A_NAME.sub("_", name)[:64] or "unknown"
    arguments = call.arguments if _is_object(call.arguments) else "{}"
    return {"id": call.id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _is_object(text: str) -> bool:
    try:
        return isinstance(parsed(text.encode()), dict)
    except ValueError:
        return False
