"""What the stages of an agent read: the signals of a batch, and what the policy says about it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from grpo_gym.types import Batch, Rollout

Metrics = dict[str, tuple[Tensor, Tensor]]
"""Named (sum, count) pairs of detached scalars; add the pairs of micro-batches, then divide."""


@dataclass(frozen=True)
class Needs:
    """What has to be computed for an agent.

    Attributes:
        old: log-probs of the old policy before `credit`, even with one optimiser step per batch.
        reference: log-probs of the reference policy.
        behaviour: log-probs that the engine reported.
        entropy: entropy of the policy being trained, with gradient, in `Outputs`.
        old_entropy: entropy of the old policy on the whole batch, in `Signals`, before `credit`.
        top_logprobs: K > 0: the behaviour policy's K most probable tokens, and the trained policy's
            log-probs of the same tokens.
        critic: values of a critic, old ones in `Signals`, new ones in `Outputs`.
        turns: turn of each token and reward of each turn; `Signals.from_batch` gives them.
    """

    old: bool = False
    reference: bool = False
    behaviour: bool = False
    entropy: bool = False
    old_entropy: bool = False
    top_logprobs: int = 0
    critic: bool = False
    turns: bool = False

    def __or__(self, other: "Needs") -> "Needs":
        """What either needs."""
        return Needs(
            **{f.name: max(getattr(self, f.name), getattr(other, f.name)) for f in fields(Needs)}
        )


class Rows:
    """A record whose tensors all have one row per rollout."""

    def rows(self, index: Any) -> Self:
        """The same record for some rows; `index` is anything that indexes a tensor's first axis."""
        return self._map(lambda tensor: tensor[index])

    def to(self, device: torch.device | str) -> Self:
        """The same record on another device."""
        return self._map(lambda tensor: tensor.to(device))

    def _map(self, change: Any) -> Self:
        tensors = {
            f.name: change(getattr(self, f.name))
            for f in fields(self)  # type: ignore[arg-type]
            if isinstance(getattr(self, f.name), Tensor)
        }
        return replace(self, **tensors)  # type: ignore[type-var]


@dataclass(frozen=True, eq=False)
class Signals(Rows):
    """The tensors of a batch, or of some of its rows: B rows, T positions after the prompt.

    Values where `mask` is False are never read, whatever they are.

    Attributes:
        mask: (B, T) bool, True exactly on sampled tokens.
        group: (B,) int64, index of the group; rows of one group share it.
        rewards: (B,) float64; nan where a rollout cannot be scored.
        truncated: (B,) bool, a limit was hit.
        tokens: (B, T) int64 token ids.
        components: (B, K) float64 parts of the reward; nan where one does not apply.
        component_names: the K names.
        old: (B, T) log-probs of the old policy; None where one optimiser step is taken per batch:
            the old policy is then the policy itself.
        behaviour: (B, T) log-probs that the engine reported; nan where it reported none.
        reference: (B, T) log-probs of the reference policy.
        entropy: (B, T) entropy of the old policy.
        values: (B, T) values of the critic before the update.
        turn: (B, T) int64 index of the turn that a sampled token belongs to; -1 elsewhere.
        turn_rewards: (B, U) float64 reward of each turn; 0 after the last one.
        behaviour_top_ids: (B, T, K) int64 the behaviour policy's most probable tokens.
        behaviour_top_logprobs: (B, T, K) their log-probs.
    """

    mask: Tensor
    group: Tensor
    rewards: Tensor
    truncated: Tensor
    tokens: Tensor | None = None
    components: Tensor | None = None
    component_names: tuple[str, ...] = ()
    old: Tensor | None = None
    behaviour: Tensor | None = None
    reference: Tensor | None = None
    entropy: Tensor | None = None
    values: Tensor | None = None
    turn: Tensor | None = None
    turn_rewards: Tensor | None = None
    behaviour_top_ids: Tensor | None = None
    behaviour_top_logprobs: Tensor | None = None

    @classmethod
    def from_batch(cls, batch: Batch, dtype: torch.dtype = torch.float32) -> "Signals":
        """The signals that a collected batch carries; log-probs in `dtype`, rewards in float64."""
        rollouts = batch.rollouts
        names = tuple(sorted({name for r in rollouts for name in r.reward_components}))
        parts = [[r.reward_components.get(name, np.nan) for name in names] for r in rollouts]
        turn, turn_rewards = _turns(rollouts, batch.mask)
        tops = all(r.top_ids is not None for r in rollouts)
        return cls(
            mask=torch.from_numpy(batch.mask.copy()),
            group=torch.from_numpy(batch.group.copy()),
            rewards=torch.from_numpy(batch.rewards.copy()),
            truncated=torch.tensor([r.truncated for r in rollouts]),
            tokens=torch.from_numpy(batch.padded("token_ids", 0)),
            components=torch.tensor(parts, dtype=torch.float64) if names else None,
            component_names=names,
            behaviour=torch.from_numpy(batch.padded("logprobs", 0.0)).to(dtype),
            turn=torch.from_numpy(turn),
            turn_rewards=torch.from_numpy(turn_rewards),
            behaviour_top_ids=torch.from_numpy(batch.padded("top_ids", 0)) if tops else None,
            behaviour_top_logprobs=(
                torch.from_numpy(batch.padded("top_logprobs", 0.0)).to(dtype) if tops else None
            ),
        )


def _turns(rollouts: tuple[Rollout, ...], mask: Any) -> tuple[Any, Any]:
    """(B, T) turn of each sampled token and (B, U) reward of each turn."""
    turn = np.full(mask.shape, -1, dtype=np.int64)
    rewards = np.zeros((len(rollouts), max(1, *(len(r.turns) for r in rollouts))))
    for row, rollout in enumerate(rollouts):
        lengths = [len(t.completion.token_ids) for t in rollout.turns] or [rollout.sampled_tokens]
        turn[row, mask[row]] = np.repeat(np.arange(len(lengths)), lengths)
        rewards[row, : len(rollout.turns)] = [t.reward for t in rollout.turns]
        # What shaping added to the whole rollout is known only at its end.
        rewards[row, len(lengths) - 1] += rollout.reward - rewards[row].sum()
    return turn, rewards


@dataclass(frozen=True, eq=False)
class Credit(Rows):
    """What each token has earned, computed once on the whole batch.

    Attributes:
        advantages: (B, T) float64; 0 where `mask` is False.
        mask: (B, T) bool, the tokens that enter the loss: sampled, possible under the old policy,
            and not of a row that the agent masks.
        returns: (B, T) float64, targets of the critic, where there is one.
        keep: (B, T) bool, tokens whose surrogate counts (others stay in the denominator); None:
            all.
        metrics: (sum, count) pairs about the whole batch.
    """

    advantages: Tensor
    mask: Tensor
    returns: Tensor | None = None
    keep: Tensor | None = None
    metrics: Mapping[str, tuple[Tensor, Tensor]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Outputs(Rows):
    """What the policy being trained says about some rows.

    Attributes:
        logprobs: (B, T) log-probs of the tokens at the sampling temperature, with gradient.
        entropy: (B, T) entropy of the distribution at each position, with gradient.
        top_logprobs: (B, T, K) log-probs of `Signals.behaviour_top_ids`, without gradient.
        values: (B, T) values of the critic, with gradient.
    """

    logprobs: Tensor
    entropy: Tensor | None = None
    top_logprobs: Tensor | None = None
    values: Tensor | None = None
