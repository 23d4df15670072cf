"""Sums and means over groups and over masked tokens."""

import torch
from torch import Tensor

STD_FLOOR = 1e-10
"""A standard deviation below this is rounding noise in float64, and counts as 0."""


def divided(values: Tensor, std: Tensor, eps: float) -> Tensor:
    """Quotient values / (std + eps), exactly 0 where std is rounding noise."""
    return (values / (std + eps)).where(std >= STD_FLOOR, 0.0)


def masked(values: Tensor, mask: Tensor) -> Tensor:
    """`values` with 0 wherever `mask` is False, so that nan and inf there touch nothing."""
    return torch.where(mask, values, torch.zeros((), dtype=values.dtype, device=values.device))


def row_sum(values: Tensor, mask: Tensor) -> Tensor:
    """(B, 1) sum over the tokens of each row."""
    return masked(values, mask).sum(1, keepdim=True)


def row_mean(values: Tensor, mask: Tensor) -> Tensor:
    """(B, 1) mean over the tokens of each row; 0 for a row without any."""
    return row_sum(values, mask) / mask.sum(1, keepdim=True).clamp(min=1)


def group_index(group: Tensor) -> tuple[Tensor, int]:
    """(B,) the groups renumbered from 0, and how many there are."""
    found, index = torch.unique(group, return_inverse=True)
    return index, len(found)


def group_sum(values: Tensor, group: Tensor) -> Tensor:
    """(B,) for each row, the sum of `values` over its group; nan counts as nothing."""
    index, count = group_index(group)
    total = torch.zeros(count, dtype=values.dtype, device=values.device)
    return total.index_add(0, index, values.nan_to_num(nan=0.0))[index]


def group_size(values: Tensor, group: Tensor) -> Tensor:
    """(B,) for each row, how many rows of its group have a number."""
    return group_sum((~values.isnan()).to(values.dtype), group)


def group_centred(values: Tensor, group: Tensor) -> Tensor:
    """(B,) each value minus the mean of its group; nan stays nan.

    The group's smallest value is taken off first, so that equal values give exactly 0.
    """
    index, count = group_index(group)
    lowest = torch.full((count,), torch.inf, dtype=values.dtype, device=values.device)
    lowest = lowest.scatter_reduce(0, index, values.nan_to_num(nan=torch.inf), "amin")[index]
    shifted = values - lowest
    return shifted - group_sum(shifted, group) / group_size(values, group).clamp(min=1)


def group_std(centred: Tensor, group: Tensor, ddof: int) -> Tensor:
    """(B,) standard deviation of each row's group, from values centred by group; 0 for one row."""
    size = group_size(centred, group)
    return (group_sum(centred**2, group) / (size - ddof).clamp(min=1)).sqrt()


def std(values: Tensor, ddof: int) -> Tensor:
    """Standard deviation of the numbers among `values`; 0 for fewer than two."""
    known = values[~values.isnan()]
    if len(known) < 2:
        return torch.zeros((), dtype=values.dtype, device=values.device)
    return known.std(correction=ddof)
