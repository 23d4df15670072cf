"""Advantages of whole rollouts, relative to their group."""

from dataclasses import dataclass

from torch import Tensor

from grpo_gym.objectives.reductions import group_centred, group_std
from grpo_gym.objectives.signals import Signals
from grpo_gym.objectives.stages import Advantage

STD_FLOOR = 1e-8
"""A standard deviation below this is rounding noise, and counts as 0."""


def divided(values: Tensor, std: Tensor, eps: float) -> Tensor:
    """Values / (std + eps), exactly 0 where std is rounding noise."""
    return (values / (std + eps)).where(std >= STD_FLOOR, 0.0)


@dataclass(frozen=True)
class GroupStandardised(Advantage):
    """A = (R - mean) / (std + eps) over the group. GRPO, arXiv 2402.03300, section 4.1.2.

    Attributes:
        ddof: 0 for the population's standard deviation, 1 for the unbiased one of TRL, verl and
            OpenRLHF.
        eps: added to the standard deviation.
    """

    ddof: int = 0
    eps: float = 1e-4

    def __call__(self, signals: Signals) -> Tensor:
        """See `Advantage`."""
        centred = group_centred(signals.rewards, signals.group)
        return divided(centred, group_std(centred, signals.group, self.ddof), self.eps)


@dataclass(frozen=True)
class GroupCentred(Advantage):
    """A = R - mean over the group. Dr. GRPO, arXiv 2503.20783."""

    def __call__(self, signals: Signals) -> Tensor:
        """See `Advantage`."""
        return group_centred(signals.rewards, signals.group)
