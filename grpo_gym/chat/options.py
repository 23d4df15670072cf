"""The arguments of an endpoint, `--engine-arg name=value`."""

import json
import os
from dataclasses import dataclass, field
from typing import Any, Literal

from grpo_gym.errors import UsageError

KEY_ENV = "OPENAI_API_KEY"

_OURS = frozenset(
    {
        *("model", "messages", "tools", "n", "stream", "stop", "seed", "temperature"),
        *("max_tokens", "max_completion_tokens", "top_p", "top_k", "min_p"),
    }
)
"""Fields that the run decides, by options of their own."""


@dataclass(frozen=True, kw_only=True)
class ChatOptions:
    """How an endpoint is asked.

    Attributes:
        concurrency: most requests in flight at once.
        token_budget: most tokens, of prompts and completions, that the run may use; None for no limit.
        timeout_s: seconds that one answer may take; the request is then sent once more.
        retries: how often a request is sent again after 429, an error of the server, or a connection
            that broke; 0: never.
        key_env: name of the environment variable that holds the API key.
        tools: "native" sends the schemas of an environment's tools, so that the model can call them in
            the API's own way; "text" leaves calls to the prompt, and results to the server's template.
        body: further fields of every request, such as {reasoning_effort = "low"}.

    Raises:
        UsageError: A value out of range, or a named variable that is not set.
    """

    concurrency: int = 16
    token_budget: int | None = None
    timeout_s: float = 600.0
    retries: int = 6
    key_env: str = KEY_ENV
    tools: Literal["native", "text"] = "native"
    body: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, least in (("concurrency", 1), ("token_budget", 1), ("retries", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise UsageError(f"{name} is {value}, but must be at least {least}")
        if not 0 < self.timeout_s < float("inf"):
            raise UsageError(f"timeout_s is {self.timeout_s}, but must be a finite number above 0")
        if self.key_env != KEY_ENV and not os.environ.get(self.key_env):
            raise UsageError("key_env names an environment variable that is not set")
        try:
            json.dumps(self.body, allow_nan=False)
        except ValueError as error:
            raise UsageError("body holds a number that JSON does not have") from error
        ours = sorted(_OURS & set(self.body))
        if ours:
            raise UsageError(f"body cannot set {', '.join(ours)}: the run's own options do")
