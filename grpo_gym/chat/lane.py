"""An episode with an endpoint: messages are appended, and kept as messages."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from grpo_gym.answers import Answer
from grpo_gym.chat.answer import ChatAnswer, NativeCall
from grpo_gym.chat.messages import observed, said
from grpo_gym.chat.tools import write_action
from grpo_gym.engines.base import Sampling
from grpo_gym.episode import Episode
from grpo_gym.types import Completion, FloatArray, IntArray, Message, Rollout, frozen_array

_NO_IDS: IntArray = frozen_array([], np.int64)
_NO_LOGPROBS: FloatArray = frozen_array([], np.float64)

Tools = tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class ChatRequest:
    """One turn to be said.

    Attributes:
        id: names the request in the answer.
        messages: the conversation so far, in the form of the API.
        tools: schemas of the tools that may be called.
        sampling: how tokens are drawn.
        seed: of the draws; below 2**31, which every server takes.
    """

    id: int
    messages: tuple[dict[str, Any], ...]
    tools: Tools
    sampling: Sampling
    seed: int


@dataclass(eq=False)
class ChatLane(Episode):
    """An episode of a policy that is asked in messages and says text.

    Attributes:
        sampling: how tokens are drawn.
        rollout_tokens: most tokens after the prompt, as far as the endpoint has counted them: an
            observation counts when it has been sent.
        seed: of the draws.
        native_tools: whether tools are called in the API's own way; else results keep their role, and
            the template that the server fills in has the word.
    """

    sampling: Sampling
    rollout_tokens: int | None
    seed: tuple[int, ...]
    native_tools: bool = True
    messages: list[dict[str, Any]] = field(default_factory=list)
    tools: Tools = ()
    _used: int = 0
    _sampled: int = 0
    _answer: ChatAnswer | None = None

    def start(self, task_id: str, prompt: tuple[Message, ...], rendered: Tools) -> None:
        """Take the first observation; what is rendered of it is the tools."""
        self.task_id, self.prompt, self.tools = task_id, prompt, rendered
        self.messages = self._observed(prompt, ())

    def request(self, number: int) -> ChatRequest | None:
        """What to ask next, or None when no token may be sampled any more."""
        room, limit = self._room()
        if room <= 0:
            self.truncate(limit)
            return None
        key = np.random.SeedSequence((*self.seed, len(self.turns)))
        return ChatRequest(
            id=number,
            messages=tuple(self.messages),
            tools=self.tools,
            sampling=replace(self.sampling, max_tokens=room),
            seed=int(key.generate_state(1, np.uint32)[0] >> 1),
        )

    def take(self, completion: ChatAnswer) -> str:
        """Append what was said; return it as the action for the environment."""
        limit = self._room()[1] if completion.finish_reason == "length" else None
        usage = completion.usage
        if self._answer is not None:  # what stands between the turns is what the environment said
            self._used += max(0, usage.prompt_tokens - self._answer.usage.tokens)
        self._used += usage.completion_tokens
        self._sampled += usage.completion_tokens
        self._answer = completion
        names = {tool["function"]["name"] for tool in self.tools}
        self.messages.append(said(completion, names))
        self.completions.append(
            Completion(
                _NO_IDS,
                _NO_LOGPROBS,
                completion.finish_reason,
                counted_tokens=usage.completion_tokens,
            )
        )
        action = write_action(completion.content, completion.calls)
        self._last = (action, limit)
        return action

    def rollout(self) -> Rollout:
        """The finished rollout: text, and the number of tokens."""
        return Rollout(
            prompt_ids=_NO_IDS,
            token_ids=_NO_IDS,
            mask=frozen_array([], np.bool_),
            logprobs=_NO_LOGPROBS,
            versions=_NO_IDS,
            counted_tokens=self._sampled,
            **self._outcome(),
        )

    def _room(self) -> tuple[int, str]:
        """How many tokens may be sampled next, and the limit that says so."""
        if (
            self.rollout_tokens is None
            or self.rollout_tokens - self._used > self.sampling.max_tokens
        ):
            return self.sampling.max_tokens, "turn_tokens"
        return self.rollout_tokens - self._used, "rollout_tokens"

    def _extend(self, answer: Answer) -> None:
        assert self._answer is not None
        self.messages += self._observed(answer.messages, self._answer.calls)
        self.tools = answer.tools

    def _observed(
        self, messages: tuple[Message, ...], calls: tuple[NativeCall, ...]
    ) -> list[dict[str, Any]]:
        if self.native_tools or calls:
            return observed(messages, calls)
        return [dict(message) for message in messages]
