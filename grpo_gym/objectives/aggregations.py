"""Weights that turn the losses of tokens into one loss.

Each is computed once from the mask of a whole optimiser window, so the loss is a plain weighted
sum and micro-batches or data-parallel ranks add up exactly, for any split.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from grpo_gym.errors import UsageError
from grpo_gym.objectives.reductions import group_index
from grpo_gym.objectives.stages import Aggregation


def _row_count(tokens: Tensor, count_empty_rows: bool) -> Tensor:
    """How many rows share the loss, at least 1."""
    return (tokens >= (0 if count_empty_rows else 1)).sum().clamp(min=1)


@dataclass(frozen=True)
class TokenMean(Aggregation):
    """Every token weighs the same: 1 / number of tokens of the window. DAPO, arXiv 2503.14476."""

    def __call__(self, mask: Tensor, group: Tensor) -> Tensor:
        """See `Aggregation`."""
        weights = mask.double()
        return weights / weights.sum().clamp(min=1)


@dataclass(frozen=True)
class SequenceMean(Aggregation):
    """Mean over a rollout's tokens, then over rollouts. GRPO, arXiv 2402.03300.

    Attributes:
        count_empty_rows: whether rollouts without a token in the loss count in the denominator (as
            TRL has it).
    """

    count_empty_rows: bool = False

    def __call__(self, mask: Tensor, group: Tensor) -> Tensor:
        """See `Aggregation`."""
        tokens = mask.sum(1, keepdim=True)
        rows = _row_count(tokens, self.count_empty_rows)
        return mask.double() / tokens.clamp(min=1) / rows


@dataclass(frozen=True)
class SequenceSum(Aggregation):
    """Sum over a rollout's tokens, mean over rollouts.

    Attributes:
        count_empty_rows: whether rollouts without a token in the loss count in the denominator (as
            TRL has it).
    """

    count_empty_rows: bool = False

    def __call__(self, mask: Tensor, group: Tensor) -> Tensor:
        """See `Aggregation`."""
        return mask.double() / _row_count(mask.sum(1), self.count_empty_rows)


@dataclass(frozen=True)
class FixedLengthMean(Aggregation):
    """Sum over a rollout's tokens divided by a constant, mean over rollouts.

    Dr. GRPO, arXiv 2503.20783.

    Attributes:
        length: the constant, most tokens that a rollout may have.
        count_empty_rows: whether rollouts without a token in the loss count in the denominator (as
            TRL has it).
    """

    length: int
    count_empty_rows: bool = False

    def __post_init__(self) -> None:
        if self.length < 1:
            raise UsageError(
                f"FixedLengthMean(length={self.length}): the length must be at least 1; "
                "give the most tokens a rollout may have"
            )

    def __call__(self, mask: Tensor, group: Tensor) -> Tensor:
        """See `Aggregation`."""
        return SequenceSum(self.count_empty_rows)(mask, group) / self.length


@dataclass(frozen=True)
class PromptMean(Aggregation):
    """Mean over all tokens of a group, then over groups: the second reading of DAPO; ScaleRL."""

    def __call__(self, mask: Tensor, group: Tensor) -> Tensor:
        """See `Aggregation`."""
        index, count = group_index(group)
        tokens = torch.zeros(count, dtype=torch.float64, device=mask.device)
        tokens = tokens.index_add(0, index, mask.sum(1).double())
        groups = (tokens > 0).sum().clamp(min=1)
        return mask.double() / tokens.clamp(min=1)[index, None] / groups


@dataclass(frozen=True)
class TokenSum(Aggregation):
    """Every token weighs 1."""

    def __call__(self, mask: Tensor, group: Tensor) -> Tensor:
        """See `Aggregation`."""
        return mask.double()
