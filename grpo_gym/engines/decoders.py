"""Running lanes on a transformers model: prefill once per prompt, then token by token."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from grpo_gym.engines.kv_cache import LaneCache
from grpo_gym.engines.lane_attention import Layers
from grpo_gym.errors import UsageError

Prompt = tuple[int, ...]


class Decoder(ABC):
    """Lanes 0 to R-1 of one model, which is in eval mode and without gradients when they run.

    Args:
        model: a causal language model.
        budget: most tokens, padding included, to encode at once; a longer prompt goes alone.
    """

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

    def __init__(self, model: PreTrainedModel, budget: int) -> None:
        super().__init__(model, budget)
        self.cache = LaneCache()

    def prefill(self, prompts: Sequence[Prompt], copies: Sequence[int]) -> Tensor:
        """See `Decoder.prefill`."""
        parts = []
        for chunk in chunks(prompts, self.budget):
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


class SeparateDecoder(Decoder):
    """Each lane has the cache that the model makes for itself, and its own forward pass.

    Slower, but right for models that need more than keys and values: recurrent layers, biases of
    the attention, caches of their own.
    """

    def __init__(self, model: PreTrainedModel, budget: int) -> None:
        super().__init__(model, budget)
        self.caches: list[Any] = []

    def prefill(self, prompts: Sequence[Prompt], copies: Sequence[int]) -> Tensor:
        """See `Decoder.prefill`."""
        parts = []
        for prompt, count in zip(prompts, copies, strict=True):
            out = self.model(self._ids(prompt), use_cache=True)
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

    def leave(self, row: int) -> None:
        """See `Decoder.leave`."""
        self.caches[row] = self.caches[-1]
        self.caches.pop()

    def clear(self) -> None:
        """See `Decoder.clear`."""
        self.caches.clear()

    def _ids(self, token_ids: Sequence[int]) -> Tensor:
        return torch.tensor([token_ids], device=self.model.device)


def chunks(sequences: Sequence[Sequence[int]], budget: int) -> Iterator[range]:
    """Ranges of neighbours that, padded to the longest, hold `budget` tokens at most, or one."""
    start, longest = 0, 0
    for stop, sequence in enumerate(sequences):
        longest = max(longest, len(sequence))
        if stop > start and longest * (stop + 1 - start) > budget:
            yield range(start, stop)
            start, longest = stop, len(sequence)
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


@torch.no_grad()
def decoder_for(model: PreTrainedModel, budget: int) -> Decoder:
    """The fast decoder if it agrees with the model's forward pass on a probe, or the slow one.

    Raises:
        UsageError: Neither does: this is no model that can generate token by token.
    """
    reasons = []
    for kind in (JointDecoder, SeparateDecoder):
        decoder = kind(model, budget)
        try:
            problem = _disagreement(decoder)
        except Exception as error:  # whatever an unknown architecture raises, it does not fit
            problem = f"{type(error).__name__}: {error}"
        decoder.clear()
        if problem is None:
            return decoder
        reasons.append(f"{kind.__name__}: {problem}")
    raise UsageError(
        f"{type(model).__name__} cannot generate token by token ({'; '.join(reasons)}); "
        "give a causal language model of transformers"
    )


def _disagreement(decoder: Decoder) -> str | None:
    """What is wrong with the decoder's logits for three lanes of two prompts, if anything."""
    model = decoder.model
    size: int = model.config.get_text_config().vocab_size
    a, b = (tuple((7 * i + k) % size for i in range(5)) for k in (1, 2))
    whole_a, whole_b = (
        model(torch.tensor([ids], device=model.device), use_cache=False).logits[0] for ids in (a, b)
    )
    got = [decoder.prefill([a[:3], b[:2]], [2, 1])]
    got += [decoder.decode([a[i], a[i], b[i - 1]]) for i in (3, 4)]
    want = [torch.stack([whole_a[i], whole_a[i], whole_b[i - 1]]) for i in (2, 3, 4)]
    tolerance = 1e-3 if whole_a.dtype == torch.float32 else 0.1
    difference = max(float((g - w).abs().max()) for g, w in zip(got, want, strict=True))
    if not difference <= tolerance * max(float(w.abs().max()) for w in want):
        return f"its logits are {difference:.2g} off those of a plain forward pass"
    if isinstance(decoder, JointDecoder):
        return decoder.cache.misfit(model.config.get_text_config())
    return None
