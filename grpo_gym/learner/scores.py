"""What a policy says about tokens."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class TokenScores(NamedTuple):
    """What a policy says about chosen tokens; a tuple, in which wrappers of the model find the tensors.

    Attributes:
        logprobs: (N,) log-probability of each target.
        entropy: (N,) entropy in nats of the whole distribution; None if it was not asked for.
        top_logprobs: (N, K) log-probabilities of given tokens, without gradient; None if none were
            given.
        values: (N,) what a critic expects; None if there is no critic.
    """

    logprobs: Tensor
    entropy: Tensor | None = None
    top_logprobs: Tensor | None = None
    values: Tensor | None = None

    def map(self, change: Callable[[Tensor], Tensor]) -> "TokenScores":
        """Scores with every tensor changed."""
        return TokenScores._make(None if value is None else change(value) for value in self)

    def widen(self, width: int) -> "TokenScores":
        """Scores of (b, T) as (b, width), padded with 0 on the right."""

        def pad(values: Tensor) -> Tensor:
            out = values.new_zeros(len(values), width - values.shape[1], *values.shape[2:])
            return torch.cat([values, out], 1)

        return self if self.logprobs.shape[1] == width else self.map(pad)

    @classmethod
    def join(cls, parts: Sequence["TokenScores"]) -> "TokenScores":
        """The scores of all parts, in order; all have the same tensors."""
        return cls._make(
            None if values[0] is None else torch.cat(values) for values in zip(*parts, strict=True)
        )
