"""Advantages of tokens and of turns; all give (B, T) float64."""

from dataclasses import dataclass

import torch
from torch import Tensor

from grpo_gym.objectives.reductions import group_size, group_sum, masked
from grpo_gym.objectives.signals import Needs, Signals
from grpo_gym.objectives.stages import Advantage, AdvantageOf


def last_token(mask: Tensor) -> Tensor:
    """(B, T) bool, True on the last True position of each row."""
    return mask & (mask.flip(1).cumsum(1).flip(1) == 1)


def token_rewards(signals: Signals, kl: float) -> Tensor:
    """(B, T) float64: -kl (log pi_old - log pi_ref) on each token, the reward on the last one.

    "Last" means the last sampled token: a reward on a masked position would be lost.
    """
    rewards = masked(signals.rewards.double()[:, None], last_token(signals.mask))
    if kl and signals.old is not None and signals.reference is not None:
        k1 = masked(signals.old.double() - signals.reference.double(), signals.mask)
        rewards = rewards - kl * k1
    return rewards


def discounted(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float) -> Tensor:
    """(B, T) generalised advantage over the sampled tokens; others are passed over.

    GAE, arXiv 1506.02438. With values 0 and lam 1 it is the discounted sum of the rewards to come.
    """
    advantages = torch.zeros_like(rewards)
    trace = torch.zeros_like(rewards[:, 0]) if rewards.shape[1] else rewards.sum(1)
    next_value = trace
    for t in reversed(range(rewards.shape[1])):
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        trace = torch.where(mask[:, t], delta + gamma * lam * trace, trace)
        next_value = torch.where(mask[:, t], values[:, t], next_value)
        advantages[:, t] = masked(trace, mask[:, t])
    return advantages


@dataclass(frozen=True)
class ReturnToGo(Advantage):
    """A_t = sum of gamma^(s-t) r_s over the tokens s from t on.

    Attributes:
        gamma: discount per sampled token.
        kl: weight of the KL to the reference policy in each token's reward.
    """

    gamma: float = 1.0
    kl: float = 0.0

    @property
    def needs(self) -> Needs:
        """Old and reference policy, where the reward holds a KL."""
        return Needs(old=self.kl != 0, reference=self.kl != 0)

    @property
    def min_group_size(self) -> int:
        """One: the group does not matter."""
        return 1

    def __call__(self, signals: Signals) -> Tensor:
        """See `Advantage`."""
        rewards = token_rewards(signals, self.kl)
        return discounted(rewards, torch.zeros_like(rewards), signals.mask, self.gamma, 1.0)


@dataclass(frozen=True)
class GAE(Advantage):
    """Generalised advantage estimation with a critic. arXiv 1506.02438.

    Truncated rollouts are treated as ended.

    Attributes:
        gamma: discount per sampled token.
        lam: decay of the trace.
        kl: weight of the KL to the reference policy in each token's reward.
    """

    gamma: float = 1.0
    lam: float = 1.0
    kl: float = 0.0

    @property
    def needs(self) -> Needs:
        """A critic; old and reference policy, where the reward holds a KL."""
        return Needs(old=self.kl != 0, reference=self.kl != 0, critic=True)

    @property
    def min_group_size(self) -> int:
        """One: the group does not matter."""
        return 1

    def _values(self, signals: Signals) -> Tensor:
        assert signals.values is not None
        return masked(signals.values.double(), signals.mask)

    def __call__(self, signals: Signals) -> Tensor:
        """See `Advantage`."""
        rewards = token_rewards(signals, self.kl)
        return discounted(rewards, self._values(signals), signals.mask, self.gamma, self.lam)

    def returns(self, signals: Signals) -> Tensor:
        """Advantage plus old value; the old value itself where a rollout has no reward."""
        values = self._values(signals)
        return values + self(signals).nan_to_num(nan=0.0)


@dataclass(frozen=True)
class Whitened(AdvantageOf):
    """Another advantage, standardised over all sampled tokens of the batch.

    A = (a - mean) / sqrt(var + 1e-8), with the unbiased variance.

    Attributes:
        inner: the advantage that is whitened.
    """

    inner: Advantage

    def __call__(self, signals: Signals) -> Tensor:
        """See `Advantage`."""
        inner = self.inner(signals)
        tokens = inner[:, None].expand(signals.mask.shape) if inner.ndim == 1 else inner
        known = signals.mask & ~tokens.isnan() & ~signals.rewards.isnan()[:, None]
        count = known.sum()
        centred = masked(tokens - masked(tokens, known).sum() / count.clamp(min=1), known)
        variance = (centred**2).sum() / (count - 1).clamp(min=1)
        return centred / (variance + 1e-8).sqrt()


@dataclass(frozen=True)
class TurnLeaveOneOut(Advantage):
    """A_iu = G_iu - mean of the others' G_ju: credit per turn, for the rewards from that turn on.

    G_iu is the discounted sum of rollout i's turn rewards from turn u on, 0 after its last turn.
    The mean runs over all other rollouts of the group, those that ended before turn u included. It
    does not depend on what rollout i did, so the gradient is unbiased even though the policy
    chooses the number of turns; a mean over "the rollouts that reached turn u", taken off turn by
    turn, is not.

    Attributes:
        gamma: discount per turn.
    """

    gamma: float = 1.0

    @property
    def needs(self) -> Needs:
        """The turns."""
        return Needs(turns=True)

    def __call__(self, signals: Signals) -> Tensor:
        """See `Advantage`."""
        assert signals.turn is not None
        assert signals.turn_rewards is not None
        to_go = signals.turn_rewards.double().clone()
        for u in reversed(range(to_go.shape[1] - 1)):
            to_go[:, u] += self.gamma * to_go[:, u + 1]
        to_go = to_go.where(~signals.rewards.isnan()[:, None], torch.nan)
        columns = []
        for column in to_go.unbind(1):
            others = (group_size(column, signals.group) - 1).clamp(min=1)
            columns.append(column - (group_sum(column, signals.group) - column) / others)
        advantages = torch.stack(columns, 1)
        size = group_size(signals.rewards, signals.group)
        advantages = advantages.where(size[:, None] > 1, 0.0)
        return advantages.gather(1, signals.turn.clamp(min=0))
