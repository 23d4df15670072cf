"""Prompts encoded together, padded on the right."""

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from grpo_gym.engines.lane_attention import Layers

Prompt = tuple[int, ...]

LOGITS = 2**26
"""Most logits to hold at once: 256 MiB of float32."""


def vocabulary(model: PreTrainedModel) -> int:
    """How many tokens the model knows."""
    return int(model.config.get_text_config().vocab_size)


def chunks(
    sequences: Sequence[Sequence[int]], budget: int, most_ends: int = sys.maxsize
) -> Iterator[range]:
    """Ranges of neighbours that are small enough to run at once, or of one sequence.

    Args:
        sequences: the shorter before the longer, if little is to be padded.
        budget: most tokens, padded to the longest.
        most_ends: most sequences times distinct lengths: so many rows of logits `last_logits` makes.
    """
    start, longest, lengths = 0, 0, set[int]()
    for stop, sequence in enumerate(sequences):
        longest, count = max(longest, len(sequence)), stop + 1 - start
        lengths.add(len(sequence))
        if count > 1 and (longest * count > budget or len(lengths) * count > most_ends):
            yield range(start, stop)
            start, longest, lengths = stop, len(sequence), {len(sequence)}
    if start < len(sequences):
        yield range(start, len(sequences))


def padded(sequences: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """(n, longest) ids, the last repeated on the right: causal models need no mask for that."""
    width = max(map(len, sequences))
    rows = [list(ids) + [ids[-1]] * (width - len(ids)) for ids in sequences]
    return torch.tensor(rows, device=device)


def last_logits(model: PreTrainedModel, prompts: Sequence[Prompt]) -> tuple[Tensor, Layers]:
    """(n, V) logits after the last token of each prompt, and keys and values of all tokens."""
    cache = DynamicCache()
    kept = sorted({len(prompt) - 1 for prompt in prompts})
    logits: Tensor = model(
        padded(prompts, model.device),
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=torch.tensor(kept, device=model.device),
    ).logits
    columns = [kept.index(len(prompt) - 1) for prompt in prompts]
    layers: list[Any] = cache.layers
    return logits[range(len(prompts)), columns], [(layer.keys, layer.values) for layer in layers]
