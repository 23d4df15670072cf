"""One rollout in the making: tokens are appended, never rewritten."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from grpo_gym.engines.base import Request, Sampling
from grpo_gym.rendering import Renderer
from grpo_gym.types import Completion, Message, Rollout, Turn, as_messages, frozen_array


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
class Lane:
    """State of one rollout while it is played.

    `start` gives it the first observation, then `request`, `take` and `answer` follow each other until
    `over`; `rollout` is the result.
    """

    renderer: Renderer
    sampling: Sampling
    limits: Limits
    seed: tuple[int, ...]
    task_id: str = ""
    prompt: tuple[Message, ...] = ()
    prompt_ids: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    mask: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    components: dict[str, float] = field(default_factory=dict)
    reward: float = 0.0
    success: bool | None = None
    terminated: bool = False
    truncation: str | None = None
    error: str | None = None
    _last: tuple[Completion, str, str | None] | None = None

    def start(self, task_id: str, prompt: tuple[Message, ...], prompt_ids: list[int]) -> None:
        """Take the first observation, already rendered."""
        self.task_id, self.prompt, self.prompt_ids = task_id, prompt, prompt_ids

    @property
    def over(self) -> bool:
        """Whether the rollout has ended, for whatever reason."""
        return self.terminated or self.truncation is not None or self.error is not None

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
        self.versions += [completion.version] * len(completion.token_ids)
        action = self.renderer.action(completion.token_ids.tolist())
        self._last = (completion, action, limit)
        return action

    def answer(
        self,
        observation: Any,
        reward: Any,
        terminated: bool,
        truncated: bool,
        info: Mapping[str, Any],
    ) -> None:
        """Take what the environment answered to the last action."""
        assert self._last is not None, "answer() follows take()"
        completion, action, limit = self._last
        messages = as_messages(observation)
        self.turns.append(Turn(completion, action, messages, float(reward)))
        self.reward += float(reward)
        for name, value in info.get("reward_components", {}).items():
            self.components[name] = self.components.get(name, 0.0) + float(value)
        if terminated or truncated:
            success = info.get("success")
            self.success = None if success is None else bool(success)
        if terminated and limit is None:
            self.terminated = True
        elif terminated:
            self.truncate(str(limit))
        elif truncated:
            self.truncate(str(info.get("truncation") or "environment"))
        elif limit in ("rollout_tokens", "context"):
            self.truncate(limit)
        else:
            self._extend(completion, messages)

    def truncate(self, limit: str) -> None:
        """End the rollout because a limit was hit."""
        self.truncation = limit
        if not self.turns:
            self.reward = float("nan")
        if self.success is None:
            self.success = False

    def fail(self, error: str) -> None:
        """End the rollout because its environment failed; it then counts for nothing."""
        self.error, self.reward = error, float("nan")

    def rollout(self) -> Rollout:
        """The finished rollout."""
        top = [turn.completion for turn in self.turns]
        return Rollout(
            task_id=self.task_id,
            prompt_ids=frozen_array(self.prompt_ids, np.int64),
            token_ids=frozen_array(self.token_ids, np.int64),
            mask=frozen_array(self.mask, np.bool_),
            logprobs=frozen_array(self.logprobs, np.float64),
            versions=frozen_array(self.versions, np.int64),
            prompt=self.prompt,
            turns=tuple(self.turns),
            reward=self.reward,
            reward_components=dict(self.components),
            success=self.success,
            terminated=self.terminated and self.error is None,
            truncated=self.truncation is not None,
            truncation=self.truncation,
            error=self.error,
            **self._top_logprobs(top),
        )

    def _room(self) -> tuple[int, str]:
        used = len(self.token_ids)
        rooms = {"turn_tokens": self.limits.turn_tokens}
        if self.limits.rollout_tokens is not None:
            rooms["rollout_tokens"] = self.limits.rollout_tokens - used
        rooms["context"] = self.limits.context - len(self.prompt_ids) - used
        limit = min(rooms, key=lambda name: rooms[name])
        return rooms[limit], limit

    def _extend(self, completion: Completion, messages: tuple[Message, ...]) -> None:
        delta = self.renderer.extend(completion.token_ids.tolist(), messages)
        self.token_ids += delta
        self.mask += [False] * len(delta)
        self.logprobs += [0.0] * len(delta)
        self.versions += [-1] * len(delta)
        room, limit = self._room()
        if room <= 0:
            keep = len(self.token_ids) - len(delta)
            del self.token_ids[keep:], self.mask[keep:], self.logprobs[keep:], self.versions[keep:]
            self.truncate(limit)

    def _top_logprobs(self, completions: list[Completion]) -> dict[str, Any]:
        if not self.sampling.top_logprobs or not completions:
            return {}
        sampled = np.array(self.mask, dtype=np.bool_)
        ids = np.zeros((len(sampled), self.sampling.top_logprobs), dtype=np.int64)
        logprobs = np.zeros(ids.shape)
        ids[sampled] = np.concatenate([c.top_ids for c in completions if c.top_ids is not None])
        logprobs[sampled] = np.concatenate(
            [c.top_logprobs for c in completions if c.top_logprobs is not None]
        )
        return {"top_ids": ids, "top_logprobs": logprobs}
