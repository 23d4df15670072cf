"""The loss of a critic."""

from dataclasses import dataclass

import torch
from torch import Tensor

from grpo_gym.objectives.choices import at_least
from grpo_gym.objectives.signals import Needs
from grpo_gym.objectives.stages import Stage


@dataclass(frozen=True)
class ValueLoss(Stage):
    """coefficient / 2 * max((V - R)^2, (clip(V, V_old +- clip) - R)^2) of each token.

    Attributes:
        clip: how far the value may move from the old one; None sets no bound.
        coefficient: weight of the loss.
    """

    clip: float | None = 0.5
    coefficient: float = 1.0

    def __post_init__(self) -> None:
        at_least("value clip", self.clip or 0, 0)

    @property
    def needs(self) -> Needs:
        """A critic."""
        return Needs(critic=True)

    def __call__(self, values: Tensor, old_values: Tensor, returns: Tensor) -> Tensor:
        """(B, T) loss from new values with gradient, old values and returns."""
        clip = torch.inf if self.clip is None else self.clip
        near = old_values + (values - old_values).clamp(-clip, clip)
        worse = torch.maximum((values - returns) ** 2, (near - returns) ** 2)
        return self.coefficient * worse / 2
