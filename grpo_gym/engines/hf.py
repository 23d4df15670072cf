"""Sampling from a transformers model in this process, with a batch that lanes join and leave."""

import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from grpo_gym.engines.base import Engine, Request, check_ids, check_sequences
from grpo_gym.engines.decoder_choice import decoder_for
from grpo_gym.engines.draw import Settings, draw
from grpo_gym.engines.lanes import Lane, unique_ids
from grpo_gym.engines.prefill import LOGITS, chunks, vocabulary
from grpo_gym.engines.scoring import score
from grpo_gym.engines.weights import load_weights
from grpo_gym.errors import UsageError
from grpo_gym.types import Completion, FloatArray

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class HFEngine(Engine):
    """A causal language model of transformers as an engine.

    A prompt that goes on from what a lane has encoded before, as the next turn of its conversation does,
    has only its new tokens encoded; up to 512 MiB are kept for that, and nothing across new weights.

    A lane's random draws come from its request's seed and the token's index alone, so its tokens do
    not depend on what else is in the batch, on the order of submission, or on when it joined (up to
    the rounding of sums of floats). Log-probs are of the distribution really sampled from, computed
    in float32.

    The model may be the very module that a learner trains: it runs in eval mode without gradients,
    and is left in the mode it was found in. After a change of its weights comes `load`, before the next step.

    Args:
        model: on its device and in its dtype.
        tokenizer: needed only for stop strings.
        max_lanes: most requests to advance at once; the others wait their turn.
        prefill_tokens: most tokens, padding included, to encode at once; a longer one goes alone.
        context_length: most tokens of prompt and completion; by default what the model can take.

    Raises:
        UsageError: An option makes no sense, or the model cannot generate token by token.
    """

    def __init__(
        self,
        model: "PreTrainedModel",
        tokenizer: "PreTrainedTokenizerBase | None" = None,
        *,
        max_lanes: int = 256,
        prefill_tokens: int = 8192,
        context_length: int | None = None,
    ) -> None:
        for name, value in (("max_lanes", max_lanes), ("prefill_tokens", prefill_tokens)):
            if value < 1:
                raise UsageError(f"{name} is {value}; it must be at least 1")
        # Recurrent models name no limit.
        text = model.config.get_text_config()
        most: int = getattr(text, "max_position_embeddings", None) or sys.maxsize
        length = most if context_length is None else context_length
        if not 2 <= length <= most:
            raise UsageError(f"context_length is {length}; the model takes 2 to {most} tokens")
        self.model = model
        self.version = 0
        self.context_length = length
        self.max_lanes = max_lanes
        self._vocabulary = vocabulary(model)
        self._tokenizer = tokenizer
        self._prefill_tokens = prefill_tokens
        self._queue: deque[Lane] = deque()
        self._running: list[Lane] = []
        self._settings: Settings | None = None
        with evaluating(model):
            self._decoder = decoder_for(model, prefill_tokens)

    def submit(self, requests: Sequence[Request]) -> None:
        """See `Engine.submit`. Equal prompts that are admitted together are encoded once."""
        unique_ids(requests, {lane.request.id for lane in (*self._queue, *self._running)})
        lanes = [Lane(r, self.context_length, self._tokenizer) for r in requests]
        for request in requests:
            check_ids(request.prompt_ids, self._vocabulary)
        self._queue += lanes

    @torch.no_grad()
    def step(self) -> list[tuple[int, Completion]]:
        """See `Engine.step`.

        Raises:
            FloatingPointError: The model's logits are nan or infinite. Every request is dropped.
        """
        done = []
        try:
            with evaluating(self.model):
                if self._running:
                    logits = self._decoder.decode([lane.token_ids[-1] for lane in self._running])
                    done += self._take(0, logits)
                if self._queue and len(self._running) < self.max_lanes:
                    first = len(self._running)
                    done += self._take(first, self._admit())
        except BaseException:
            self.abort()
            raise
        return done

    @property
    def busy(self) -> bool:
        """See `Engine.busy`."""
        return bool(self._queue or self._running)

    def abort(self) -> None:
        """See `Engine.abort`."""
        self._queue.clear()
        self._running.clear()
        self._settings = None
        self._decoder.clear()

    def load(self, state: Mapping[str, Tensor], version: int) -> None:
        """See `Engine.load`. Tensors that are the model's own memory are not copied.

        Raises:
            UsageError: Names or shapes differ from the model's.
        """
        load_weights(self.model, state)
        for lane in self._running:
            lane.mark(self.version)
        # Their keys and values are of the old weights: they join again, and are encoded anew.
        self._queue.extendleft(reversed(self._running))
        self._running.clear()
        self._settings = None
        self._decoder.clear()
        self.version = version

    @torch.no_grad()
    def score(
        self, sequences: Sequence[Sequence[int]], temperature: float = 1.0
    ) -> list[FloatArray]:
        """See `Engine.score`; temperature 0 counts as 1, as for sampling.

        Raises:
            UsageError: A sequence is longer than the context, or has ids beyond the vocabulary.
        """
        check_sequences(sequences, self._vocabulary, self.context_length)
        scored = [sequence for sequence in sequences if len(sequence) > 1]
        budget = min(self._prefill_tokens, max(1, LOGITS // self._vocabulary))
        found: list[FloatArray] = []
        with evaluating(self.model):
            for chunk in chunks(scored, budget):
                some = [scored[i] for i in chunk]
                # Only caches of keys and values are known to take several tokens at once.
                whole = max(map(len, some)) - 1
                columns = max(1, budget // len(some)) if self._decoder.resumable else whole
                found += score(self.model, some, columns, temperature or 1.0)
        rest = iter(found)
        return [next(rest) if len(sequence) > 1 else np.empty(0) for sequence in sequences]

    def close(self) -> None:
        """Drop every request and the cache."""
        self.abort()

    def _admit(self) -> Tensor:
        """Move lanes from the queue into the batch, those with equal contexts together."""
        groups: dict[tuple[int, ...], list[Lane]] = {}
        for _ in range(min(len(self._queue), self.max_lanes - len(self._running))):
            lane = self._queue.popleft()
            groups.setdefault(lane.context, []).append(lane)
        prompts = sorted(groups, key=len)
        self._running += [lane for prompt in prompts for lane in groups[prompt]]
        return self._decoder.prefill(prompts, [len(groups[prompt]) for prompt in prompts])

    def _take(self, first: int, logits: Tensor) -> list[tuple[int, Completion]]:
        """Draw a token for every lane from `first` on; let go of those that end."""
        lanes = self._running[first:]
        if self._settings is None or first > 0:
            samplings = [lane.request.sampling for lane in lanes]
            self._settings = Settings.of(samplings, logits.device)
        drawn = draw(logits, self._settings, [lane.uniform() for lane in lanes])
        ended = []
        for row, lane in enumerate(lanes):
            count = lane.request.sampling.top_logprobs
            if count and drawn.top_ids and drawn.top_logprobs:
                lane.top.append((drawn.top_ids[row][:count], drawn.top_logprobs[row][:count]))
            reason = lane.append(drawn.ids[row], drawn.logprobs[row])
            if reason:
                ended.append(
                    (first + row, (lane.request.id, lane.completion(reason, self.version)))
                )
        for row, _ in reversed(ended):
            # The last token ended the lane and was not encoded.
            self._decoder.leave(row, self._running[row].context[:-1])
            self._running[row] = self._running[-1]
            self._running.pop()
        if ended or first > 0:
            self._settings = None
        return [answer for _, answer in ended]


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Put `model` into eval mode within, and each of its parts back into its own mode after."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True
