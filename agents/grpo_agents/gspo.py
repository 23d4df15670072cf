"""GSPO."""

from grpo_gym.agent import Agent
from grpo_gym.objectives.advantages import GroupStandardised
from grpo_gym.objectives.aggregations import SequenceMean
from grpo_gym.objectives.ratios import SequenceRatio
from grpo_gym.objectives.trust_regions import Clip


def gspo(
    clip_low: float = 3e-4,
    clip_high: float = 4e-4,
    length_normalize: bool = True,
    std_ddof: int = 0,
    adv_eps: float = 1e-4,
) -> Agent:
    r"""Group Sequence Policy Optimization.

    Group Sequence Policy Optimization (2025), arXiv 2507.18071.

    L = mean_i -min(s_i A_i, clip(s_i, 1 - low, 1 + high) A_i),  s_i = exp(mean_t log r_it)
    A_i = (R_i - mean R) / std R over the group

    Differs from the paper in: the standard deviation is the population's.

    Args:
        clip_low: lower clip range; far smaller than a token's, since s_i is a geometric mean.
        clip_high: upper clip range.
        length_normalize: False takes s_i = prod_t r_it, as some tutorials have it.
        std_ddof: 1 for the unbiased standard deviation of TRL, verl and OpenRLHF.
        adv_eps: added to the standard deviation.
    """
    return Agent(
        advantage=GroupStandardised(std_ddof, adv_eps),
        ratio=SequenceRatio(length_normalize),
        trust_region=Clip(clip_low, clip_high),
        aggregation=SequenceMean(),
    )
