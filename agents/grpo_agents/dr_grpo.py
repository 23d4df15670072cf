"""Dr. GRPO."""

from grpo_gym.agent import Agent
from grpo_gym.objectives.advantages import GroupCentred
from grpo_gym.objectives.aggregations import FixedLengthMean
from grpo_gym.objectives.ratios import TokenRatio
from grpo_gym.objectives.trust_regions import Clip


def dr_grpo(budget: int = 3000, clip_low: float = 0.2, clip_high: float = 0.2) -> Agent:
    r"""GRPO Done Right: neither the length of a rollout nor the group's spread weighs its gradient.

    Understanding R1-Zero-Like Training: A Critical Perspective (2025), arXiv 2503.20783.

    L = mean_i 1/L sum_t -min(r_it A_i, clip(r_it, 1 - low, 1 + high) A_i),  A_i = R_i - mean R

    Args:
        budget: the constant L, most tokens that a rollout may have.
        clip_low: lower clip range.
        clip_high: upper clip range.
    """
    return Agent(
        advantage=GroupCentred(),
        ratio=TokenRatio(),
        trust_region=Clip(clip_low, clip_high),
        aggregation=FixedLengthMean(budget),
    )
