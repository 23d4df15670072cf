"""Dr. GRPO."""

from typing import Literal

from grpo_gym.agent import Agent
from grpo_gym.objectives.advantages import GroupCentred, RefSurprise
from grpo_gym.objectives.aggregations import FixedLengthMean
from grpo_gym.objectives.choices import choose
from grpo_gym.objectives.ratios import TokenRatio
from grpo_gym.objectives.trust_regions import Clip


def dr_grpo(
    budget: int = 3000,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    token_weight: Literal["none", "ref_surprise"] = "none",
) -> Agent:
    r"""GRPO done right: neither a rollout's length nor its group's spread weighs its gradient.

    Understanding R1-Zero-Like Training: A Critical Perspective (2025), arXiv 2503.20783.

    L = mean_i 1/L sum_t -min(r_it A_i, clip(r_it, 1 - low, 1 + high) A_i),  A_i = R_i - mean R

    Differs from the paper in: nothing by default. L is a constant, never the width of a padded
    batch.

    Args:
        budget: the constant L, most tokens that a rollout may have.
        clip_low: lower clip range.
        clip_high: upper clip range.
        token_weight: "ref_surprise" multiplies A by 1 - pi_ref(o_it), a tutorial's reading that
            is not in the paper.
    """
    return Agent(
        advantage=choose(
            "token_weight",
            token_weight,
            {"none": GroupCentred(), "ref_surprise": RefSurprise(GroupCentred())},
        ),
        ratio=TokenRatio(),
        trust_region=Clip(clip_low, clip_high),
        aggregation=FixedLengthMean(budget),
    )
