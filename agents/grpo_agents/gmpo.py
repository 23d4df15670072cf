"""GMPO."""

from grpo_gym.agent import Agent
from grpo_gym.objectives.advantages import GroupStandardised
from grpo_gym.objectives.aggregations import SequenceMean
from grpo_gym.objectives.ratios import TokenRatio
from grpo_gym.objectives.trust_regions import GeometricClip


def gmpo(
    clip_low: float = 0.4,
    clip_high: float = 0.4,
    std_ddof: int = 0,
    adv_eps: float = 1e-4,
) -> Agent:
    r"""Geometric-Mean Policy Optimization: outlying tokens are clipped before the geometric mean.

    Geometric-Mean Policy Optimization (2025), arXiv 2507.20673.

    L = mean_i -exp(mean_t c_it) A_i,  c_it = min(log r_it, high) if A_i > 0, max(log r_it, -low) if
    A_i < 0 A_i = (R_i - mean R) / std R over the group

    Differs from the paper in: the standard deviation is the population's.

    Args:
        clip_low: lower clip range of a token's log-ratio (the paper's ratios run from e^-0.4 to
            e^0.4).
        clip_high: upper clip range of a token's log-ratio.
        std_ddof: 1 for the unbiased standard deviation of TRL, verl and OpenRLHF.
        adv_eps: added to the standard deviation.
    """
    return Agent(
        advantage=GroupStandardised(std_ddof, adv_eps),
        ratio=TokenRatio(),
        trust_region=GeometricClip(clip_low, clip_high),
        aggregation=SequenceMean(),
    )
