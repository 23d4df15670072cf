"""DPPO."""

from grpo_gym.agent import Agent
from grpo_gym.objectives.advantages import GroupCentred
from grpo_gym.objectives.aggregations import TokenMean
from grpo_gym.objectives.divergences import DivergenceKind, DivergenceMask
from grpo_gym.objectives.ratios import TokenRatio
from grpo_gym.objectives.stages import Anchor


def dppo(
    divergence: DivergenceKind = "binary_tv",
    delta_low: float = 0.15,
    delta_high: float = 0.15,
    k: int = 20,
    c: float | None = 20.0,
    symmetric_mask: bool = False,
    anchor: Anchor = "behaviour",
) -> Agent:
    r"""Divergence Proximal Policy Optimization: the trust region bounds a divergence, not a ratio.

    Rethinking the Trust Region in LLM Reinforcement Learning (2026), arXiv 2602.04879.

    L = 1 / (sum_i |o_i|) sum_i sum_t -sg(min(r_it, c)) M_it A_i log pi(o_it),  A_i = R_i - mean R
    M_it = 0 iff (A > 0, r > 1, D > high) or (A < 0, r < 1, D > low);  r = pi / pi_behaviour

    Differs from the paper in: c = 20 bounds the weight (TRL's value; the official code has 10, the
    paper's study none). The thresholds are those of total variation: use 0.05 with a KL.

    Args:
        divergence: D: "binary_tv", "binary_kl", "topk_tv" or "topk_kl".
        delta_low: threshold where the advantage is negative.
        delta_high: threshold where the advantage is positive.
        k: K of the top-k divergences.
        c: largest weight; None sets no bound.
        symmetric_mask: also blocks the way back, as a tutorial has it.
        anchor: "behaviour" measures from the policy that sampled, "old" from the learner's.
    """
    return Agent(
        advantage=GroupCentred(),
        ratio=TokenRatio(anchor),
        trust_region=DivergenceMask(divergence, delta_low, delta_high, k, c, symmetric_mask),
        aggregation=TokenMean(),
    )
