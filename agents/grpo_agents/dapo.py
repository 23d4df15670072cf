"""DAPO."""

from grpo_gym.agent import Agent
from grpo_gym.objectives.advantages import GroupStandardised
from grpo_gym.objectives.aggregations import TokenMean
from grpo_gym.objectives.ratios import TokenRatio
from grpo_gym.objectives.trust_regions import Clip


def dapo(
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    mask_truncated: bool = False,
    std_ddof: int = 0,
    adv_eps: float = 1e-4,
) -> Agent:
    r"""Decoupled Clip and Dynamic sAmpling Policy Optimization.

    DAPO: An Open-Source LLM Reinforcement Learning System at Scale (2025), arXiv 2503.14476.

    L = 1 / (sum_i |o_i|) sum_i sum_t -min(r_it A_i, clip(r_it, 1 - low, 1 + high) A_i)

    Args:
        clip_low: lower clip range.
        clip_high: upper clip range, "clip-higher".
        mask_truncated: overlong filtering, truncated rollouts leave the loss.
        std_ddof: 1 for the unbiased standard deviation of TRL and verl.
        adv_eps: added to the standard deviation.
    """
    return Agent(
        advantage=GroupStandardised(std_ddof, adv_eps),
        ratio=TokenRatio(),
        trust_region=Clip(clip_low, clip_high),
        aggregation=TokenMean(),
        mask_truncated=mask_truncated,
    )
