"""The rows of a micro-batch as padded tensors; a prompt that rows share is held once."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from grpo_gym.types import BoolArray, IntArray


@dataclass(frozen=True)
class Rows:
    """b rows over n different prompts. Rows of one prompt are next to each other.

    Attributes:
        prompts: (n, P) int64 prompt ids, padded on the left.
        prompt_lengths: (n,) int64.
        counts: rows of each prompt, in order; they add up to b.
        tokens: (b, T) int64 tokens after the prompt, padded on the right.
        lengths: (b,) tokens of each row; always on the CPU.
        mask: (b, T) bool positions to score.
    """

    prompts: Tensor
    prompt_lengths: Tensor
    counts: tuple[int, ...]
    tokens: Tensor
    lengths: IntArray
    mask: Tensor

    def to(self, device: torch.device) -> "Rows":
        """The same rows on `device`."""
        return Rows(
            self.prompts.to(device),
            self.prompt_lengths.to(device),
            self.counts,
            self.tokens.to(device),
            self.lengths,
            self.mask.to(device),
        )


def pack(
    prompts: Sequence[IntArray], tokens: Sequence[IntArray], masks: Sequence[BoolArray]
) -> Rows:
    """Pack rows; neighbours with equal prompts share one.

    Each row is cut after its last position to score.

    Args:
        prompts: one array of ids a row, none empty.
        tokens: the tokens after each prompt.
        masks: which of them to score.

    Raises:
        ValueError: A prompt is empty: nothing predicts the first token after it.
    """
    if not all(len(prompt) for prompt in prompts):
        raise ValueError("an empty prompt predicts nothing: a row needs at least one token before")
    unique: list[IntArray] = []
    counts: list[int] = []
    for prompt in prompts:
        if unique and np.array_equal(unique[-1], prompt):
            counts[-1] += 1
        else:
            unique.append(prompt)
            counts.append(1)
    lengths = [int(np.flatnonzero(mask)[-1]) + 1 if mask.any() else 0 for mask in masks]
    width, prompt_width = max(lengths), max(len(prompt) for prompt in unique)
    padded_prompts = np.zeros((len(unique), prompt_width), dtype=np.int64)
    padded = np.zeros((len(lengths), width), dtype=np.int64)
    mask = np.zeros((len(lengths), width), dtype=np.bool_)
    for i, prompt in enumerate(unique):
        padded_prompts[i, prompt_width - len(prompt) :] = prompt
    for i, length in enumerate(lengths):
        padded[i, :length] = tokens[i][:length]
        mask[i, :length] = masks[i][:length]
    return Rows(
        prompts=torch.from_numpy(padded_prompts),
        prompt_lengths=torch.tensor([len(prompt) for prompt in unique]),
        counts=tuple(counts),
        tokens=torch.from_numpy(padded),
        lengths=np.array(lengths, dtype=np.int64),
        mask=torch.from_numpy(mask),
    )
