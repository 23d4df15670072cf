"""VESPO."""

from typing import Literal

from grpo_gym.agent import Agent
from grpo_gym.objectives.advantages import GroupCentred, GroupStandardised
from grpo_gym.objectives.aggregations import SequenceSum, TokenMean
from grpo_gym.objectives.choices import choose
from grpo_gym.objectives.ratios import SequenceRatio
from grpo_gym.objectives.trust_regions import SequenceKernel


def vespo(
    k_positive: float = 2.0,
    lambda_positive: float = 3.0,
    k_negative: float = 3.0,
    lambda_negative: float = 2.0,
    advantage: Literal["group", "group_center"] = "group",
    loss_agg: Literal["token_mean", "seq_mean_token_sum"] = "token_mean",
    std_ddof: int = 0,
    adv_eps: float = 1e-4,
) -> Agent:
    r"""Variational Sequence-Level Soft Policy Optimization.

    VESPO: Variational Sequence-Level Soft Policy Optimization for Stable Off-Policy LLM Training
    (2026), arXiv 2602.10693.

    L = 1 / (sum_i |o_i|) sum_i sum_t -sg(phi(W_i)) A_i log pi(o_it)
    W_i = prod_t r_it,  phi(W) = W^k exp(lambda (1 - W))

    Differs from the paper in: advantage and aggregation are those of the official code; the paper's
    are advantage="group_center", loss_agg="seq_mean_token_sum".

    Args:
        k_positive: power of W where A >= 0: how fast stale rollouts lose weight.
        lambda_positive: decay where A >= 0: how fast rollouts that have become likely lose it.
        k_negative: power where A < 0.
        lambda_negative: decay where A < 0.
        advantage: "group" divides by the standard deviation, "group_center" does not.
        loss_agg: "token_mean" or "seq_mean_token_sum".
        std_ddof: 1 for the unbiased standard deviation of TRL, verl and OpenRLHF.
        adv_eps: added to the standard deviation.
    """
    return Agent(
        advantage=choose(
            "advantage",
            advantage,
            {"group": GroupStandardised(std_ddof, adv_eps), "group_center": GroupCentred()},
        ),
        ratio=SequenceRatio(length_normalize=False),
        trust_region=SequenceKernel(k_positive, lambda_positive, k_negative, lambda_negative),
        aggregation=choose(
            "loss_agg", loss_agg, {"token_mean": TokenMean(), "seq_mean_token_sum": SequenceSum()}
        ),
    )
