"""PPO."""

from grpo_gym.agent import Agent
from grpo_gym.objectives.aggregations import TokenMean
from grpo_gym.objectives.critics import ValueLoss
from grpo_gym.objectives.ratios import TokenRatio
from grpo_gym.objectives.token_advantages import GAE, Whitened
from grpo_gym.objectives.trust_regions import Clip


def ppo(
    kl: float = 0.05,
    gamma: float = 1.0,
    lam: float = 1.0,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
    value_clip: float | None = 0.5,
    value_coefficient: float = 1.0,
) -> Agent:
    r"""Proximal Policy Optimization with a critic: the baseline that GRPO left behind.

    Proximal Policy Optimization Algorithms (2017), arXiv 1707.06347; advantages from
    High-Dimensional Continuous Control Using Generalized Advantage Estimation (2015), arXiv
    1506.02438.

    L = 1 / (sum_i |o_i|) sum_i sum_t [ -min(r_it A_it, clip(r_it, 1 - low, 1 + high) A_it)
        + v/2 max((V - R)^2, (clip(V, V_old +- value_clip) - R)^2) ]
    A_it = whitened GAE of token rewards: -beta k1, and the reward on the last sampled token

    Differs from the paper in: the action is a token; the KL to the reference policy is RLHF's; no
    entropy bonus; a truncated rollout counts as ended.

    Args:
        kl: weight beta of the KL inside each token's reward; 0 needs no reference model.
        gamma: discount per token.
        lam: decay of the trace; 1 takes the whole return, 0.95 is the other usual value.
        clip_low: lower clip range.
        clip_high: upper clip range.
        dual_clip: where the advantage is negative, the loss stops growing at this ratio.
        value_clip: how far a value may move in one update; None sets no bound.
        value_coefficient: weight v of the critic's loss.
    """
    return Agent(
        advantage=Whitened(GAE(gamma, lam, kl)),
        ratio=TokenRatio(),
        trust_region=Clip(clip_low, clip_high, dual_clip),
        aggregation=TokenMean(),
        critic=ValueLoss(value_clip, value_coefficient),
    )
