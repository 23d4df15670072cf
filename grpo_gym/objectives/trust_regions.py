"""Surrogate losses: how far a token, or a rollout, may carry the policy."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from grpo_gym.errors import UsageError
from grpo_gym.objectives.choices import at_least, one_of
from grpo_gym.objectives.ratios import bounded_exp
from grpo_gym.objectives.reductions import row_mean, row_sum
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

    def __post_init__(self) -> None:
        at_least("clip range low", self.low, 0)
        at_least("clip range high", self.high, 0)
        if self.dual is not None and not self.dual > 1 + self.high:
            raise UsageError(f"dual clip {self.dual} must be above 1 + high = {1 + self.high}")

    def __call__(self, terms: Terms, log_ratio: Tensor, importance: Tensor) -> Surrogate:
        """See `TrustRegion`."""
        ratio, advantages = bounded_exp(log_ratio), terms.advantages
        dual = torch.inf if self.dual is None else self.dual
        inner = ratio.clamp(1 - self.low, 1 + self.high) * advantages
        loss = -torch.minimum(ratio.clamp(max=dual) * advantages, inner)
        above = (advantages > 0) & (ratio > 1 + self.high)
        below = (advantages < 0) & ((ratio < 1 - self.low) | (ratio > dual))
        return Surrogate(loss, above | below)


@dataclass(frozen=True)
class Unbounded(TrustRegion):
    """-A log pi: REINFORCE, which trusts every step. The ratio is not used."""

    def __call__(self, terms: Terms, log_ratio: Tensor, importance: Tensor) -> Surrogate:
        """See `TrustRegion`."""
        loss = -terms.advantages * terms.logprobs
        return Surrogate(loss, torch.zeros_like(terms.mask))


def soft_gate(ratio: Tensor, tau: float | Tensor) -> Tensor:
    """f(r) = 4 / tau * sigmoid(tau (r - 1)), whose slope is 1 at r = 1. SAPO, arXiv 2511.20347."""
    return 4 / tau * torch.sigmoid(tau * (ratio - 1))


def tutorial_gate(ratio: Tensor, tau: float | Tensor, positive: Tensor) -> Tensor:
    """The gate r sigmoid(+-(r - 1) / tau); for A < 0 its slope is negative above r = 1.63."""
    away = torch.where(positive, ratio - 1, 1 - ratio)
    return ratio * torch.sigmoid(away / tau)


@dataclass(frozen=True)
class SoftGate(TrustRegion):
    """-f(r) A with a smooth gate f in place of the clip. SAPO, arXiv 2511.20347.

    Attributes:
        tau_positive: decay of the gate for positive advantages; larger is harder.
        tau_negative: and for the others.
        gate: "paper", or "tutorial" for a secondary reading that differs from it.
    """

    tau_positive: float = 1.0
    tau_negative: float = 1.05
    gate: Literal["paper", "tutorial"] = "paper"

    def __post_init__(self) -> None:
        one_of("gate", self.gate, ("paper", "tutorial"))
        at_least("tau_positive", self.tau_positive, 1e-6)
        at_least("tau_negative", self.tau_negative, 1e-6)

    def __call__(self, terms: Terms, log_ratio: Tensor, importance: Tensor) -> Surrogate:
        """See `TrustRegion`."""
        ratio, positive = bounded_exp(log_ratio), terms.advantages > 0
        tau = torch.full_like(ratio, self.tau_negative).masked_fill(positive, self.tau_positive)
        paper = self.gate == "paper"
        gated = soft_gate(ratio, tau) if paper else tutorial_gate(ratio, tau, positive)
        return Surrogate(-gated * terms.advantages, torch.zeros_like(terms.mask))


@dataclass(frozen=True)
class WeightCap(TrustRegion):
    """-sg(clip(r, floor, cap)) A log pi: every token keeps a gradient.

    CISPO, arXiv 2506.13585, eq. 4.

    Attributes:
        cap: largest weight, an absolute ratio and not a distance from 1.
        floor: smallest weight; None sets no bound.
    """

    cap: float = 5.0
    floor: float | None = None

    def __post_init__(self) -> None:
        at_least("ratio cap", self.cap, self.floor or 0)

    def __call__(self, terms: Terms, log_ratio: Tensor, importance: Tensor) -> Surrogate:
        """See `TrustRegion`."""
        ratio = bounded_exp(log_ratio).detach()
        weight = ratio.clamp(self.floor, self.cap)
        return Surrogate(-weight * terms.advantages * terms.logprobs, weight != ratio)


@dataclass(frozen=True)
class GeometricClip(TrustRegion):
    """-s A with s the geometric mean of clipped token ratios. GMPO, arXiv 2507.20673.

    Attributes:
        low: for negative advantages, a token's log-ratio counts as at least -low.
        high: for positive advantages, a token's log-ratio counts as at most high.
    """

    low: float = 0.4
    high: float = 0.4

    def __post_init__(self) -> None:
        at_least("clip range low", self.low, 0)
        at_least("clip range high", self.high, 0)

    def __call__(self, terms: Terms, log_ratio: Tensor, importance: Tensor) -> Surrogate:
        """See `TrustRegion`."""
        above = (terms.advantages > 0) & (log_ratio > self.high)
        below = (terms.advantages < 0) & (log_ratio < -self.low)
        clipped = log_ratio.masked_fill(above, self.high).masked_fill(below, -self.low)
        mean = row_mean(clipped, terms.mask)
        return Surrogate(-bounded_exp(mean) * terms.advantages, above | below)


LOWEST_LOG_WEIGHT = -18.420680743952367
"""log 1e-8: weights below are treated as this."""


def vespo_kernel(log_weight: Tensor, k: float | Tensor, lam: float | Tensor) -> Tensor:
    """phi(W) = W^k exp(lam (1 - W)): 1 at W = 1, largest at W = k / lam. arXiv 2602.10693."""
    return (lam + k * log_weight - lam * log_weight.exp()).exp()


@dataclass(frozen=True)
class SequenceKernel(TrustRegion):
    """-sg(phi(W)) A log pi with W the ratio of the sequences' probabilities.

    VESPO, arXiv 2602.10693.

    Importance weights go into W, which then measures from the behaviour policy; a weight of 0
    counts as 1e-8 and so silences its whole rollout: combine with truncation, not with masking.

    Attributes:
        k_positive: power of W where A >= 0: how fast stale rollouts (W < 1) lose weight.
        lambda_positive: decay of W where A >= 0: how fast rollouts that have become likely lose it.
        k_negative: power where A < 0.
        lambda_negative: decay where A < 0.
    """

    folds_importance: ClassVar[bool] = True

    k_positive: float = 2.0
    lambda_positive: float = 3.0
    k_negative: float = 3.0
    lambda_negative: float = 2.0

    def __post_init__(self) -> None:
        at_least("lambda_positive", self.lambda_positive, 1e-4)
        at_least("lambda_negative", self.lambda_negative, 1e-4)

    def __call__(self, terms: Terms, log_ratio: Tensor, importance: Tensor) -> Surrogate:
        """See `TrustRegion`."""
        correction = row_sum(importance.log().clamp(min=LOWEST_LOG_WEIGHT), terms.mask)
        log_weight = (log_ratio.detach() + correction).clamp(LOWEST_LOG_WEIGHT, 20.0)
        positive = vespo_kernel(log_weight, self.k_positive, self.lambda_positive)
        negative = vespo_kernel(log_weight, self.k_negative, self.lambda_negative)
        phi = torch.where(terms.advantages >= 0, positive, negative)
        return Surrogate(-phi * terms.advantages * terms.logprobs, torch.zeros_like(terms.mask))
