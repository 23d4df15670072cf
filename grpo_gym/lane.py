"""One rollout in the making: tokens are appended, never rewritten."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from grpo_gym.answers import Answer
from grpo_gym.engines.base import Request, Sampling
from grpo_gym.episode import Episode
from grpo_gym.rendering import Renderer
from grpo_gym.types import Completion, Message, Rollout, frozen_array


@dataclass(frozen=True)
class Limits:
    """How long a rollout may get.

    Attributes:
        turn_tokens: most tokens that one turn may sample.
        rollout_tokens: most tokens after the prompt, observations included; None for no limit of its own.
        context: most tokens in all; the engine's.
    """

    turn_tokens: int
    rollout_tokens: int | None
    context: int


@dataclass(eq=False)
class Lane(Episode):
    """An episode of a policy that is asked in token ids and samples token ids."""

    renderer: Renderer
    sampling: Sampling
    limits: Limits
    seed: tuple[int, ...]
    prompt_ids: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    mask: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    def start(self, task_id: str, prompt: tuple[Message, ...], rendered: list[int]) -> None:
        """Take the first observation; it is rendered as the prompt's ids."""
        self.task_id, self.prompt, self.prompt_ids = task_id, prompt, rendered

    def request(self, number: int) -> Request | None:
        """What to sample next, or None when no token fits any more: the rollout is then truncated."""
        room, limit = self._room()
        if room <= 0:
            self.truncate(limit)
            return None
        key = np.random.SeedSequence((*self.seed, len(self.turns)))
        return Request(
            id=number,
            prompt_ids=(*self.prompt_ids, *self.token_ids),
            sampling=replace(self.sampling, max_tokens=room),
            seed=int(key.generate_state(1, np.uint64)[0]),
        )

    def take(self, completion: Completion) -> str:
        """Append what was sampled; return it as the action for the environment."""
        limit = self._room()[1] if completion.finish_reason == "length" else None
        self.token_ids += completion.token_ids.tolist()
        self.mask += [True] * len(completion.token_ids)
        self.logprobs += completion.logprobs.tolist()
        self.versions += completion.token_versions.tolist()
        action = self.renderer.action(completion.token_ids.tolist())
        self.completions.append(completion)
        self._last = (action, limit)
        return action

    def rollout(self) -> Rollout:
        """The finished rollout."""
        return Rollout(
            prompt_ids=frozen_array(self.prompt_ids, np.int64),
            token_ids=frozen_array(self.token_ids, np.int64),
            mask=frozen_array(self.mask, np.bool_),
            logprobs=frozen_array(self.logprobs, np.float64),
            versions=frozen_array(self.versions, np.int64),
            **self._outcome(),
            **self._top_logprobs(),
        )

    def _room(self, more: int = 0) -> tuple[int, str]:
        """How many tokens may be sampled next, after `more` others, and the limit that says so."""
        used = len(self.token_ids) + more
        rooms = {"turn_tokens": self.limits.turn_tokens}
        if self.limits.rollout_tokens is not None:
            rooms["rollout_tokens"] = self.limits.rollout_tokens - used
        rooms["context"] = self.limits.context - len(self.prompt_ids) - used
        limit = min(rooms, key=lambda name: rooms[name])
        return rooms[limit], limit

    def _extend(self, answer: Answer) -> None:
        """Append what the environment said, unless no token would fit after it."""
        delta = self.renderer.extend(self.completions[-1].token_ids.tolist(), answer.messages)
        room, limit = self._room(len(delta))
        if room <= 0:
            self.truncate(limit)
            return
        self.token_ids += delta
        self.mask += [False] * len(delta)
        self.logprobs += [0.0] * len(delta)
        self.versions += [-1] * len(delta)

    def _top_logprobs(self) -> dict[str, Any]:
        """(T, K) ids and log-probs, 0 on tokens not sampled; nothing where the engine gave none."""
        count = self.sampling.top_logprobs
        if not count or any(c.top_ids is None for c in self.completions):
            return {}
        sampled = np.array(self.mask, dtype=np.bool_)
        ids = np.zeros((len(sampled), count), dtype=np.int64)
        logprobs = np.zeros(ids.shape)
        if self.completions:
            ids[sampled] = np.concatenate([c.top_ids for c in self.completions])
            logprobs[sampled] = np.concatenate([c.top_logprobs for c in self.completions])
        return {"top_ids": ids, "top_logprobs": logprobs}
