"""Importance ratios, as logarithms."""

from dataclasses import dataclass

from torch import Tensor

from grpo_gym.objectives.reductions import row_mean, row_sum
from grpo_gym.objectives.stages import Anchor, Ratio, Terms

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are clamped to plus or minus this before they are exponentiated."""


def bounded_exp(log_ratio: Tensor) -> Tensor:
    """Exp that cannot overflow: the argument is clamped to plus or minus 20."""
    return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def token_log_ratio(terms: Terms) -> Tensor:
    """(B, T) log pi - log pi_old of each token, clamped."""
    return (terms.logprobs - terms.old).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


@dataclass(frozen=True)
class TokenRatio(Ratio):
    """r_t = pi(o_t) / pi_old(o_t).

    Attributes:
        anchor: "old", or "behaviour" to measure from the policy that sampled.
    """

    anchor: Anchor = "old"

    def __call__(self, terms: Terms) -> Tensor:
        """See `Ratio`."""
        return token_log_ratio(terms)


@dataclass(frozen=True)
class SequenceRatio(Ratio):
    """s = exp(mean_t log r_t): one ratio for a rollout. GSPO, arXiv 2507.18071, eq. 7.

    Attributes:
        length_normalize: False takes the sum, the ratio of the sequences' probabilities.
        anchor: "old", or "behaviour" to measure from the policy that sampled.
    """

    length_normalize: bool = True
    anchor: Anchor = "old"

    def __call__(self, terms: Terms) -> Tensor:
        """See `Ratio`."""
        reduce = row_mean if self.length_normalize else row_sum
        return reduce(token_log_ratio(terms), terms.mask).expand_as(terms.logprobs)


@dataclass(frozen=True)
class SequenceTokenRatio(Ratio):
    """s_t = sg(s) pi(o_t) / sg(pi(o_t)): GSPO's ratio with a gradient per token. GSPO, eq. 13.

    Attributes:
        length_normalize: False takes the ratio of the sequences' probabilities.
        anchor: "old", or "behaviour" to measure from the policy that sampled.
    """

    length_normalize: bool = True
    anchor: Anchor = "old"

    def __call__(self, terms: Terms) -> Tensor:
        """See `Ratio`."""
        sequence = SequenceRatio(self.length_normalize)(terms).detach()
        return sequence + (terms.logprobs - terms.logprobs.detach())
