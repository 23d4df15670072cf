"""GRPO."""

from grpo_gym.agent import Agent
from grpo_gym.objectives.advantages import GroupStandardised
from grpo_gym.objectives.aggregations import SequenceMean
from grpo_gym.objectives.penalties import KLKind, kl_penalty
from grpo_gym.objectives.ratios import TokenRatio
from grpo_gym.objectives.trust_regions import Clip


def grpo(
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
    kl: float = 0.0,
    kl_kind: KLKind = "k3",
    std_ddof: int = 0,
    adv_eps: float = 1e-4,
) -> Agent:
    r"""Group Relative Policy Optimization.

    DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models (2024), arXiv
    2402.03300.

    L = mean_i 1/|o_i| sum_t [ -min(r_it A_i, clip(r_it, 1 - low, 1 + high) A_i) + beta k3_it ]
    A_i = (R_i - mean R) / std R over the group,  r_it = pi(o_it) / pi_old(o_it)

    Differs from the paper in: beta is 0 (paper: 0.04), so that no reference model is needed; the
    paper states no clip range, and 0.2 is what trainers use; the standard deviation is the
    population's.

    Args:
        clip_low: lower clip range.
        clip_high: upper clip range.
        dual_clip: where the advantage is negative, the loss stops growing at this ratio (the
            two-sided clip's delta).
        kl: weight beta of the KL to the reference policy.
        kl_kind: its estimator: k1, k2, k3, k3_is or k3_plus.
        std_ddof: 1 for the unbiased standard deviation of TRL, verl and OpenRLHF.
        adv_eps: added to the standard deviation.
    """
    return Agent(
        advantage=GroupStandardised(std_ddof, adv_eps),
        ratio=TokenRatio(),
        trust_region=Clip(clip_low, clip_high, dual_clip),
        aggregation=SequenceMean(),
        penalties=kl_penalty(kl, kl_kind),
    )
