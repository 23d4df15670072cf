"""DAPO."""

from typing import Literal

from grpo_gym.agent import Agent
from grpo_gym.objectives.advantages import GroupStandardised
from grpo_gym.objectives.aggregations import PromptMean, TokenMean
from grpo_gym.objectives.choices import choose
from grpo_gym.objectives.ratios import TokenRatio
from grpo_gym.objectives.selection import ZeroVariance, zero_variance
from grpo_gym.objectives.shaping import Overlong, soft_overlong
from grpo_gym.objectives.trust_regions import Clip


def dapo(
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    filter_zero_variance: ZeroVariance = "resample",
    max_rounds: int = 10,
    mask_truncated: bool = False,
    max_tokens: int | None = None,
    overlong_buffer: int = 4096,
    overlong_kind: Overlong = "paper",
    loss_agg: Literal["token_mean", "prompt_mean"] = "token_mean",
    std_ddof: int = 0,
    adv_eps: float = 1e-4,
) -> Agent:
    r"""Decoupled Clip and Dynamic sAmpling Policy Optimization.

    DAPO: An Open-Source LLM Reinforcement Learning System at Scale (2025), arXiv 2503.14476.

    L = 1 / (sum_i |o_i|) sum_i sum_t -min(r_it A_i, clip(r_it, 1 - low, 1 + high) A_i)
    A_i = (R_i - mean R) / std R; groups in which all rewards are equal are replaced by new ones.

    Differs from the paper in: the expectation over prompts may also be read as a mean per prompt
    (loss_agg="prompt_mean"); the soft overlong punishment needs to know the budget, so it is on
    only where max_tokens is given; the standard deviation is the population's.

    Args:
        clip_low: lower clip range.
        clip_high: upper clip range, the paper's clip-higher.
        filter_zero_variance: what happens to groups with equal rewards: "none", "drop" or
            "resample" (dynamic sampling).
        max_rounds: most collections for one batch while groups are being replaced.
        mask_truncated: overlong filtering: truncated rollouts leave the loss.
        max_tokens: most tokens of a rollout; with it, long rollouts are punished softly.
        overlong_buffer: the punishment grows over this many tokens before max_tokens.
        overlong_kind: "tutorial" lets it go on growing beyond max_tokens.
        loss_agg: "token_mean" over the batch, or "prompt_mean".
        std_ddof: 1 for the unbiased standard deviation of TRL, verl and OpenRLHF.
        adv_eps: added to the standard deviation.
    """
    selection, rounds = zero_variance(filter_zero_variance, max_rounds)
    return Agent(
        advantage=GroupStandardised(std_ddof, adv_eps),
        ratio=TokenRatio(),
        trust_region=Clip(clip_low, clip_high),
        aggregation=choose(
            "loss_agg", loss_agg, {"token_mean": TokenMean(), "prompt_mean": PromptMean()}
        ),
        shaping=soft_overlong(max_tokens, overlong_buffer, overlong_kind),
        selection=selection,
        max_rounds=rounds,
        mask_truncated=mask_truncated,
    )
