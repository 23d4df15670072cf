"""REINFORCE++."""

from grpo_gym.agent import Agent
from grpo_gym.objectives.aggregations import TokenMean
from grpo_gym.objectives.ratios import TokenRatio
from grpo_gym.objectives.token_advantages import ReturnToGo, Whitened
from grpo_gym.objectives.trust_regions import Clip


def reinforce_pp(
    kl: float = 0.001,
    gamma: float = 1.0,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> Agent:
    r"""REINFORCE++: no critic and no group; the whole batch is the baseline.

    REINFORCE++: Stabilizing Critic-Free Policy Optimization with Global Advantage Normalization
    (2025), arXiv 2501.03262.

    L = 1 / (sum_i |o_i|) sum_i sum_t -min(r_it A_it, clip(r_it, 1 - low, 1 + high) A_it)
    A_it = the return from token t on, minus beta k1 of those tokens, whitened over the batch's
    tokens

    Differs from the paper in: beta and the clip range come from secondary sources.

    Args:
        kl: weight beta of the KL inside each token's reward; 0 needs no reference model.
        gamma: discount per token.
        clip_low: lower clip range.
        clip_high: upper clip range.
    """
    return Agent(
        advantage=Whitened(ReturnToGo(gamma, kl)),
        ratio=TokenRatio(),
        trust_region=Clip(clip_low, clip_high),
        aggregation=TokenMean(),
    )
