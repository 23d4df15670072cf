"""Scores of whole batches: micro-batches within a budget of tokens, over devices and ranks."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, cast

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from grpo_gym.learner.batching import micro_batches, parts
from grpo_gym.learner.forward import Scorer
from grpo_gym.learner.options import OptimiserOptions
from grpo_gym.learner.rows import pack
from grpo_gym.learner.scores import TokenScores
from grpo_gym.types import Batch, FloatArray, IntArray


class BatchScorer:
    """Runs a `Scorer` on rows of batches, as the options say.

    Args:
        accelerator: says where this rank runs.
        options: temperature, precision and the budget of tokens.
        share: whether the scorers encode prompts once.
        in_step: whether all ranks have to make the same number of passes.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        options: OptimiserOptions,
        share: bool,
        in_step: bool = False,
    ) -> None:
        self._accelerator = accelerator
        self._options = options
        self._share = share
        self._in_step = in_step

    def split(self, batch: Batch, rows: IntArray) -> list[IntArray]:
        """Micro-batches of `rows`."""
        prompts = np.array([len(rollout.prompt_ids) for rollout in batch.rollouts])
        budget = self._options.tokens_per_micro_batch
        return micro_batches(rows, batch.group, prompts, batch.lengths, budget, self._share)

    def turns(self, batch: Batch, rows: IntArray) -> list[IntArray]:
        """Micro-batches of this rank's part of `rows`, at least one; an empty one is a turn of no effect.

        Ranks in step have as many turns as the one that has most.
        """
        rank, ranks = int(self._accelerator.process_index), self._accelerator.num_processes
        shares = parts(rows, batch.group, ranks)
        mine = self.split(batch, shares[rank])
        most = max(len(self.split(batch, share)) for share in shares) if self._in_step else 1
        return mine + [rows[:0]] * (most - len(mine))

    def rows(
        self,
        scorer: nn.Module,
        batch: Batch,
        part: IntArray,
        entropy: bool = False,
        top_ids: Tensor | None = None,
    ) -> TokenScores:
        """(b, T) scores of the sampled tokens of some rows, T as wide as the batch.

        Args:
            scorer: a `Scorer`, or what `accelerate` wrapped it in.
            batch: holds the rows.
            part: (b,) row numbers.
            entropy: also give the entropies.
            top_ids: (b, T, K) more tokens to score, without gradient.
        """
        rollouts = [batch.rollouts[i] for i in part]
        packed = pack(
            [rollout.prompt_ids for rollout in rollouts],
            [rollout.token_ids for rollout in rollouts],
            [rollout.mask for rollout in rollouts],
        ).to(self._accelerator.device)
        if top_ids is not None:
            top_ids = top_ids[:, : packed.tokens.shape[1]]
        with self._autocast():
            scores = scorer(packed, self._options.temperature, entropy, top_ids)
        return cast(TokenScores, scores).widen(batch.mask.shape[1])

    @torch.no_grad()
    def batch(self, scorer: Scorer, batch: Batch, entropy: bool = False) -> TokenScores:
        """(B, T) scores of all sampled tokens of a batch, on the CPU, the same on every rank."""
        live = np.flatnonzero(batch.mask.any(1)).astype(np.int64)
        if not len(live):
            zeros = torch.zeros(batch.mask.shape, dtype=scorer.dtype)
            return TokenScores(zeros, zeros if entropy else None, None, zeros)
        turns = self.turns(batch, live)
        found = [
            self.rows(scorer, batch, part, entropy)
            if len(part)
            else self.rows(scorer, batch, live[:1], entropy).map(lambda values: values[:0])
            for part in turns
        ]
        index = torch.from_numpy(np.concatenate(turns)).to(self._accelerator.device)

        def whole(values: Tensor) -> Tensor:
            # The rows of other ranks are 0 here, so that the sum has them all.
            out = values.new_zeros(len(batch.rollouts), *values.shape[1:])
            out[index] = values
            return out

        scores = TokenScores.join(found).map(whole)
        if self._accelerator.num_processes > 1:
            scores = scores.map(
                lambda values: cast(Tensor, self._accelerator.reduce(values, "sum"))
            )
        return scores.map(lambda values: values.cpu())

    @torch.no_grad()
    def sequences(
        self, scorer: Scorer, sequences: Sequence[Sequence[int]], temperature: float
    ) -> list[FloatArray]:
        """Log-probs of each sequence but for its first token, whose log-prob there is not.

        Raises:
            ValueError: A sequence is empty.
        """
        ids = [np.asarray(sequence, dtype=np.int64) for sequence in sequences]
        lengths = np.array([len(row) - 1 for row in ids], dtype=np.int64)
        if np.any(lengths < 0):
            raise ValueError("cannot score an empty sequence")
        alone = np.arange(len(ids), dtype=np.int64)
        ones = np.ones_like(alone)
        budget = self._options.tokens_per_micro_batch
        out = [np.zeros(length) for length in lengths.tolist()]
        for part in micro_batches(alone[lengths > 0], alone, ones, lengths, budget, False):
            chosen = [ids[i] for i in part]
            packed = pack(
                [row[:1] for row in chosen],
                [row[1:] for row in chosen],
                [np.ones(len(row) - 1, dtype=np.bool_) for row in chosen],
            ).to(self._accelerator.device)
            with self._autocast():
                scores = scorer(packed, temperature).logprobs.double().cpu().numpy()
            for i, values in zip(part.tolist(), scores, strict=True):
                out[i] = values[: lengths[i]]
        return out

    def _autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(
            self._accelerator.device.type,
            dtype=torch.bfloat16,
            enabled=self._options.precision == "bf16",
        )
