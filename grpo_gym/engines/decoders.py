"""Running lanes on a transformers model: prefill once per prompt, then token by token."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import groupby

import torch
from torch import Tensor
from transformers import PreTrainedModel

from grpo_gym.engines.kv_cache import LaneCache
from grpo_gym.engines.prefill import LOGITS, Prompt, chunks, last_logits, vocabulary
from grpo_gym.engines.turns import Turn, Turns, resumed_logits

TURN_BYTES = 2**29
"""Most memory for what earlier turns have encoded."""

SHORTEST_TURN = 128
"""Fewer tokens are encoded again sooner than copied."""


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
    def leave(self, row: int, ids: Prompt = ()) -> None:
        """Drop a lane; the last lane takes its place.

        Args:
            row: of the lane.
            ids: the tokens that it has encoded, if a later prompt may go on from them.
        """

    @abstractmethod
    def clear(self) -> None:
        """Drop all lanes."""


class JointDecoder(Decoder):
    """All lanes share one `LaneCache` and one forward pass per token.

    What a lane has encoded is kept when it leaves, so that the next turn of its conversation, whose prompt
    begins with the same tokens, only encodes what is new.
    """

    resumable = True

    def __init__(self, model: PreTrainedModel, budget: int) -> None:
        super().__init__(model, budget)
        self.cache = LaneCache()
        self.turns = Turns(TURN_BYTES, SHORTEST_TURN)
        self._weights = -1

    def prefill(self, prompts: Sequence[Prompt], copies: Sequence[int]) -> Tensor:
        """See `Decoder.prefill`."""
        parts = []
        for chunk, turns in self._chunks(prompts):
            chosen, counts = prompts[chunk.start : chunk.stop], copies[chunk.start : chunk.stop]
            if turns:
                logits, encoded = resumed_logits(self.model, chosen, turns)
            else:
                logits, encoded = last_logits(self.model, chosen)
            parts.append(logits.repeat_interleave(torch.tensor(counts, device=logits.device), 0))
            self.cache.join(encoded, [len(prompt) for prompt in chosen], counts)
        return torch.cat(parts)

    def _chunks(self, prompts: Sequence[Prompt]) -> Iterator[tuple[range, list[Turn]]]:
        """Neighbours to run at once, and what they go on from: all of them, or none."""
        if self.turns.bytes:
            self._forget_if_trained()
        found = [self.turns.take(prompt) for prompt in prompts]
        after = [p[len(t.ids) if t else 0 :] for p, t in zip(prompts, found, strict=True)]
        for _, rows in groupby(range(len(prompts)), key=lambda row: found[row] is None):
            run = list(rows)
            new = [after[row] for row in run]
            for part in chunks(new, self.budget, LOGITS // vocabulary(self.model)):
                chunk = range(run[part.start], run[part.stop - 1] + 1)
                yield chunk, [turn for row in chunk if (turn := found[row])]

    def _forget_if_trained(self) -> None:
        """Drop what was encoded by weights that have been written to since."""
        known = (value for value in self.model.parameters() if not value.is_inference())
        writes = sum(value._version for value in known)
        if writes != self._weights:
            self.turns.clear()
        self._weights = writes

    def decode(self, token_ids: Sequence[int]) -> Tensor:
        """See `Decoder.decode`."""
        ids = torch.tensor(token_ids, device=self.model.device).unsqueeze(1)
        with self.cache.step(self.model) as positions:
            logits: Tensor = self.model(
                input_ids=ids, position_ids=positions, past_key_values=self.cache, use_cache=True
            ).logits
        return logits[:, -1]

    def leave(self, row: int, ids: Prompt = ()) -> None:
        """See `Decoder.leave`."""
        if self.turns.wants(ids):
            self._forget_if_trained()
            self.turns.keep(Turn(ids, self.cache.taken(row)))
        self.cache.leave(row)

    def clear(self) -> None:
        """See `Decoder.clear`."""
        self.cache.clear()
        self.turns.clear()
