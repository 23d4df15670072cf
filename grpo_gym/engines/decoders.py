"""Running lanes on a transformers model: prefill once per prompt, then token by token."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from grpo_gym.engines.kv_cache import LaneCache
from grpo_gym.engines.lane_attention import Layers

Prompt = tuple[int, ...]

LOGITS = 2**26
"""Most logits to hold at once: 256 MiB of float32."""


class Decoder(ABC):
    """Lanes 0 to R-1 of one model, which is in eval mode and without gradients when they run.

    Args:
        model: a causal language model.
        budget: most tokens, padding included, to encode at once; a longer prompt goes alone.

    Attributes:
        resumable: whether the model's own cache takes several tokens after others.
    """

    resumable = False

    def __init__(self, model: PreTrainedModel, budget: int) -> None:
        self.model = model
        self.budget = budget

    @abstractmethod
    def prefill(self, prompts: Sequence[Prompt], copies: Sequence[int]) -> Tensor:
        """Encode each prompt once, add `copies[i]` lanes for it; (lanes, V) logits of what is next."""

    @abstractmethod
    def decode(self, token_ids: Sequence[int]) -> Tensor:
        """Give every lane one more token; (R, V) logits of what is next."""

    @abstractmethod
    def leave(self, row: int) -> None:
        """Drop a lane; the last lane takes its place."""

    @abstractmethod
    def clear(self) -> None:
        """Drop all lanes."""


class JointDecoder(Decoder):
    """All lanes share one `LaneCache` and one forward pass per token."""

    resumable = True

    def __init__(self, model: PreTrainedModel, budget: int) -> None:
        super().__init__(model, budget)
        self.cache = LaneCache()

    def prefill(self, prompts: Sequence[Prompt], copies: Sequence[int]) -> Tensor:
        """See `Decoder.prefill`."""
        parts = []
        for chunk in chunks(prompts, self.budget, LOGITS // vocabulary(self.model)):
            chosen, counts = prompts[chunk.start : chunk.stop], copies[chunk.start : chunk.stop]
            logits, encoded = last_logits(self.model, chosen)
            parts.append(logits.repeat_interleave(torch.tensor(counts, device=logits.device), 0))
            self.cache.join(encoded, [len(prompt) for prompt in chosen], counts)
        return torch.cat(parts)

    def decode(self, token_ids: Sequence[int]) -> Tensor:
        """See `Decoder.decode`."""
        ids = torch.tensor(token_ids, device=self.model.device).unsqueeze(1)
        with self.cache.step(self.model) as positions:
            logits: Tensor = self.model(
                input_ids=ids, position_ids=positions, past_key_values=self.cache, use_cache=True
            ).logits
        return logits[:, -1]

    def leave(self, row: int) -> None:
        """See `Decoder.leave`."""
        self.cache.leave(row)

    def clear(self) -> None:
        """See `Decoder.clear`."""
        self.cache.clear()


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
