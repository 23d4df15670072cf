"""One rollout in the making: tokens are appended, never rewritten."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from grpo_gym.answers import Answer
from grpo_gym.engines.base import Request, Sampling
from grpo_gym.rendering import Renderer
from grpo_gym.types import Completion, Message, Rollout, Turn, frozen_array


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
    completions: list[Completion] = field(default_factory=list)
    _last: tuple[str, str | None] = ("", None)

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
        self.completions.append(completion)
        self._last = (action, limit)
        return action

    def answer(self, answer: Answer) -> None:
        """Take what the environment answered to the last action."""
        completion = self.completions[-1]
        action, limit = self._last
        self.turns.append(Turn(completion, action, answer.messages, answer.reward))
        self.reward += answer.reward
        for name, value in answer.components.items():
            self.components[name] = self.components.get(name, 0.0) + value
        self.success = answer.success
        if answer.terminated and limit is None:
            self.terminated = True
        elif answer.terminated:  # what was cut off might have changed the verdict
            self.truncate(str(limit))
        elif answer.truncation is not None:
            self.truncate(answer.truncation)
        else:
            self._extend(completion, answer.messages)

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
            terminated=self.terminated,
            truncated=self.truncation is not None,
            truncation=self.truncation,
            error=self.error,
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

    def _extend(self, completion: Completion, messages: tuple[Message, ...]) -> None:
        """Append what the environment said, unless no token would fit after it."""
        delta = self.renderer.extend(completion.token_ids.tolist(), messages)
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
