"""2-GRPO."""

from grpo_gym.agent import Agent
from grpo_gym.objectives.advantages import GroupStandardised
from grpo_gym.objectives.aggregations import SequenceMean
from grpo_gym.objectives.ratios import TokenRatio
from grpo_gym.objectives.selection import ZeroVariance, zero_variance
from grpo_gym.objectives.trust_regions import Clip


def two_grpo(
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    filter_zero_variance: ZeroVariance = "none",
    max_rounds: int = 10,
    std_ddof: int = 0,
    adv_eps: float = 1e-4,
) -> Agent:
    r"""GRPO with groups of two, whose advantages are +1 and -1, or 0 and 0.

    It Takes Two: Your GRPO Is Secretly DPO (2025), arXiv 2510.00977.

    L = mean_i 1/|o_i| sum_t -min(r_it A_i, clip(r_it, 1 - low, 1 + high) A_i),  G = 2

    Differs from the paper in:
    nothing; with the unbiased standard deviation of TRL and verl the advantages are +-0.707.

    Args:
        clip_low: lower clip range.
        clip_high: upper clip range.
        filter_zero_variance: what happens to pairs with equal rewards: "none", "drop", or
            "resample" (the paper's 2-GRPO+RS).
        max_rounds: most collections for one batch while pairs are being replaced.
        std_ddof: 1 for the unbiased standard deviation of TRL, verl and OpenRLHF.
        adv_eps: added to the standard deviation.
    """
    selection, rounds = zero_variance(filter_zero_variance, max_rounds)
    return Agent(
        advantage=GroupStandardised(std_ddof, adv_eps),
        ratio=TokenRatio(),
        trust_region=Clip(clip_low, clip_high),
        aggregation=SequenceMean(),
        selection=selection,
        max_rounds=rounds,
        group_size=2,
    )
