"""Frozen records that travel between the layers; each checks its invariants when it is built."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Required, TypedDict

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]


class Message(TypedDict, total=False):
    """One chat message. `role` and `content` are always there; the tool fields may be."""

    role: Required[str]
    content: Required[str]
    name: str
    tool_calls: list[dict[str, Any]]
    tool_call_id: str


Observation = str | tuple[Message, ...]
"""What an environment emits: the new messages, or a string, which counts as one user message."""

FinishReason = Literal["stop", "length"]


def frozen_array(values: Any, dtype: type) -> npt.NDArray[Any]:
    """A read-only copy of `values` as an array of `dtype`."""
    array: npt.NDArray[Any] = np.array(values, dtype=dtype)
    array.setflags(write=False)
    return array


def as_messages(observation: Observation) -> tuple[Message, ...]:
    """An observation as messages: a string becomes one user message."""
    if isinstance(observation, str):
        return (Message(role="user", content=observation),)
    return tuple(observation)


@dataclass(frozen=True, eq=False)
class Completion:
    """What a policy sampled in one turn.

    Attributes:
        token_ids: (n,) sampled ids, the end-of-turn token included when it was sampled.
        logprobs: (n,) log-probability of each at the sampling temperature, of the distribution that was
            really sampled from; nan where the engine reports none.
        finish_reason: "stop" (end-of-turn token or stop string) or "length" (a token limit).
        version: version of the policy that sampled, at the end.
        top_ids: (n, K) ids of the K most probable tokens at each position, when they were asked for.
        top_logprobs: (n, K) their log-probabilities.
        counted_tokens: how many tokens there were, where only their number is known: n is then 0.
        versions: (n,) version that sampled each token, where weights came meanwhile; None: all are of
            `version`.
    """

    token_ids: IntArray
    logprobs: FloatArray
    finish_reason: FinishReason
    version: int = 0
    top_ids: IntArray | None = None
    top_logprobs: FloatArray | None = None
    counted_tokens: int | None = None
    versions: IntArray | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "token_ids", frozen_array(self.token_ids, np.int64))
        object.__setattr__(self, "logprobs", frozen_array(self.logprobs, np.float64))
        if self.token_ids.shape != self.logprobs.shape or self.token_ids.ndim != 1:
            raise ValueError(
                f"a completion needs one log-prob per token, got shapes {self.token_ids.shape} "
                f"and {self.logprobs.shape}"
            )
        if self.counted_tokens is not None and (self.counted_tokens < 0 or self.token_ids.size):
            raise ValueError("tokens are counted, by a number of at least 0, or known: not both")
        if self.versions is not None:
            object.__setattr__(self, "versions", frozen_array(self.versions, np.int64))
            if self.versions.shape != self.token_ids.shape:
                raise ValueError(
                    f"a completion of {len(self.token_ids)} tokens has {self.versions.size} versions"
                )
        if (self.top_ids is None) != (self.top_logprobs is None):
            raise ValueError("top_ids and top_logprobs come together")
        if self.top_ids is not None:
            object.__setattr__(self, "top_ids", frozen_array(self.top_ids, np.int64))
            object.__setattr__(self, "top_logprobs", frozen_array(self.top_logprobs, np.float64))

    @property
    def token_versions(self) -> IntArray:
        """(n,) version of the policy that sampled each token."""
        if self.versions is not None:
            return self.versions
        return np.full(len(self.token_ids), self.version, np.int64)


@dataclass(frozen=True, eq=False)
class Turn:
    """One action and what the environment answered."""

    completion: Completion
    action: str
    observation: tuple[Message, ...]
    reward: float


@dataclass(frozen=True, eq=False)
class Rollout:
    """One episode: P prompt tokens, then T tokens of completions and observations.

    Attributes:
        task_id: the task that was played.
        prompt_ids: (P,) tokens before the first sampled one.
        token_ids: (T,) everything after the prompt.
        mask: (T,) True exactly on sampled tokens.
        logprobs: (T,) of the behaviour policy at the sampling temperature; 0 where the mask is False, nan
            where the engine reported none.
        versions: (T,) policy version that sampled the token; -1 where the mask is False.
        prompt: the messages of the first observation.
        turns: the conversation as text.
        reward: sum of the turns' rewards; nan if it cannot be scored.
        reward_components: named parts of the reward, summed over the turns.
        success: whether the task was solved; None if the environment does not say.
        terminated: the task ended.
        truncated: a limit was hit; `truncation` names it.
        error: what the environment raised, if it did; the reward is then nan.
        top_ids: (T, K) the behaviour policy's K most probable tokens, when they were asked for.
        top_logprobs: (T, K) their log-probabilities.
        counted_tokens: how many tokens were sampled, where only their number is known, as of an
            endpoint that gives text: P and T are then 0, and nothing can be trained on it.
    """

    task_id: str
    prompt_ids: IntArray
    token_ids: IntArray
    mask: BoolArray
    logprobs: FloatArray
    versions: IntArray
    prompt: tuple[Message, ...] = ()
    turns: tuple[Turn, ...] = ()
    reward: float = 0.0
    reward_components: Mapping[str, float] = field(default_factory=dict)
    success: bool | None = None
    terminated: bool = False
    truncated: bool = False
    truncation: str | None = None
    error: str | None = None
    top_ids: IntArray | None = None
    top_logprobs: FloatArray | None = None
    counted_tokens: int | None = None

    def __post_init__(self) -> None:
        for name, dtype in (
            ("prompt_ids", np.int64),
            ("token_ids", np.int64),
            ("mask", np.bool_),
            ("logprobs", np.float64),
            ("versions", np.int64),
        ):
            object.__setattr__(self, name, frozen_array(getattr(self, name), dtype))
        length = len(self.token_ids)
        for name in ("mask", "logprobs", "versions"):
            if getattr(self, name).shape != (length,):
                raise ValueError(
                    f"rollout of {self.task_id!r}: {name} has shape {getattr(self, name).shape}, "
                    f"but there are {length} tokens"
                )
        if self.terminated and self.truncated:
            raise ValueError(f"rollout of {self.task_id!r} is both terminated and truncated")
        if self.truncated != (self.truncation is not None):
            raise ValueError(
                f"rollout of {self.task_id!r}: truncated={self.truncated}, "
                f"but truncation={self.truncation!r}"
            )
        if np.any(self.versions[self.mask] < 0) or np.any(self.versions[~self.mask] != -1):
            raise ValueError(
                f"rollout of {self.task_id!r}: every sampled token, and no other, has a version"
            )
        if np.any(self.logprobs[self.mask] > 0) or np.any(self.logprobs[~self.mask] != 0):
            raise ValueError(
                f"rollout of {self.task_id!r}: log-probs are at most 0, and 0 on tokens not sampled"
            )
        if self.error is not None and not np.isnan(self.reward):
            raise ValueError(f"rollout of {self.task_id!r} failed, so its reward must be nan")
        if self.counted_tokens is not None and (length or len(self.prompt_ids)):
            raise ValueError(f"rollout of {self.task_id!r}: tokens are counted or known, not both")
        if (self.top_ids is None) != (self.top_logprobs is None):
            raise ValueError(f"rollout of {self.task_id!r}: top_ids and top_logprobs come together")

    @property
    def sampled_tokens(self) -> int:
        """Number of tokens that the policy sampled."""
        return int(self.mask.sum()) if self.counted_tokens is None else self.counted_tokens


@dataclass(frozen=True, eq=False)
class Group:
    """The G rollouts of one task."""

    task_id: str
    rollouts: tuple[Rollout, ...]

    def __post_init__(self) -> None:
        if not self.rollouts:
            raise ValueError(f"group of {self.task_id!r} has no rollouts")
        first = self.rollouts[0]
        for rollout in self.rollouts:
            if rollout.task_id != self.task_id:
                raise ValueError(
                    f"group of {self.task_id!r} holds a rollout of task {rollout.task_id!r}"
                )
            if not np.array_equal(rollout.prompt_ids, first.prompt_ids):
                raise ValueError(f"group of {self.task_id!r} holds two different prompts")

    @property
    def rewards(self) -> FloatArray:
        """(G,) rewards; nan where a rollout cannot be scored."""
        return np.array([rollout.reward for rollout in self.rollouts])


@dataclass(frozen=True, eq=False)
class Batch:
    """N groups, B rollouts, whole groups together and in order.

    The arrays are padded on the right to the longest rollout, T columns; padding has mask False. A group's
    prompt is stored once, in `groups`.
    """

    groups: tuple[Group, ...]

    def __post_init__(self) -> None:
        if not self.groups:
            raise ValueError("a batch needs at least one group")
        for rollout in self.rollouts:
            if rollout.counted_tokens is not None:
                raise ValueError(
                    f"rollout of {rollout.task_id!r} has text and no token ids, as an endpoint gives "
                    "it: it can be evaluated, not trained on"
                )

    @cached_property
    def rollouts(self) -> tuple[Rollout, ...]:
        """The B rollouts, group after group."""
        return tuple(rollout for group in self.groups for rollout in group.rollouts)

    @cached_property
    def group(self) -> IntArray:
        """(B,) index of each rollout's group."""
        sizes = [len(group.rollouts) for group in self.groups]
        return np.repeat(np.arange(len(sizes), dtype=np.int64), sizes)

    @cached_property
    def lengths(self) -> IntArray:
        """(B,) tokens after the prompt, observations included."""
        return np.array([len(rollout.token_ids) for rollout in self.rollouts], dtype=np.int64)

    def padded(self, name: str, fill: float) -> npt.NDArray[Any]:
        """(B, T) or (B, T, K): attribute `name` of every rollout, padded on the right with `fill`."""
        rows: Sequence[npt.NDArray[Any]] = [getattr(rollout, name) for rollout in self.rollouts]
        width = int(self.lengths.max(initial=0))
        out = np.full((len(rows), width, *rows[0].shape[1:]), fill, dtype=rows[0].dtype)
        for row, values in zip(out, rows, strict=True):
            row[: len(values)] = values
        return out

    @cached_property
    def mask(self) -> BoolArray:
        """(B, T) True exactly on sampled tokens."""
        return self.padded("mask", False)

    @cached_property
    def rewards(self) -> FloatArray:
        """(B,) rewards; nan where a rollout cannot be scored."""
        return np.array([rollout.reward for rollout in self.rollouts])
