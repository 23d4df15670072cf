"""Keys and values of lanes that ended: the next turn of a conversation goes on from them."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from grpo_gym.engines.lane_attention import Layers
from grpo_gym.engines.prefill import Prompt, padded


@dataclass(frozen=True, eq=False)
class Turn:
    """A sequence of L tokens, and their keys and values, each (1, heads, L, size)."""

    ids: Prompt
    layers: Layers

    @property
    def bytes(self) -> int:
        """What they take."""
        return sum(x.numel() * x.element_size() for pair in self.layers for x in pair)


class Turns:
    """What is kept of lanes that ended; the oldest is forgotten first.

    Args:
        most_bytes: most memory to keep.
        shortest: shorter sequences are not worth their copy.
    """

    def __init__(self, most_bytes: int, shortest: int) -> None:
        self.most_bytes = most_bytes
        self.shortest = shortest
        self.bytes = 0
        self._kept: OrderedDict[int, Turn] = OrderedDict()

    def wants(self, ids: Sequence[int]) -> bool:
        """Whether a sequence is worth keeping."""
        return self.most_bytes > 0 and len(ids) >= self.shortest

    def keep(self, turn: Turn) -> None:
        """Keep a sequence, and forget others until there is room for it."""
        if turn.bytes > self.most_bytes:
            return
        key = 0
        for token in turn.ids:
            key = hash((key, token))
        self._forget(key)
        self._kept[key] = turn
        self.bytes += turn.bytes
        while self.bytes > self.most_bytes:
            self._forget(next(iter(self._kept)))

    def take(self, prompt: Prompt) -> Turn | None:
        """The longest sequence that `prompt` goes on from, which is then no longer kept."""
        if not self._kept or len(prompt) <= self.shortest:
            return None
        key, found = 0, None
        for token in prompt[:-1]:
            key = hash((key, token))
            found = key if key in self._kept else found
        if found is None:
            return None
        turn = self._kept[found]
        if prompt[: len(turn.ids)] != turn.ids:  # two sequences with one hash
            return None
        self._forget(found)
        return turn

    def clear(self) -> None:
        """Forget everything."""
        self._kept.clear()
        self.bytes = 0

    def _forget(self, key: int) -> None:
        turn = self._kept.pop(key, None)
        self.bytes -= turn.bytes if turn else 0


def resumed_logits(
    model: PreTrainedModel, prompts: Sequence[Prompt], turns: Sequence[Turn]
) -> tuple[Tensor, Layers]:
    """What `last_logits` gives for n prompts, while only what follows each one's turn is encoded.

    The turns are padded on the left, so that all end in the same column and what follows is as far from
    every key as in the row alone.

    Args:
        model: a causal language model whose cache holds keys and values.
        prompts: n sequences.
        turns: what each goes on from.
    """
    lengths = [len(turn.ids) for turn in turns]
    width = max(lengths)
    after = [prompt[n:] for prompt, n in zip(prompts, lengths, strict=True)]
    ids = padded(after, model.device)
    cache = DynamicCache()
    for layer, _ in enumerate(turns[0].layers):
        both = [_left_padded([turn.layers[layer][i] for turn in turns], width) for i in (0, 1)]
        cache.update(both[0], both[1], layer)
    known = torch.tensor(lengths, device=model.device).unsqueeze(1)
    columns = torch.arange(width + ids.shape[1], device=model.device)
    kept = sorted({len(tokens) - 1 for tokens in after})
    logits: Tensor = model(
        ids,
        attention_mask=None if min(lengths) == width else (columns >= width - known).long(),
        position_ids=known + torch.arange(ids.shape[1], device=model.device),
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=torch.tensor(kept, device=model.device),
    ).logits
    ends = [kept.index(len(tokens) - 1) for tokens in after]
    first = [width - length for length in lengths]
    whole: list[Any] = cache.layers
    layers = [(_shifted(x.keys, first), _shifted(x.values, first)) for x in whole]
    return logits[range(len(prompts)), ends], layers


def _left_padded(parts: Sequence[Tensor], width: int) -> Tensor:
    """(n, H, width, D) of n tensors (1, H, L, D); zeros, for what is hidden must still be finite."""
    out = parts[0].new_zeros(len(parts), parts[0].shape[1], width, parts[0].shape[3])
    for row, part in enumerate(parts):
        out[row, :, width - part.shape[2] :] = part[0]
    return out


def _shifted(x: Tensor, first: Sequence[int]) -> Tensor:
    """(n, H, L, D) with row i moved to the left by first[i] columns."""
    if not any(first):
        return x
    out = torch.zeros_like(x)
    for row, start in enumerate(first):
        out[row, :, : x.shape[2] - start] = x[row, :, start:]
    return out
