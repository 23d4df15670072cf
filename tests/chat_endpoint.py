"""An endpoint in this process whose model is a function, and what evaluates against it."""

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from grpo_gym.chat import ChatCollector, ChatEngine, ChatOptions
from grpo_gym.collector import CollectorOptions
from grpo_gym.engines.base import Sampling
from tests.loopback import Asked, Reply, serving
from tests.playing import Fake

Policy = Callable[[dict[str, Any]], Any]
"""From the body of a request to a text, a body, or a Reply."""


def said(
    content: Any = "",
    calls: Any = None,
    finish: str = "stop",
    prompt_tokens: int = 10,
    completion_tokens: int = 5,
) -> dict[str, Any]:
    """The body of an answer."""
    message = {"role": "assistant", "content": content}
    if calls is not None:
        message["tool_calls"] = calls
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens}
    choice = {"index": 0, "message": message, "finish_reason": finish}
    return {"id": "x", "object": "chat.completion", "choices": [choice], "usage": usage}


def call(name: str, arguments: Any, id: Any = "call-a") -> dict[str, Any]:
    """A native tool call; `arguments` are made JSON unless they are text."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"id": id, "type": "function", "function": {"name": name, "arguments": text}}


@dataclass
class Endpoint:
    """What was asked of it, and the most requests that it saw at once."""

    url: str = ""
    asked: list[Asked] = field(default_factory=list)
    most: int = 0

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [asked.body for asked in self.asked]


@contextmanager
def endpoint(policy: Policy, models: Any = ("m", "another")) -> Iterator[Endpoint]:
    """An endpoint that answers by a policy, and lists models (None: 404)."""
    here, lock, now = Endpoint(), threading.Lock(), 0

    def answer(asked: Asked) -> Reply:
        nonlocal now
        if asked.path == "/v1/models":
            if models is None:
                return Reply({"error": "no"}, 404)
            return Reply({"object": "list", "data": [{"id": name} for name in models]})
        if asked.path != "/v1/chat/completions":
            return Reply({"error": f"no {asked.path}"}, 404)
        with lock:
            here.asked.append(asked)
            now += 1
            here.most = max(here.most, now)
        try:
            reply = policy(asked.body)
        finally:
            with lock:
                now -= 1
        if isinstance(reply, str):
            reply = said(reply)
        return reply if reply is None or isinstance(reply, Reply) else Reply(reply)

    with serving(answer) as url:
        here.url = f"{url}/v1"
        yield here


@contextmanager
def playing(
    url: str,
    make: Callable[[], Any] = Fake,
    *,
    copies: int = 1,
    rollout_tokens: int | None = None,
    max_error_share: float = 0.1,
    sampling: Sampling | None = None,
    **options: Any,
) -> Iterator[ChatCollector]:
    """A collector that plays with the endpoint's model; `options` are those of `ChatOptions`."""
    engine = ChatEngine(url, "m", ChatOptions(**options))
    settings = CollectorOptions(
        copies, rollout_tokens=rollout_tokens, max_error_share=max_error_share
    )
    collector = ChatCollector(make, engine, sampling or Sampling(max_tokens=64), settings)
    try:
        yield collector
    finally:
        collector.close()
        engine.close()


@contextmanager
def talking(
    policy: Policy, make: Callable[[], Any] = Fake, **options: Any
) -> Iterator[tuple[Endpoint, ChatCollector]]:
    """An endpoint with a policy, and a collector that plays with it."""
    with endpoint(policy) as here, playing(here.url, make, **options) as collector:
        yield here, collector


def question(body: dict[str, Any]) -> str:
    """The arithmetic in the first message of the user."""
    text = next(m["content"] for m in body["messages"] if m["role"] == "user")
    return re.findall(r"[-\d+*/(). ]{3,}", text)[0].strip().rstrip(".")


def solve(body: dict[str, Any]) -> str:
    """The boxed answer of an arithmetic task."""
    return f"\\boxed{{{eval(question(body))}}}"


def solve_with_native_calls(body: dict[str, Any]) -> Any:
    """Call the calculator in the API's own way, then box what it said."""
    last = body["messages"][-1]
    if last["role"] == "tool":
        return f"\\boxed{{{last['content']}}}"
    return said(None, [call("calculator", {"expression": question(body)})], "tool_calls")


def solve_with_text_calls(body: dict[str, Any]) -> Any:
    """Call the calculator in the text format that the prompt teaches, then box what it said."""
    last = body["messages"][-1]["content"]
    if "<tool_response>" in last:
        return f"\\boxed{{{last.split()[1]}}}"
    arguments = {"name": "calculator", "arguments": {"expression": question(body)}}
    return f"<tool_call>{json.dumps(arguments)}</tool_call>"
