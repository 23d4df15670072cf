"""What a batch, and a loss, tell about themselves, as (sum, count) pairs."""

import torch
from torch import Tensor

from grpo_gym.objectives.ratios import LOG_RATIO_LIMIT, bounded_exp
from grpo_gym.objectives.reductions import STD_FLOOR, group_centred, group_std, masked
from grpo_gym.objectives.signals import Metrics, Signals
from grpo_gym.objectives.stages import Terms


def pair(values: Tensor, where: Tensor) -> tuple[Tensor, Tensor]:
    """(sum, count) of `values` over `where`."""
    return masked(values.detach().double(), where).sum(), where.sum()


def batch_metrics(signals: Signals, scored: Signals, possible: Tensor, mask: Tensor) -> Metrics:
    """About a whole batch.

    - frac_reward_zero_std: rollouts, of those with a reward, whose group's rewards are all equal.
    - frac_unscored: rollouts without a reward.
    - frac_impossible: tokens dropped because a policy gives them probability 0.
    - frac_masked: tokens that left the loss for another reason (truncated rollouts, masked
      weights).
    """
    centred = group_centred(scored.rewards, scored.group)
    flat = group_std(centred, scored.group, 0) < STD_FLOOR
    every = torch.ones_like(signals.truncated)
    return {
        "frac_reward_zero_std": pair(flat, ~scored.rewards.isnan()),
        "frac_unscored": pair(signals.rewards.isnan(), every),
        "frac_impossible": pair(signals.mask & ~possible, signals.mask),
        "frac_masked": pair(possible & ~mask, possible),
    }


def loss_metrics(
    terms: Terms, log_ratio: Tensor, bounded: Tensor, importance: Tensor, keep: Tensor
) -> Metrics:
    """About the tokens of some rows.

    - ratio: importance ratio to the anchor.
    - clip_fraction: tokens that the trust region bounds.
    - ratio_clamped: log-ratios that ran into plus or minus 20.
    - kept_fraction: tokens to which the corrections left a weight.
    - importance_weight, behaviour_gap, behaviour_nan: weight old/behaviour; |log pi_old - log
      pi_behaviour|; tokens without a behaviour log-prob.
    - kl, kl_clamped: k3 estimate of the KL to the reference policy; log-ratios beyond plus or minus
      20.
    - entropy: of the policy.
    """
    mask = terms.mask
    values = {
        "ratio": bounded_exp(log_ratio),
        "clip_fraction": bounded,
        "ratio_clamped": log_ratio.abs() >= LOG_RATIO_LIMIT,
        "kept_fraction": (keep != 0) & (importance != 0),
    }
    if terms.entropy is not None:
        values["entropy"] = terms.entropy
    if terms.reference is not None:
        x = (terms.reference - terms.logprobs).detach()
        bounded_x = x.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
        values["kl"] = bounded_x.exp() - bounded_x - 1
        values["kl_clamped"] = x != bounded_x
    metrics = {name: pair(value, mask) for name, value in values.items()}
    if terms.behaviour is not None:
        unknown = terms.behaviour.isnan()
        metrics["importance_weight"] = pair(importance, mask)
        metrics["behaviour_gap"] = pair((terms.old - terms.behaviour).abs(), mask & ~unknown)
        metrics["behaviour_nan"] = pair(unknown, mask)
    return metrics
