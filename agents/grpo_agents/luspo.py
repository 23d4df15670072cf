"""LUSPO."""

from grpo_gym.agent import Agent
from grpo_gym.objectives.advantages import GroupStandardised
from grpo_gym.objectives.aggregations import SequenceSum
from grpo_gym.objectives.ratios import SequenceRatio
from grpo_gym.objectives.trust_regions import Clip


def luspo(
    clip_low: float = 3e-4,
    clip_high: float = 4e-4,
    std_ddof: int = 0,
    adv_eps: float = 1e-4,
) -> Agent:
    r"""Length-Unbiased Sequence Policy Optimization: GSPO, each rollout times its length.

    Length-Unbiased Sequence Policy Optimization: Revealing and Controlling Response Length
    Variation in RLVR (2026), arXiv 2602.05261.

    L = mean_i -|o_i| min(s_i A_i, clip(s_i, 1 - low, 1 + high) A_i),  s_i = exp(mean_t log r_it)

    Differs from the paper in: the clip range is GSPO's; the standard deviation is the population's.

    Args:
        clip_low: lower clip range.
        clip_high: upper clip range.
        std_ddof: 1 for the unbiased standard deviation of TRL, verl and OpenRLHF.
        adv_eps: added to the standard deviation.
    """
    return Agent(
        advantage=GroupStandardised(std_ddof, adv_eps),
        ratio=SequenceRatio(),
        trust_region=Clip(clip_low, clip_high),
        aggregation=SequenceSum(),
    )
