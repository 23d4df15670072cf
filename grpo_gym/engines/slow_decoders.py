"""Decoders for models whose lanes cannot share a cache of keys and values."""

import copy
import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from grpo_gym.engines.decoders import Decoder
from grpo_gym.engines.prefill import LOGITS, Prompt, chunks, padded, vocabulary


class SeparateDecoder(Decoder):
    """Each lane has the cache that the model makes for itself, and its own forward pass.

    Slower, but right for models that need more than keys and values: recurrent layers, biases of
    the attention, caches of their own.
    """

    def __init__(self, model: PreTrainedModel, budget: int) -> None:
        super().__init__(model, budget)
        self.caches: list[Any] = []
        known = inspect.signature(model.forward).parameters
        self._last = {"logits_to_keep": 1} if "logits_to_keep" in known else {}

    def prefill(self, prompts: Sequence[Prompt], copies: Sequence[int]) -> Tensor:
        """See `Decoder.prefill`."""
        parts = []
        for prompt, count in zip(prompts, copies, strict=True):
            out = self.model(self._ids(prompt), use_cache=True, **self._last)
            parts += [out.logits[:, -1]] * count
            self.caches += [copy.deepcopy(out.past_key_values) for _ in range(count)]
        return torch.cat(parts)

    def decode(self, token_ids: Sequence[int]) -> Tensor:
        """See `Decoder.decode`."""
        parts = []
        for row, token in enumerate(token_ids):
            out = self.model(self._ids([token]), past_key_values=self.caches[row], use_cache=True)
            self.caches[row] = out.past_key_values
            parts.append(out.logits[:, -1])
        return torch.cat(parts)

    def leave(self, row: int, ids: Prompt = ()) -> None:
        """See `Decoder.leave`."""
        self.caches[row] = self.caches[-1]
        self.caches.pop()

    def clear(self) -> None:
        """See `Decoder.clear`."""
        self.caches.clear()

    def _ids(self, token_ids: Sequence[int]) -> Tensor:
        return torch.tensor([token_ids], device=self.model.device)


class WholeDecoder(Decoder):
    """Every lane runs its whole sequence again for each token.

    The slowest by far, and right for every causal model, whatever it carries from token to token.
    """

    def __init__(self, model: PreTrainedModel, budget: int) -> None:
        super().__init__(model, min(budget, max(1, LOGITS // vocabulary(model))))
        self.rows: list[list[int]] = []

    def prefill(self, prompts: Sequence[Prompt], copies: Sequence[int]) -> Tensor:
        """See `Decoder.prefill`."""
        self.rows += [
            list(prompt) for prompt, n in zip(prompts, copies, strict=True) for _ in range(n)
        ]
        logits = self._last(prompts)
        return logits.repeat_interleave(torch.tensor(copies, device=logits.device), 0)

    def decode(self, token_ids: Sequence[int]) -> Tensor:
        """See `Decoder.decode`."""
        for row, token in zip(self.rows, token_ids, strict=True):
            row.append(token)
        return self._last(self.rows)

    def leave(self, row: int, ids: Prompt = ()) -> None:
        """See `Decoder.leave`."""
        self.rows[row] = self.rows[-1]
        self.rows.pop()

    def clear(self) -> None:
        """See `Decoder.clear`."""
        self.rows.clear()

    def _last(self, rows: Sequence[Sequence[int]]) -> Tensor:
        parts = []
        for chunk in chunks(rows, self.budget):
            some = rows[chunk.start : chunk.stop]
            logits = self.model(padded(some, self.model.device), use_cache=False).logits
            parts.append(logits[range(len(some)), [len(row) - 1 for row in some]])
        return torch.cat(parts)
