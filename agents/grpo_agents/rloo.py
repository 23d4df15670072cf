"""RLOO."""

from typing import Literal

from grpo_gym.agent import Agent
from grpo_gym.objectives.advantages import LeaveOneOut
from grpo_gym.objectives.aggregations import SequenceMean, SequenceSum
from grpo_gym.objectives.choices import choose
from grpo_gym.objectives.ratios import SequenceRatio, TokenRatio
from grpo_gym.objectives.trust_regions import Clip, Unbounded


def rloo(
    kl: float = 0.03,
    surrogate: Literal["reinforce", "seq_ppo"] = "reinforce",
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> Agent:
    r"""REINFORCE Leave-One-Out.

    Back to Basics: Revisiting REINFORCE Style Optimization for Learning from Human Feedback in LLMs
    (2024), arXiv 2402.14740.

    L = mean_i sum_t -A_i log pi(o_it),  A_i = R'_i - mean_{j != i} R'_j
    R'_i = R_i - beta sum_t (log pi_old(o_it) - log pi_ref(o_it))

    Differs from the paper in: nothing; surrogate="seq_ppo" is TRL's, a PPO clip of the ratio of the
    sequences' probabilities.

    Args:
        kl: weight beta of the KL inside the reward; 0 needs no reference model.
        surrogate: "reinforce" or "seq_ppo".
        clip_low: lower clip range of seq_ppo.
        clip_high: upper clip range of seq_ppo.
    """
    ratio, trust_region, aggregation = choose(
        "surrogate",
        surrogate,
        {
            "reinforce": (TokenRatio(), Unbounded(), SequenceSum()),
            "seq_ppo": (SequenceRatio(False), Clip(clip_low, clip_high), SequenceMean()),
        },
    )
    return Agent(LeaveOneOut(kl), ratio, trust_region, aggregation)
