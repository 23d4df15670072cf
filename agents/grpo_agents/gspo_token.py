"""GSPO-token."""

from grpo_gym.agent import Agent
from grpo_gym.objectives.advantages import GroupStandardised
from grpo_gym.objectives.aggregations import SequenceMean
from grpo_gym.objectives.ratios import SequenceTokenRatio
from grpo_gym.objectives.trust_regions import Clip


def gspo_token(
    clip_low: float = 3e-4,
    clip_high: float = 4e-4,
    length_normalize: bool = True,
    std_ddof: int = 0,
    adv_eps: float = 1e-4,
) -> Agent:
    r"""GSPO with a gradient per token, for advantages that differ between tokens.

    Group Sequence Policy Optimization (2025), arXiv 2507.18071, equations 13 and 14.

    L = mean_i 1/|o_i| sum_t -min(s_it A_it, clip(s_it, 1 - low, 1 + high) A_it)
    s_it = sg(s_i) pi(o_it) / sg(pi(o_it)),  s_i = exp(mean_t log r_it)

    With one advantage per rollout, value and gradient are GSPO's. Differs from the paper in: the
    standard deviation is the population's.

    Args:
        clip_low: lower clip range; far smaller than a token's, since s_i is a geometric mean.
        clip_high: upper clip range.
        length_normalize: False takes s_i = prod_t r_it, as some tutorials have it.
        std_ddof: 1 for the unbiased standard deviation of TRL, verl and OpenRLHF.
        adv_eps: added to the standard deviation.
    """
    return Agent(
        advantage=GroupStandardised(std_ddof, adv_eps),
        ratio=SequenceTokenRatio(length_normalize),
        trust_region=Clip(clip_low, clip_high),
        aggregation=SequenceMean(),
    )
