"""Corrections: weights of each token's surrogate, without gradient."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from grpo_gym.objectives.choices import at_least, one_of
from grpo_gym.objectives.ratios import bounded_exp
from grpo_gym.objectives.reductions import masked, row_mean, row_sum
from grpo_gym.objectives.signals import Needs, Signals
from grpo_gym.objectives.stages import Correction, Terms

Level = Literal["token", "sequence"]
SeqRatio = Literal["product", "geomean"]


def importance_weight(terms: Terms, level: Level, seq_ratio: SeqRatio) -> Tensor:
    """(B, T) w = pi_old / pi_behaviour, of each token or of each whole rollout.

    A token without a behaviour log-prob counts as equal. Where the ratio is anchored at the
    behaviour policy, that is the old policy, and w is 1.
    """
    assert terms.behaviour is not None
    gap = masked((terms.old - terms.behaviour).nan_to_num(nan=0.0), terms.mask)
    if level == "sequence":
        reduce = row_sum if seq_ratio == "product" else row_mean
        gap = reduce(gap, terms.mask).expand_as(gap)
    return bounded_exp(gap)


@dataclass(frozen=True)
class TIS(Correction):
    """Truncated importance sampling: w clamped to [c_min, c_max]. Yao et al. 2025.

    Attributes:
        c_max: largest weight.
        c_min: smallest weight; None sets no bound.
        level: "token" or "sequence".
        seq_ratio: a rollout's ratio is the "product" of its tokens' or their "geomean".
    """

    importance: ClassVar[bool] = True

    c_max: float = 2.0
    c_min: float | None = None
    level: Level = "token"
    seq_ratio: SeqRatio = "product"

    def __post_init__(self) -> None:
        one_of("level", self.level, ("token", "sequence"))
        one_of("seq_ratio", self.seq_ratio, ("product", "geomean"))
        at_least("c_max", self.c_max, self.c_min or 0)

    @property
    def needs(self) -> Needs:
        """The behaviour policy."""
        return Needs(behaviour=True)

    def __call__(self, terms: Terms) -> Tensor:
        """See `Correction`."""
        return importance_weight(terms, self.level, self.seq_ratio).clamp(self.c_min, self.c_max)


@dataclass(frozen=True)
class MIS(Correction):
    """Masked importance sampling: w where c_min <= w <= c_max, else 0.

    With level "token" it is IcePop's, arXiv 2510.18855; the defaults are TRL's.

    Attributes:
        c_max: largest weight that is kept.
        c_min: smallest weight that is kept; None sets no bound.
        level: "token" or "sequence".
        seq_ratio: a rollout's ratio is the "product" of its tokens' or their "geomean".
        mask_keeps_ratio: False weighs what is kept with 1, as some tutorials do.
        masked_in_denominator: False takes masked tokens out of the aggregation's denominator too.
    """

    importance: ClassVar[bool] = True

    c_max: float = 3.0
    c_min: float | None = None
    level: Level = "sequence"
    seq_ratio: SeqRatio = "product"
    mask_keeps_ratio: bool = True
    masked_in_denominator: bool = True

    def __post_init__(self) -> None:
        one_of("level", self.level, ("token", "sequence"))
        one_of("seq_ratio", self.seq_ratio, ("product", "geomean"))
        at_least("c_max", self.c_max, self.c_min or 0)

    @property
    def needs(self) -> Needs:
        """The behaviour policy; the old one ahead of the loss, to find the denominator."""
        return Needs(behaviour=True, old=not self.masked_in_denominator)

    def _inside(self, weight: Tensor) -> Tensor:
        return (weight >= (self.c_min or 0)) & (weight <= self.c_max)

    def __call__(self, terms: Terms) -> Tensor:
        """See `Correction`."""
        weight = importance_weight(terms, self.level, self.seq_ratio)
        kept = weight if self.mask_keeps_ratio else torch.ones_like(weight)
        return masked(kept, self._inside(weight))

    def restrict(self, terms: Terms) -> Tensor:
        """See `Correction`."""
        if self.masked_in_denominator:
            return terms.mask
        return terms.mask & self._inside(importance_weight(terms, self.level, self.seq_ratio))


@dataclass(frozen=True)
class OffPolicyMask(Correction):
    """Rollouts with A < 0 leave when mean_t (log pi_behaviour - log pi) is above a threshold.

    DeepSeek-V3.2, arXiv 2512.02556. A token without a behaviour log-prob counts as 0.

    Attributes:
        threshold: the threshold.
    """

    threshold: float

    @property
    def needs(self) -> Needs:
        """The behaviour policy."""
        return Needs(behaviour=True)

    def evidence(self, terms: Terms) -> Tensor:
        """(B, 1) mean log-ratio of each rollout."""
        assert terms.behaviour is not None
        gap = (terms.behaviour - terms.logprobs.detach()).nan_to_num(nan=0.0)
        return row_mean(gap, terms.mask)

    def __call__(self, terms: Terms) -> Tensor:
        """See `Correction`."""
        keep = (terms.advantages >= 0) | (self.evidence(terms) <= self.threshold)
        return keep.to(terms.logprobs)


@dataclass(frozen=True)
class TopEntropy(Correction):
    """Only the tokens where the old policy was least decided count. arXiv 2506.01939.

    The threshold is a quantile over all sampled tokens of the batch; the other tokens stay in the
    denominator.

    Attributes:
        share: share of tokens that count.
    """

    share: float = 0.2

    def __post_init__(self) -> None:
        at_least("share", self.share, 0)
        at_least("1 - share", 1 - self.share, 0)

    @property
    def needs(self) -> Needs:
        """The entropy of the old policy on the whole batch."""
        return Needs(old_entropy=True)

    def keep(self, signals: Signals, mask: Tensor) -> Tensor:
        """See `Correction`."""
        assert signals.entropy is not None
        entropy = masked(signals.entropy.double(), mask)
        known = entropy[mask].cpu().numpy()
        threshold = np.quantile(known, 1 - self.share) if known.size else 0.0
        return mask & (entropy >= float(threshold))

    def __call__(self, terms: Terms) -> Tensor:
        """See `Correction`; the choice is made in `keep`."""
        return torch.ones_like(terms.old)
