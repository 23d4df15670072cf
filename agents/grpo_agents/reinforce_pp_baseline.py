"""REINFORCE++-baseline."""

from grpo_gym.agent import Agent
from grpo_gym.objectives.advantages import GroupCentred
from grpo_gym.objectives.aggregations import TokenMean
from grpo_gym.objectives.penalties import KLKind, kl_penalty
from grpo_gym.objectives.ratios import TokenRatio
from grpo_gym.objectives.token_advantages import Whitened
from grpo_gym.objectives.trust_regions import Clip


def reinforce_pp_baseline(
    kl: float = 0.0,
    kl_kind: KLKind = "k2",
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> Agent:
    r"""REINFORCE++ with the group's mean as baseline.

    REINFORCE++: Stabilizing Critic-Free Policy Optimization with Global Advantage Normalization
    (2025), arXiv 2501.03262.

    L = 1 / (sum_i |o_i|) sum_i sum_t [ -min(r_it A_i, clip(r_it, 1 - low, 1 + high) A_i) + beta
    k2_it ] A_i = R_i - mean R over the group, whitened over the batch's tokens

    Differs from the paper in: beta is 0, so that no reference model is needed.

    Args:
        kl: weight beta of the KL to the reference policy, in the loss.
        kl_kind: its estimator: k1, k2, k3, k3_is or k3_plus.
        clip_low: lower clip range.
        clip_high: upper clip range.
    """
    return Agent(
        advantage=Whitened(GroupCentred()),
        ratio=TokenRatio(),
        trust_region=Clip(clip_low, clip_high),
        aggregation=TokenMean(),
        penalties=kl_penalty(kl, kl_kind),
    )
