"""CISPO."""

from typing import Literal

from grpo_gym.agent import Agent
from grpo_gym.objectives.advantages import BatchStandardised, GroupStandardised
from grpo_gym.objectives.aggregations import TokenMean
from grpo_gym.objectives.choices import choose
from grpo_gym.objectives.ratios import TokenRatio
from grpo_gym.objectives.trust_regions import Clip, WeightCap


def cispo(
    ratio_cap: float = 5.0,
    ratio_floor: float | None = None,
    surrogate: Literal["cispo", "ppo_min"] = "cispo",
    advantage: Literal["group", "batch_mean_std"] = "group",
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    std_ddof: int = 0,
    adv_eps: float = 1e-4,
) -> Agent:
    r"""Clipped IS-weight Policy Optimization: no token loses its gradient.

    MiniMax-M1: Scaling Test-Time Compute Efficiently with Lightning Attention (2025), arXiv
    2506.13585, equations 4 and 5.

    L = 1 / (sum_i |o_i|) sum_i sum_t -sg(min(r_it, cap)) A_i log pi(o_it)
    A_i = (R_i - mean R) / std R over the group

    Differs from the paper in: the paper does not disclose its cap, 5 is the one that TRL's
    documentation recommends; the standard deviation is the population's.

    Args:
        ratio_cap: largest weight: an absolute ratio, as in TRL, not a distance from 1.
        ratio_floor: smallest weight; None sets no bound.
        surrogate: "ppo_min" is the clip of PPO, as a tutorial has it.
        advantage: "batch_mean_std" standardises over the whole batch, as a tutorial has it.
        clip_low: lower clip range of ppo_min.
        clip_high: upper clip range of ppo_min.
        std_ddof: 1 for the unbiased standard deviation of TRL, verl and OpenRLHF.
        adv_eps: added to the standard deviation.
    """
    return Agent(
        advantage=choose(
            "advantage",
            advantage,
            {
                "group": GroupStandardised(std_ddof, adv_eps),
                "batch_mean_std": BatchStandardised("batch", "rewards", std_ddof, adv_eps),
            },
        ),
        ratio=TokenRatio(),
        trust_region=choose(
            "surrogate",
            surrogate,
            {"cispo": WeightCap(ratio_cap, ratio_floor), "ppo_min": Clip(clip_low, clip_high)},
        ),
        aggregation=TokenMean(),
    )
