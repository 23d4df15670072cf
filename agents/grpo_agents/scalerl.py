"""ScaleRL."""

from grpo_gym.agent import Agent
from grpo_gym.objectives.advantages import BatchStandardised
from grpo_gym.objectives.aggregations import PromptMean
from grpo_gym.objectives.ratios import TokenRatio
from grpo_gym.objectives.selection import ZeroVariance, zero_variance
from grpo_gym.objectives.trust_regions import WeightCap


def scalerl(
    ratio_cap: float = 5.0,
    filter_zero_variance: ZeroVariance = "drop",
    max_rounds: int = 10,
    std_ddof: int = 0,
    adv_eps: float = 1e-4,
) -> Agent:
    r"""ScaleRL's recipe: CISPO from the generator's policy, scaled by the batch.

    The Art of Scaling Reinforcement Learning Compute for LLMs (2025), arXiv 2510.13786.

    L = mean_p 1 / (sum_{i in p} |o_i|) sum_{i in p} sum_t -sg(min(r_it, cap)) A_i log pi(o_it)
    A_i = (R_i - mean_group R) / std of all R - mean_group R in the batch,  r = pi / pi_behaviour

    Groups with equal rewards are dropped.

    Differs from the paper in: the curriculum that retires
    prompts with a pass rate of 0.9, the pipeline and the forced endings are not parts of an update
    rule; the standard deviation is the population's.

    Args:
        ratio_cap: largest weight, an absolute ratio.
        filter_zero_variance: what happens to groups with equal rewards: "none", "drop" or
            "resample".
        max_rounds: most collections for one batch while groups are being replaced.
        std_ddof: 1 for the unbiased standard deviation of TRL, verl and OpenRLHF.
        adv_eps: added to the standard deviation.
    """
    selection, rounds = zero_variance(filter_zero_variance, max_rounds)
    return Agent(
        advantage=BatchStandardised("group", "advantages", std_ddof, adv_eps),
        ratio=TokenRatio(anchor="behaviour"),
        trust_region=WeightCap(ratio_cap),
        aggregation=PromptMean(),
        selection=selection,
        max_rounds=rounds,
    )
