"""What an endpoint answers, checked: a server may send anything."""

import json
from dataclasses import dataclass
from typing import Any

from grpo_gym.engines.http_text import said_in
from grpo_gym.types import FinishReason

_LONGEST_ID = 200
_THOUGHT = ("thinking", "redacted_thinking", "reasoning")
_CUT = frozenset({"length", "max_tokens", "model_length"})
_WHOLE = frozenset(
    {"stop", "tool_calls", "function_call", "tool_use", "end_turn", "eos_token", "stop_sequence"}
)
"""Reasons for which servers end an answer: OpenAI's, and what others write in their place."""


class BadAnswer(Exception):
    """An answer that cannot be used; the message says why, in a line."""


@dataclass(frozen=True)
class NativeCall:
    """A tool call in the API's own form.

    Attributes:
        id: names the call in the message with its result.
        name: of the tool.
        arguments: JSON, as the model wrote it: it may be none.
    """

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Usage:
    """Tokens that a request used, as the endpoint counts them."""

    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def tokens(self) -> int:
        """Both together."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True)
class ChatAnswer:
    """What a model said in one turn.

    Attributes:
        content: its text; a refusal is text too. What it thought is not in it.
        calls: tools that it calls.
        finish_reason: "length" where a limit cut it.
        usage: the tokens it took.
    """

    content: str
    calls: tuple[NativeCall, ...]
    finish_reason: FinishReason
    usage: Usage


def read_usage(body: Any) -> Usage:
    """The tokens that an answer took.

    Raises:
        BadAnswer: It does not say, or is an error that was sent as an answer.
    """
    if isinstance(body, dict) and body.get("error"):
        raise BadAnswer(f"the endpoint answers with an error: {said_in(body)}")
    usage = body.get("usage") if isinstance(body, dict) else None
    counts = (
        [usage.get(name) for name in ("prompt_tokens", "completion_tokens")]
        if isinstance(usage, dict)
        else [None]
    )
    if not all(type(count) is int and 0 <= count < 2**40 for count in counts):
        raise BadAnswer("the endpoint's answer has no usage, so its tokens cannot be counted")
    return Usage(*counts)


def read_answer(body: Any, usage: Usage, hidden: str = "") -> ChatAnswer:
    """What the model said.

    Args:
        body: the answer's JSON.
        usage: of this answer.
        hidden: a text that must not get into rollouts, wherever it comes from; "" for none.

    Raises:
        BadAnswer: There is no message of the expected form, or it broke off, such as by a filter.
    """
    choices = body.get("choices") if isinstance(body, dict) else None
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or not isinstance(message, dict):
        raise BadAnswer("the endpoint's answer has no choices with a message")
    content = _content(message.get("content")) or _content(message.get("refusal"))
    return ChatAnswer(
        content=_cleaned(content, hidden),
        calls=_calls(message.get("tool_calls"), hidden),
        finish_reason=_finish(choice.get("finish_reason")),
        usage=usage,
    )


def _finish(said: Any) -> FinishReason:
    """Why the answer ended; some servers do not say. One that broke off is none to be judged."""
    reason = "stop" if said is None else str(said)
    if reason == "content_filter":
        raise BadAnswer("the endpoint's content filter cut the answer")
    if reason.lower() not in _CUT | _WHOLE:
        raise BadAnswer(f"the endpoint ended the answer with the reason {reason!r}")
    return "length" if reason.lower() in _CUT else "stop"


def _content(content: Any) -> str:
    """Text, or the texts of a list of parts, but for those that the model only thought."""
    if content is None:
        return ""
    parts = content if isinstance(content, list) else [content]
    parts = [
        part for part in parts if not (isinstance(part, dict) and part.get("type") in _THOUGHT)
    ]
    texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
    known = [text for text in texts if isinstance(text, str)]
    if len(known) < len(texts):
        raise BadAnswer("the endpoint's answer has a message whose content is no text")
    return "".join(known)


def _calls(calls: Any, hidden: str) -> tuple[NativeCall, ...]:
    if not calls:
        return ()
    if not isinstance(calls, list):
        raise BadAnswer("the endpoint's answer has tool_calls that are no list")
    given = [call.get("id") if isinstance(call, dict) else None for call in calls]
    ids = [id for id in given if isinstance(id, str) and 0 < len(id) <= _LONGEST_ID]
    if len(set(ids)) < len(calls):
        ids = [f"call_{number}" for number in range(len(calls))]
    return tuple(
        _call(call, _cleaned(id, hidden), hidden) for call, id in zip(calls, ids, strict=True)
    )


def _call(call: Any, id: str, hidden: str) -> NativeCall:
    """One call; what the model got wrong in it is left for the environment to tell the model."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise BadAnswer("the endpoint's answer has tool_calls that name no function")
    name, arguments = function.get("name"), function.get("arguments")
    if isinstance(arguments, dict):  # as some servers send them
        arguments = json.dumps(arguments)
    if not isinstance(arguments, str | None):
        raise BadAnswer("the endpoint's answer has a tool call whose arguments are no text")
    return NativeCall(
        id=id,
        name=_cleaned(name, hidden) if isinstance(name, str) else "",
        arguments=_cleaned(arguments or "{}", hidden),
    )


def _cleaned(text: str, hidden: str) -> str:
    """A text without lone surrogates, which no file takes, and without what is to stay hidden."""
    text = text.encode("utf-8", "replace").decode("utf-8")
    return text.replace(hidden, "***") if hidden else text
