"""The learner: holds the model and the optimiser, and applies an agent to batches."""

import copy
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor
from transformers import PreTrainedModel

from grpo_gym.agent import Agent
from grpo_gym.errors import UsageError
from grpo_gym.learner.batching import micro_batches, parts, shuffled
from grpo_gym.learner.forward import Scorer, widen
from grpo_gym.learner.logprobs import TokenScores
from grpo_gym.learner.meters import Meters
from grpo_gym.learner.options import OptimiserOptions
from grpo_gym.learner.rows import pack
from grpo_gym.objectives.signals import Credit, Outputs, Signals
from grpo_gym.types import Batch, FloatArray, IntArray


class Learner:
    """Trains `model` by the rule `agent`; what is particular to a variant is all in the agent.

    One `update` is `options.epochs` passes over a batch; each pass takes `options.mini_batches`
    optimiser steps. A step runs in micro-batches, whose number changes nothing, since the agent's
    weights are made from the mask of the whole mini-batch. With several processes every process is
    given the whole batch and takes its share of each mini-batch, so the result is that of one
    process.

    Half-precision weights are turned to float32 when the learner is made: they are the master copy.

    Args:
        model: a causal language model of transformers; parameters without `requires_grad` stay as
            they are. The learner takes it over: it is moved, put in eval mode, and trained in
            place.
        agent: the update rule.
        options: how to optimise.
        accelerator: where to run; made if not given.
        reference: the frozen policy that a KL penalty refers to; a copy of `model` as it is now, if
            the agent needs one and none is given.

    Attributes:
        version: updates done; the version of the policy.
        steps: optimiser steps done.

    Raises:
        UsageError: The model cannot be trained.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        agent: Agent,
        options: OptimiserOptions | None = None,
        accelerator: Accelerator | None = None,
        reference: PreTrainedModel | None = None,
    ) -> None:
        self.agent = agent
        self.options = options = OptimiserOptions() if options is None else options
        self.accelerator = Accelerator() if accelerator is None else accelerator
        self.version = 0
        self.steps = 0
        self._bad_steps = 0
        scorer = Scorer(_master(model), options.share_prompts, options.gradient_checkpointing)
        self._reference = self._frozen(scorer, reference) if agent.needs.reference else None
        optimiser = _adamw(scorer, options)
        self._scorer, self._optimiser = self.accelerator.prepare(scorer, optimiser)

    @property
    def scorer(self) -> Scorer:
        """The policy's forward pass, without the wrapper of `accelerate`."""
        return cast(Scorer, self.accelerator.unwrap_model(self._scorer))

    @property
    def model(self) -> PreTrainedModel:
        """The model being trained."""
        return self.scorer.model

    def prepare(self, batch: Batch) -> Signals:
        """Signals of a batch, with the log-probs that the update needs, computed without gradient.

        The old policy's are left out when there is one optimiser step on the batch and the agent
        does not need them: they are then the policy's own. The reference's are there if the agent
        needs them.
        """
        needs = self.agent.needs
        old = entropy = reference = None
        if needs.old or needs.old_entropy or self.options.steps_per_update > 1:
            old, entropy = self._score_batch(self.scorer, batch, needs.old_entropy)
        if self._reference is not None:
            reference, _ = self._score_batch(self._reference, batch, False)
        dtype = torch.float64 if _dtype(self.scorer) == torch.float64 else torch.float32
        return replace(
            Signals.from_batch(batch, dtype), old=old, entropy=entropy, reference=reference
        )

    def update(
        self, batch: Batch, signals: Signals, credit: Credit | None = None
    ) -> dict[str, float]:
        """Train on a batch.

        Args:
            batch: groups of rollouts.
            signals: what `prepare` gave for it.
            credit: the agent's credit for `signals`; computed if not given.

        Returns:
            Metrics: `loss`, `grad_norm` (before clipping), `learning_rate`, `behaviour_gap_mean`
                and
            `behaviour_gap_max` (absolute difference between the sampler's log-probs and the
            learner's at the start of the update), `log_ratio_max`, `tokens` (sampled tokens in the
            batch), `skipped_steps`, and those of the agent, `entropy` among them. A metric of which
            there was nothing to average is left out.

        Raises:
            UsageError: The loss or the gradient was not finite `max_bad_steps` times in a row. The
                parameters are those of the last good step.
        """
        credit = self.agent.credit(signals) if credit is None else credit
        generator = np.random.default_rng((self.options.seed, self.version))
        meters = Meters()
        for name, (total, count) in credit.metrics.items():
            meters.mean(name, float(total), float(count))
        for _ in range(self.options.epochs):
            order = shuffled(batch.group, generator)
            for rows in parts(order, batch.group, self.options.mini_batches):
                self._step(batch, signals, credit, rows, meters)
        self.version += 1
        meters.set("tokens", float(batch.mask.sum()))
        return meters.result()

    def logprobs(
        self, sequences: Sequence[Sequence[int]], temperature: float = 1.0
    ) -> list[FloatArray]:
        """Log-probs of each sequence but for its first token, whose log-prob there is not."""
        ids = [np.asarray(sequence, dtype=np.int64) for sequence in sequences]
        lengths = np.array([len(row) - 1 for row in ids], dtype=np.int64)
        if np.any(lengths < 0):
            raise ValueError("cannot score an empty sequence")
        alone = np.arange(len(ids), dtype=np.int64)
        out = [np.zeros(length) for length in lengths.tolist()]
        budget = self.options.tokens_per_micro_batch
        rows = alone[lengths > 0]
        for part in micro_batches(rows, alone, np.ones_like(alone), lengths, budget, False):
            chosen = [ids[i] for i in part]
            packed = pack(
                [row[:1] for row in chosen],
                [row[1:] for row in chosen],
                [np.ones(len(row) - 1, dtype=np.bool_) for row in chosen],
            )
            with torch.no_grad(), self._autocast():
                scores = self.scorer(packed.to(self.accelerator.device), temperature)
            for i, values in zip(
                part.tolist(), scores.logprobs.double().cpu().numpy(), strict=True
            ):
                out[i] = values[: lengths[i]]
        return out

    def state(self) -> dict[str, Tensor]:
        """The weights under the names of the model's `state_dict`; views, not copies."""
        return {name: value.detach() for name, value in self.model.state_dict().items()}

    def optimiser_state(self) -> dict[str, Any]:
        """What `restore` needs to go on as if nothing had happened, apart from the weights."""
        return {
            "optimiser": self._optimiser.state_dict(),
            "version": self.version,
            "steps": self.steps,
            "bad_steps": self._bad_steps,
        }

    def restore(self, weights: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Take weights as `state()` and the rest as `optimiser_state()` gave them.

        Raises:
            UsageError: They are of another model.
        """
        try:
            self.model.load_state_dict(weights)
            self._optimiser.load_state_dict(state["optimiser"])
        except (RuntimeError, ValueError, KeyError) as error:
            line = " ".join(str(error).split())
            raise UsageError(
                f"the state does not fit {type(self.model).__name__}: {line}"
            ) from error
        self.version, self.steps = int(state["version"]), int(state["steps"])
        self._bad_steps = int(state["bad_steps"])

    def _step(
        self, batch: Batch, signals: Signals, credit: Credit, rows: IntArray, meters: Meters
    ) -> None:
        """One optimiser step on `rows`."""
        index = torch.from_numpy(rows)
        if not bool(credit.mask[index].any()):
            meters.add("skipped_steps", 1)
            return
        weights = torch.zeros(credit.mask.shape, dtype=credit.advantages.dtype)
        weights[index] = self.agent.weights(credit.mask[index], signals.group[index]).to(weights)
        self._optimiser.zero_grad()
        loss = self._accumulate(batch, signals, credit, weights, rows, meters)
        norm = self.accelerator.clip_grad_norm_(
            self._scorer.parameters(), self.options.max_grad_norm
        )
        grad_norm = float(cast(Tensor, norm))
        if not (np.isfinite(loss) and np.isfinite(grad_norm)):
            self._skip(loss, grad_norm, meters)
            return
        self._bad_steps = 0
        rate = self.options.rate(self.steps)
        for settings in self._optimiser.param_groups:
            settings["lr"] = rate
        self._optimiser.step()
        self.steps += 1
        meters.mean("loss", loss, 1)
        meters.mean("grad_norm", grad_norm, 1)
        meters.set("learning_rate", rate)

    def _accumulate(
        self,
        batch: Batch,
        signals: Signals,
        credit: Credit,
        weights: Tensor,
        rows: IntArray,
        meters: Meters,
    ) -> float:
        """Add up the gradient of `rows` over micro-batches and ranks; return the loss."""
        ranks = self.accelerator.num_processes
        live = rows[credit.mask[torch.from_numpy(rows)].any(1).numpy()]
        mine = parts(live, batch.group, ranks)[self.accelerator.process_index]
        if len(mine) == 0:  # this rank still takes part in the reduction, with a gradient of 0
            mine, weights = live[:1], torch.zeros_like(weights)
        split = self._micro_batches(batch, mine)
        local = Meters()
        for number, part in enumerate(split):
            with self._sync(number == len(split) - 1):
                loss, metrics = self._loss(batch, signals, credit, weights, part, local)
                # accelerate averages gradients over ranks, but the weights make it a sum
                self.accelerator.backward(loss * ranks)
            local.mean("loss", float(loss.detach()), 0)
            for name, (total, count) in metrics.items():
                local.mean(name, float(total), float(count))
        local.reduce(self.accelerator)
        loss_sum = local.pop("loss")
        meters.merge(local)
        return loss_sum

    def _loss(
        self,
        batch: Batch,
        signals: Signals,
        credit: Credit,
        weights: Tensor,
        part: IntArray,
        meters: Meters,
    ) -> tuple[Tensor, dict[str, tuple[Tensor, Tensor]]]:
        device = self.accelerator.device
        index = torch.from_numpy(part)
        some = signals.rows(index).to(device)
        needs = self.agent.needs
        with self._autocast():
            scores = self._score_rows(self._scorer, batch, part, True, some.behaviour_top_ids)
        scores = widen(scores, some.mask.shape[1])
        entropy = cast(Tensor, scores.entropy)
        outputs = Outputs(
            scores.logprobs, entropy if needs.entropy else entropy.detach(), scores.top_logprobs
        )
        self._meter(outputs, some, meters)
        return self.agent.loss(
            outputs, some, credit.rows(index).to(device), weights[index].to(device)
        )

    def _meter(self, outputs: Outputs, signals: Signals, meters: Meters) -> None:
        """How far the policy is from the sampler at the start, and from the start now."""
        now = outputs.logprobs.detach()
        start = now if signals.old is None else signals.old
        ratio = (now - start)[signals.mask].abs()
        if ratio.numel():
            meters.max("log_ratio_max", float(ratio.max()))
        if signals.behaviour is not None:
            gap = (start - signals.behaviour)[signals.mask & signals.behaviour.isfinite()].abs()
            meters.mean("behaviour_gap_mean", float(gap.sum()), gap.numel())
            if gap.numel():
                meters.max("behaviour_gap_max", float(gap.max()))

    def _skip(self, loss: float, grad_norm: float, meters: Meters) -> None:
        self._optimiser.zero_grad()
        self._bad_steps += 1
        meters.add("skipped_steps", 1)
        if self._bad_steps >= self.options.max_bad_steps:
            raise UsageError(
                f"training broke down at version {self.version}: loss ({loss}) or gradient norm "
                f"({grad_norm}) not finite {self._bad_steps} times in a row; lower the learning "
                f"rate ({self.options.learning_rate}) or look at the rewards"
            )

    def _micro_batches(self, batch: Batch, rows: IntArray) -> list[IntArray]:
        prompts = np.array([len(rollout.prompt_ids) for rollout in batch.rollouts])
        share, budget = self.scorer.share_prompts, self.options.tokens_per_micro_batch
        return micro_batches(rows, batch.group, prompts, batch.lengths, budget, share)

    def _score_rows(
        self, scorer: Any, batch: Batch, part: IntArray, entropy: bool, top_ids: Tensor | None
    ) -> TokenScores:
        rollouts = [batch.rollouts[i] for i in part]
        packed = pack(
            [rollout.prompt_ids for rollout in rollouts],
            [rollout.token_ids for rollout in rollouts],
            [rollout.mask for rollout in rollouts],
        )
        if top_ids is not None:
            top_ids = top_ids[:, : packed.tokens.shape[1]]
        packed = packed.to(self.accelerator.device)
        return cast(TokenScores, scorer(packed, self.options.temperature, entropy, top_ids))

    @torch.no_grad()
    def _score_batch(
        self, scorer: Scorer, batch: Batch, entropy: bool
    ) -> tuple[Tensor, Tensor | None]:
        """(B, T) log-probs, and entropies if asked for, of a batch's sampled tokens, on the CPU."""
        dtype = torch.float64 if _dtype(scorer) == torch.float64 else torch.float32
        shape = (2 if entropy else 1, *batch.mask.shape)
        out = torch.zeros(shape, dtype=dtype, device=self.accelerator.device)
        live = np.flatnonzero(batch.mask.any(1)).astype(np.int64)
        mine = parts(live, batch.group, self.accelerator.num_processes)
        for part in self._micro_batches(batch, mine[self.accelerator.process_index]):
            with self._autocast():
                scores = self._score_rows(scorer, batch, part, entropy, None)
            index = torch.from_numpy(part).to(out.device)
            out[0, index, : scores.logprobs.shape[1]] = scores.logprobs
            if scores.entropy is not None:
                out[1, index, : scores.logprobs.shape[1]] = scores.entropy
        if self.accelerator.num_processes > 1:
            out = cast(Tensor, self.accelerator.reduce(out, "sum"))
        out = out.cpu()
        return out[0], out[1] if entropy else None

    def _autocast(self) -> AbstractContextManager[Any]:
        device = self.accelerator.device.type
        return torch.autocast(
            device, dtype=torch.bfloat16, enabled=self.options.precision == "bf16"
        )

    def _sync(self, last: bool) -> AbstractContextManager[Any]:
        if last:
            return nullcontext()
        return cast(AbstractContextManager[Any], self.accelerator.no_sync(self._scorer))

    def _frozen(self, scorer: Scorer, reference: PreTrainedModel | None) -> Scorer:
        share = self.options.share_prompts
        frozen = copy.deepcopy(scorer) if reference is None else Scorer(reference, share)
        return frozen.requires_grad_(False).to(self.accelerator.device)


def _dtype(scorer: Scorer) -> torch.dtype:
    return next(scorer.parameters()).dtype


def _master(model: PreTrainedModel) -> PreTrainedModel:
    """The model with float32 weights where they were half precision."""
    half = (torch.bfloat16, torch.float16)
    if any(parameter.dtype in half for parameter in model.parameters()):
        return cast(PreTrainedModel, cast(Any, model).float())
    return model


def _adamw(scorer: Scorer, options: OptimiserOptions) -> torch.optim.Optimizer:
    trained = [parameter for parameter in scorer.parameters() if parameter.requires_grad]
    if not trained:
        raise UsageError("the model has no parameter with requires_grad: nothing can be trained")
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": options.weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=options.learning_rate,
        betas=options.betas,
        eps=options.eps,
        fused=True,
    )
