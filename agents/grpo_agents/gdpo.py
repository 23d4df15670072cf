"""GDPO."""

from collections.abc import Mapping

from grpo_gym.agent import Agent
from grpo_gym.objectives.aggregations import TokenMean
from grpo_gym.objectives.multi_reward import NormaliseThenSum, as_weights
from grpo_gym.objectives.ratios import TokenRatio
from grpo_gym.objectives.trust_regions import Clip


def gdpo(
    weights: Mapping[str, float] | None = None,
    batch_norm: bool = True,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    std_ddof: int = 0,
    adv_eps: float = 1e-4,
) -> Agent:
    r"""Group reward-Decoupled normalization Policy Optimization, for several rewards.

    GDPO: Group reward-Decoupled Normalization Policy Optimization for Multi-reward RL Optimization
    (2026), arXiv 2601.05242.

    A_k = (R_k - mean) / std over the group, S = sum_k w_k A_k, A = (S - mean) / std over the batch
    L = 1 / (sum_i |o_i|) sum_i sum_t -min(r_it A_i, clip(r_it, 1 - low, 1 + high) A_i)

    Differs from the paper in: the surrogate, which the paper leaves open, is DAPO's; the last step
    is taken with one reward too; the standard deviations are the population's.

    Args:
        weights: weight of each reward component by name; None: every component weighs 1.
        batch_norm: False leaves the last step out, as a tutorial does.
        clip_low: lower clip range.
        clip_high: upper clip range.
        std_ddof: 1 for the unbiased standard deviation of TRL, verl and OpenRLHF.
        adv_eps: added to the standard deviations.
    """
    return Agent(
        advantage=NormaliseThenSum(as_weights(weights), batch_norm, std_ddof, adv_eps),
        ratio=TokenRatio(),
        trust_region=Clip(clip_low, clip_high),
        aggregation=TokenMean(),
    )
