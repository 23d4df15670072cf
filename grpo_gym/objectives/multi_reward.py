"""Advantages from several rewards."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from grpo_gym.errors import UsageError
from grpo_gym.objectives.advantages import GroupStandardised, with_rewards
from grpo_gym.objectives.choices import at_least, one_of
from grpo_gym.objectives.reductions import divided, group_centred, group_std, std
from grpo_gym.objectives.signals import Signals
from grpo_gym.objectives.stages import Advantage, AdvantageOf

Weights = tuple[tuple[str, float], ...]
"""Names of reward components with their weights; none: every component weighs 1."""


def as_weights(weights: Mapping[str, float] | Weights | None) -> Weights:
    """Weights as a value that can be hashed and compared."""
    items = weights.items() if isinstance(weights, Mapping) else weights or ()
    return tuple(sorted((name, float(weight)) for name, weight in items))


def components(signals: Signals, weights: Weights) -> tuple[Tensor, Tensor]:
    """(B, K) float64 rewards, nan where one does not apply, and (K,) weights.

    An environment without components has one: its reward.

    Raises:
        UsageError: A weight names a component that no rollout has.
    """
    if signals.components is None and not weights:
        return signals.rewards[:, None], torch.ones(1, dtype=torch.float64)
    names = signals.component_names
    for name, _ in weights:
        if name not in names:
            raise UsageError(
                f"there is no reward component {name!r}; the rollouts have {list(names)}"
            )
    assert signals.components is not None
    chosen = weights or tuple((name, 1.0) for name in names)
    columns = [signals.components[:, names.index(name)] for name, _ in chosen]
    scale = torch.tensor([weight for _, weight in chosen], dtype=torch.float64)
    return torch.stack(columns, 1).double(), scale


@dataclass(frozen=True)
class SumThenNormalise(AdvantageOf):
    """Another advantage of R = sum_k w_k R_k. A component that is nan is left out of the sum.

    Attributes:
        weights: the w_k by name; none: every component weighs 1.
        inner: the advantage of the sum.
    """

    weights: Weights = ()
    inner: Advantage = field(default_factory=GroupStandardised)

    def __post_init__(self) -> None:
        object.__setattr__(self, "weights", as_weights(self.weights))

    def _summed(self, signals: Signals) -> Signals:
        parts, weights = components(signals, self.weights)
        total = (parts * weights.to(parts.device)).nansum(1)
        return with_rewards(signals, total.where(~parts.isnan().all(1), torch.nan))

    def __call__(self, signals: Signals) -> Tensor:
        """See `Advantage`."""
        return self.inner(self._summed(signals))

    def returns(self, signals: Signals) -> Tensor | None:
        """Those of the inner advantage."""
        return self.inner.returns(self._summed(signals))


@dataclass(frozen=True)
class NormaliseThenSum(Advantage):
    """Each reward is standardised by group, the sum over the batch. GDPO, arXiv 2601.05242.

    A_k = (R_k - mean) / (std + eps) over the group; S = sum_k w_k A_k; A = (S - mean) / (std + eps)
    over the batch. A component that is nan counts as A_k = 0 and leaves its group's statistics.

    Attributes:
        weights: the w_k by name; none: every component weighs 1.
        batch_norm: False leaves the last step out, as some tutorials do.
        ddof: 0 for the population's standard deviation, 1 for the unbiased one.
        eps: added to the standard deviations.
    """

    weights: Weights = ()
    batch_norm: bool = True
    ddof: int = 0
    eps: float = 1e-4

    def __post_init__(self) -> None:
        object.__setattr__(self, "weights", as_weights(self.weights))
        one_of("ddof", self.ddof, (0, 1))
        at_least("eps", self.eps, 0)

    def __call__(self, signals: Signals) -> Tensor:
        """See `Advantage`."""
        parts, weights = components(signals, self.weights)
        total = torch.zeros_like(signals.rewards)
        for part, weight in zip(parts.unbind(1), weights.tolist(), strict=True):
            centred = group_centred(part, signals.group)
            spread = group_std(centred, signals.group, self.ddof)
            total = total + weight * divided(centred, spread, self.eps).nan_to_num(nan=0.0)
        if not self.batch_norm:
            return total
        known = with_rewards(signals, total).rewards
        centred = group_centred(known, torch.zeros_like(signals.group))
        return divided(centred, std(centred, self.ddof), self.eps)
