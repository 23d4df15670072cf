"""Advantages of whole rollouts, relative to their group or batch.

All take (B,) rewards, nan where a rollout has none, and give (B,) float64.
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from grpo_gym.objectives.choices import at_least, one_of
from grpo_gym.objectives.reductions import (
    divided,
    group_centred,
    group_size,
    group_std,
    row_sum,
    std,
)
from grpo_gym.objectives.signals import Needs, Signals
from grpo_gym.objectives.stages import Advantage, AdvantageOf


@dataclass(frozen=True)
class GroupStandardised(Advantage):
    """A = (R - mean) / (std + eps) over the group. GRPO, arXiv 2402.03300, section 4.1.2.

    Attributes:
        ddof: 0 for the population's standard deviation, 1 for the unbiased one of TRL and verl.
        eps: added to the standard deviation.
    """

    ddof: int = 0
    eps: float = 1e-4

    def __post_init__(self) -> None:
        one_of("ddof", self.ddof, (0, 1))
        at_least("eps", self.eps, 0)

    def __call__(self, signals: Signals) -> Tensor:
        """See `Advantage`."""
        centred = group_centred(signals.rewards, signals.group)
        return divided(centred, group_std(centred, signals.group, self.ddof), self.eps)


@dataclass(frozen=True)
class GroupCentred(Advantage):
    """A = R - mean over the group. Dr. GRPO, arXiv 2503.20783."""

    def __call__(self, signals: Signals) -> Tensor:
        """See `Advantage`."""
        return group_centred(signals.rewards, signals.group)


@dataclass(frozen=True)
class BatchStandardised(Advantage):
    """A = (R - mean) / (std + eps) with a standard deviation over the whole batch.

    ScaleRL, arXiv 2510.13786: centre "group", scale "advantages". TRL's `scale_rewards="batch"`,
    arXiv 2508.08221: centre "group", scale "rewards". Centre "batch" is how some tutorials read
    them.

    Attributes:
        centre: "group" or "batch": whose mean is taken off.
        scale: "rewards" or "advantages": the spread of the rewards, or of the centred ones.
        ddof: 0 for the population's standard deviation, 1 for the unbiased one.
        eps: added to the standard deviation.
    """

    centre: Literal["group", "batch"] = "group"
    scale: Literal["rewards", "advantages"] = "advantages"
    ddof: int = 0
    eps: float = 1e-4

    def __post_init__(self) -> None:
        one_of("centre", self.centre, ("group", "batch"))
        one_of("scale", self.scale, ("rewards", "advantages"))
        one_of("ddof", self.ddof, (0, 1))
        at_least("eps", self.eps, 0)

    @property
    def min_group_size(self) -> int:
        """One where the group does not matter."""
        return 1 if self.centre == "batch" else 2

    def __call__(self, signals: Signals) -> Tensor:
        """See `Advantage`."""
        whole = torch.zeros_like(signals.group)
        group = whole if self.centre == "batch" else signals.group
        centred = group_centred(signals.rewards, group)
        spread = group_centred(signals.rewards, whole) if self.scale == "rewards" else centred
        return divided(centred, std(spread, self.ddof), self.eps)


@dataclass(frozen=True)
class LeaveOneOut(Advantage):
    """A_i = R_i - mean of the others' R, where R has lost kl * sum_t (log pi_old - log pi_ref).

    RLOO, arXiv 2402.14740.

    Attributes:
        kl: weight of the KL to the reference policy inside the reward.
    """

    kl: float = 0.0

    @property
    def needs(self) -> Needs:
        """Old and reference policy, where the reward holds a KL."""
        return Needs(old=self.kl != 0, reference=self.kl != 0)

    def __call__(self, signals: Signals) -> Tensor:
        """See `Advantage`."""
        rewards = signals.rewards
        if self.kl and signals.old is not None and signals.reference is not None:
            k1 = signals.old.double() - signals.reference.double()
            rewards = rewards - self.kl * row_sum(k1, signals.mask)[:, 0]
        size = group_size(rewards, signals.group)
        return group_centred(rewards, signals.group) * size / (size - 1).clamp(min=1)


@dataclass(frozen=True)
class Ordinal(Advantage):
    """A = h (1 - 2 (rank - 1) / (G - 1)), from h for the best of a group to -h for the worst.

    GOPO, arXiv 2602.03876.

    Attributes:
        half_range: h.
        ties: "average" gives equals the mean of their ranks; "first" ranks them by position, which
            is what the official code does, and gives a group of equals advantages that are pure
            noise.
    """

    half_range: float = 2.0
    ties: Literal["average", "first"] = "average"

    def __post_init__(self) -> None:
        one_of("ties", self.ties, ("average", "first"))

    def __call__(self, signals: Signals) -> Tensor:
        """See `Advantage`."""
        rewards, group = signals.rewards, signals.group
        peers = group[:, None] == group[None, :]
        better = (peers & (rewards[None, :] > rewards[:, None])).sum(1)
        equal = peers & (rewards[None, :] == rewards[:, None])
        before = equal.tril(-1).sum(1) if self.ties == "first" else (equal.sum(1) - 1) / 2
        size = group_size(rewards, group)
        share = (better + before) / (size - 1).clamp(min=1)
        return self.half_range * (1 - 2 * share).where(size > 1, 0.0)


@dataclass(frozen=True)
class RefSurprise(AdvantageOf):
    """A (1 - pi_ref(o_t)): another advantage, weighted by how unexpected the token was.

    A tutorial's reading of Dr. GRPO; nothing like it stands in the paper.

    Attributes:
        inner: the advantage that is weighted.
    """

    inner: Advantage

    @property
    def needs(self) -> Needs:
        """The reference policy."""
        return self.inner.needs | Needs(reference=True)

    def __call__(self, signals: Signals) -> Tensor:
        """See `Advantage`."""
        assert signals.reference is not None
        advantages = self.inner(signals)
        if advantages.ndim == 1:
            advantages = advantages[:, None]
        return advantages * (1 - signals.reference.double().exp())


def with_rewards(signals: Signals, rewards: Tensor) -> Signals:
    """The signals with other rewards; a rollout that was excluded stays so."""
    return replace(signals, rewards=rewards.where(~signals.rewards.isnan(), torch.nan))
