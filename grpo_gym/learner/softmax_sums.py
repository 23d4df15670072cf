"""A softmax over columns that are seen tile by tile: its partition function and its entropy."""

import torch
from torch import Tensor


class Sums:
    """Running sums over the columns of some rows, relative to the largest logit z so far.

    The partition function and, where the entropy is wanted, the sum of exp(z) z.
    """

    def __init__(self, rows: int, like: Tensor, entropy: bool) -> None:
        # not -inf, which would make nan of the columns that are -inf themselves
        self.top = like.new_full((rows,), torch.finfo(like.dtype).min)
        self.total = like.new_zeros(rows)
        self.moment = like.new_zeros(rows) if entropy else None

    def add(self, logits: Tensor) -> None:
        """Take in a tile (n, v)."""
        top = torch.maximum(self.top, logits.amax(1))
        change = torch.where(self.total > 0, self.top - top, 0.0)
        shrink = change.exp()
        shifted = logits - top[:, None]
        if self.moment is None:
            self.total.mul_(shrink).add_(shifted.exp_().sum(1))
        else:
            weights = shifted.exp()
            self.moment.add_(change * self.total).mul_(shrink)
            self.moment.add_(torch.where(weights > 0, shifted.mul_(weights), 0.0).sum(1))
            self.total.mul_(shrink).add_(weights.sum(1))
        self.top = top

    def log_z(self) -> Tensor:
        """(n,) logarithm of the partition function."""
        return self.top + self.total.log()

    def entropy(self) -> Tensor:
        """(n,) log Z - sum p z."""
        assert self.moment is not None
        return self.total.log() - self.moment / self.total
