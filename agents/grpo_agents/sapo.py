"""SAPO."""

from typing import Literal

from grpo_gym.agent import Agent
from grpo_gym.objectives.advantages import GroupStandardised
from grpo_gym.objectives.aggregations import SequenceMean
from grpo_gym.objectives.ratios import TokenRatio
from grpo_gym.objectives.trust_regions import SoftGate


def sapo(
    tau_positive: float = 1.0,
    tau_negative: float = 1.05,
    gate: Literal["paper", "tutorial"] = "paper",
    std_ddof: int = 0,
    adv_eps: float = 1e-4,
) -> Agent:
    r"""Soft Adaptive Policy Optimization: a smooth gate in place of the clip.

    Soft Adaptive Policy Optimization (2025), arXiv 2511.20347.

    L = mean_i 1/|o_i| sum_t -f(r_it) A_i,  f(r) = 4 / tau sigmoid(tau (r - 1))
    A_i = (R_i - mean R) / std R; tau is tau_positive where A_i > 0, else tau_negative

    Differs from the paper in: the standard deviation is the population's.

    Args:
        tau_positive: decay of the gate for positive advantages; larger is harder.
        tau_negative: decay of the gate for negative advantages.
        gate: "tutorial" is a secondary reading, whose slope at r = 1 is not 1.
        std_ddof: 1 for the unbiased standard deviation of TRL, verl and OpenRLHF.
        adv_eps: added to the standard deviation.
    """
    return Agent(
        advantage=GroupStandardised(std_ddof, adv_eps),
        ratio=TokenRatio(),
        trust_region=SoftGate(tau_positive, tau_negative, gate),
        aggregation=SequenceMean(),
    )
