"""A trust region on the divergence of each token's distribution. DPPO, arXiv 2602.04879."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from grpo_gym.errors import UsageError
from grpo_gym.objectives.choices import at_least, one_of
from grpo_gym.objectives.ratios import bounded_exp
from grpo_gym.objectives.signals import Needs
from grpo_gym.objectives.stages import Surrogate, Terms, TrustRegion

DivergenceKind = Literal["binary_tv", "binary_kl", "topk_tv", "topk_kl"]

LARGEST = 1 - 1e-7
"""Probabilities are taken to be at most this, so that their complement has a logarithm."""


def total_variation(q: Tensor, p: Tensor) -> Tensor:
    """Half the L1 distance over the last axis."""
    return (q - p).abs().sum(-1) / 2


def kullback_leibler(q: Tensor, p: Tensor) -> Tensor:
    """KL(q || p) over the last axis; an atom with q = 0 adds nothing."""
    tiny = torch.finfo(q.dtype).tiny
    return torch.where(q > 0, q * (q.clamp(min=tiny) / p.clamp(min=tiny)).log(), 0.0).sum(-1)


def binary(terms: Terms) -> tuple[Tensor, Tensor]:
    """(B, T, 2) distributions over {the sampled token, any other}: behaviour policy, policy."""
    q = terms.old.exp().clamp(max=LARGEST)
    p = terms.logprobs.detach().exp().clamp(max=LARGEST)
    return torch.stack([q, 1 - q], -1), torch.stack([p, 1 - p], -1)


def topk(terms: Terms) -> tuple[Tensor, Tensor]:
    """(B, T, K + 2) distributions over {behaviour's top K, the sampled token, others}."""
    for name in ("tokens", "top_ids", "behaviour_top", "policy_top"):
        if getattr(terms, name) is None:
            raise UsageError(f"a top-k divergence needs {name}; see Agent.needs")
    assert terms.tokens is not None
    assert terms.top_ids is not None
    assert terms.behaviour_top is not None
    assert terms.policy_top is not None
    # A sampled token that is among the top K is one atom, not two.
    extra = ~(terms.top_ids == terms.tokens[..., None]).any(-1)
    q = _with_rest(terms.behaviour_top.exp(), terms.old.exp() * extra)
    return q, _with_rest(terms.policy_top.exp(), terms.logprobs.detach().exp() * extra)


def _with_rest(top: Tensor, sampled: Tensor) -> Tensor:
    known = torch.cat([top, sampled[..., None]], -1)
    rest = (1 - known.sum(-1, keepdim=True)).clamp(min=0)
    return torch.cat([known, rest], -1)


Atoms = Callable[[Terms], tuple[Tensor, Tensor]]
Distance = Callable[[Tensor, Tensor], Tensor]

DIVERGENCES: dict[str, tuple[Atoms, Distance]] = {
    "binary_tv": (binary, total_variation),
    "binary_kl": (binary, kullback_leibler),
    "topk_tv": (topk, total_variation),
    "topk_kl": (topk, kullback_leibler),
}
"""Name -> (which atoms, which divergence)."""


@dataclass(frozen=True)
class DivergenceMask(TrustRegion):
    """-sg(min(r, cap)) M A log pi; M is 0 where a step would lead away and D is already too large.

    M = 0 iff (A > 0, r > 1, D > high) or (A < 0, r < 1, D > low), so a way back is never blocked.

    Attributes:
        kind: the divergence D between behaviour policy and policy: "binary_tv", "binary_kl",
            "topk_tv" or "topk_kl".
        low: threshold for negative advantages.
        high: threshold for positive advantages.
        k: K, for the top-k kinds.
        cap: largest weight; None sets no bound.
        symmetric_mask: M = 0 wherever D is above the threshold, also on the way back: a tutorial's
            reading.
    """

    kind: DivergenceKind = "binary_tv"
    low: float = 0.15
    high: float = 0.15
    k: int = 20
    cap: float | None = 20.0
    symmetric_mask: bool = False

    def __post_init__(self) -> None:
        one_of("divergence", self.kind, DIVERGENCES)
        at_least("threshold low", self.low, 0)
        at_least("threshold high", self.high, 0)
        at_least("k", self.k, 1)

    @property
    def needs(self) -> Needs:
        """The behaviour policy's most probable tokens, for the top-k kinds."""
        return Needs(top_logprobs=self.k if self.kind.startswith("topk") else 0)

    def divergence(self, terms: Terms) -> Tensor:
        """(B, T) divergence of each token's distribution from the anchor's."""
        distributions, distance = DIVERGENCES[self.kind]
        return distance(*distributions(terms))

    def __call__(self, terms: Terms, log_ratio: Tensor, importance: Tensor) -> Surrogate:
        """See `TrustRegion`."""
        ratio, divergence = bounded_exp(log_ratio).detach(), self.divergence(terms)
        up = (terms.advantages > 0) & (divergence > self.high)
        down = (terms.advantages < 0) & (divergence > self.low)
        if not self.symmetric_mask:
            up, down = up & (ratio > 1), down & (ratio < 1)
        blocked = up | down
        weight = ratio.clamp(max=torch.inf if self.cap is None else self.cap).masked_fill(
            blocked, 0.0
        )
        return Surrogate(-weight * terms.advantages * terms.logprobs, blocked)
