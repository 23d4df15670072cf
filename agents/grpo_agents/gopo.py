"""GOPO."""

from typing import Literal

from grpo_gym.agent import Agent
from grpo_gym.objectives.advantages import Ordinal
from grpo_gym.objectives.aggregations import TokenMean
from grpo_gym.objectives.ratios import TokenRatio
from grpo_gym.objectives.trust_regions import Clip


def gopo(
    half_range: float = 2.0,
    ties: Literal["average", "first"] = "average",
    clip_low: float = 0.2,
    clip_high: float = 0.28,
) -> Agent:
    r"""Group Ordinal Policy Optimization: the rank of a reward counts, not its size.

    GOPO: Policy Optimization using Ranked Rewards (2026), arXiv 2602.03876.

    A_i = h (1 - 2 (rank_i - 1) / (G - 1)), rank 1 for the best
    L = 1 / (sum_i |o_i|) sum_i sum_t -min(r_it A_i, clip(r_it, 1 - low, 1 + high) A_i)

    Differs from the official code in: equal rewards share the mean of their ranks, so that a group
    of equals has no gradient; the code ranks them by position (ties="first"), which is noise.

    Args:
        half_range: h; 1 is a tutorial's linear map.
        ties: "average" or "first".
        clip_low: lower clip range.
        clip_high: upper clip range.
    """
    return Agent(
        advantage=Ordinal(half_range, ties),
        ratio=TokenRatio(),
        trust_region=Clip(clip_low, clip_high),
        aggregation=TokenMean(),
    )
