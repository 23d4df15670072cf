"""Surrogate losses: how far a token may carry the policy."""

from dataclasses import dataclass

import torch
from torch import Tensor

from grpo_gym.objectives.ratios import bounded_exp
from grpo_gym.objectives.stages import Surrogate, Terms, TrustRegion


@dataclass(frozen=True)
class Clip(TrustRegion):
    """-min(r A, clip(r, 1 - low, 1 + high) A). PPO, arXiv 1707.06347, eq. 7.

    Attributes:
        low: lower clip range.
        high: upper clip range; larger than `low` is DAPO's clip-higher.
        dual: for negative advantages, the loss stops growing at this ratio: the dual clip c of
            arXiv 1912.09729, and the two-sided clip delta of arXiv 2505.07291, which are the same.
    """

    low: float = 0.2
    high: float = 0.2
    dual: float | None = None

    def __call__(self, terms: Terms, log_ratio: Tensor, importance: Tensor) -> Surrogate:
        """See `TrustRegion`."""
        ratio, advantages = bounded_exp(log_ratio), terms.advantages
        dual = torch.inf if self.dual is None else self.dual
        inner = ratio.clamp(1 - self.low, 1 + self.high) * advantages
        loss = -torch.minimum(ratio.clamp(max=dual) * advantages, inner)
        above = (advantages > 0) & (ratio > 1 + self.high)
        below = (advantages < 0) & ((ratio < 1 - self.low) | (ratio > dual))
        return Surrogate(loss, above | below)
