"""The learner: holds the model and the optimiser, and applies an agent to batches."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor
from transformers import PreTrainedModel

from grpo_gym.agent import Agent
from grpo_gym.errors import UsageError
from grpo_gym.learner.batching import parts, shuffled
from grpo_gym.learner.float32_head import use_float32_head
from grpo_gym.learner.forward import Scorer
from grpo_gym.learner.gradients import Gradients
from grpo_gym.learner.meters import Meters
from grpo_gym.learner.optimiser import adamw, load_optimiser, master, set_rates
from grpo_gym.learner.options import OptimiserOptions
from grpo_gym.learner.scoring import BatchScorer
from grpo_gym.learner.sharding import (
    check_accelerator,
    check_shardable,
    is_sharding,
    load_saved_weights,
    load_whole_state,
    saved_weights,
    whole,
    whole_optimiser_state,
    whole_state,
)
from grpo_gym.learner.zero import Zero, configure, is_zero
from grpo_gym.lora import adapter_off, has_adapter, keep_fingerprint, merged_state
from grpo_gym.objectives.signals import Credit, Signals
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
        model: a causal language model of transformers, with an adapter or without; parameters
            without `requires_grad` stay as they are. The learner takes it over: it is moved, put
            in eval mode, and trained in place.
        agent: the update rule.
        options: how to optimise.
        accelerator: where to run; made if not given.
        reference: the frozen policy that a KL penalty refers to; if the agent needs one and none is
            given, a copy of `model` as it is now, or, if it has an adapter, the model without it.

    Attributes:
        agent: the update rule; it may be replaced by one that needs nothing more.
        version: updates done; the version of the policy.
        steps: optimiser steps done.
        sharded: whether each rank holds a part of the weights only.

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
        if options.fp32_lm_head:
            use_float32_head(model)
        check_accelerator(self.accelerator)
        self.sharded = sharded = is_sharding(self.accelerator)
        scorer = Scorer(
            master(model),
            options.share_prompts,
            options.gradient_checkpointing,
            critic=agent.needs.critic,
            one_pass=sharded,
        )
        if sharded:
            check_shardable(scorer)
            if has_adapter(model):
                keep_fingerprint(model)
            elif agent.needs.reference and reference is None:
                reference = copy.deepcopy(scorer.model)  # later it cannot be copied
        self._batches = BatchScorer(self.accelerator, options, scorer.share_prompts, sharded)
        optimiser = adamw(scorer, options)
        groups = [list(group["params"]) for group in optimiser.param_groups]
        if is_zero(self.accelerator):
            configure(self.accelerator, options.max_grad_norm)
        self._scorer, self._optimiser = self.accelerator.prepare(scorer, optimiser)
        self._zero: Zero | None = None
        if is_zero(self.accelerator):
            self._zero = Zero(self._scorer, groups)
        self._gradients = Gradients(self.accelerator, self._scorer, self._batches)
        # Now all ranks have the weights of the first, and so has a copy of them.
        self._reference: Scorer | None = None
        if agent.needs.reference and (reference is not None or not has_adapter(model)):
            self._reference = self._frozen(scorer, reference)

    @property
    def scorer(self) -> Scorer:
        """The policy's forward pass, without the wrapper of `accelerate`."""
        return cast(Scorer, self.accelerator.unwrap_model(self._scorer))

    @property
    def model(self) -> PreTrainedModel:
        """The model being trained."""
        model: PreTrainedModel = self.scorer.model
        return model

    def prepare(self, batch: Batch) -> Signals:
        """Signals of a batch, with what the agent needs of the policies before the update.

        The old policy's log-probs are left out when one optimiser step is taken on the batch and
        the agent does not need them: they are then the policy's own.
        """
        needs = self.agent.needs
        signals = Signals.from_batch(batch, self.scorer.dtype)
        if needs.old or needs.old_entropy or needs.critic or self.options.steps_per_update > 1:
            old = self._batches.batch(self.scorer, batch, needs.old_entropy)
            signals = replace(signals, old=old.logprobs, entropy=old.entropy, values=old.values)
        if needs.reference:
            signals = replace(signals, reference=self._reference_logprobs(batch))
        return signals

    def update(
        self, batch: Batch, signals: Signals, credit: Credit | None = None
    ) -> dict[str, float]:
        """Train on a batch.

        Args:
            batch: groups of rollouts.
            signals: what `prepare` gave for it.
            credit: the agent's credit for `signals`; computed if not given.

        Returns:
            Metrics: `loss`, `grad_norm` (before clipping), `learning_rate`, `log_ratio_max` (how far
            the policy moved from the old one), `behaviour_gap_max` (largest difference between the
            sampler's log-probs and the learner's at the start of the update), `effective_samples`
            (share of the tokens that are worth anything after weighing them by old over behaviour:
            mean(w)^2 / mean(w^2)), `tokens` (sampled tokens in the batch), `skipped_steps`, and
            those of the agent, `entropy` among them. A mean of nothing is left out.

        Raises:
            UsageError: The loss or the gradient was not finite `max_bad_steps` times in a row. The
                parameters are those of the last good step.
        """
        credit = self.agent.credit(signals) if credit is None else credit
        generator = np.random.default_rng((self.options.seed, self.version))
        meters = Meters()
        meters.means(credit.metrics)
        for _ in range(self.options.epochs):
            order = shuffled(batch.group, generator)
            for rows in parts(order, batch.group, self.options.mini_batches):
                self._step(batch, signals, credit, rows, meters)
        self.version += 1
        meters.set("tokens", float(batch.mask.sum()))
        metrics = meters.result()
        weight, square = metrics.pop("weight", None), metrics.pop("weight_square", None)
        if weight is not None and square:
            metrics["effective_samples"] = weight**2 / square
        return metrics

    def logprobs(
        self, sequences: Sequence[Sequence[int]], temperature: float = 1.0
    ) -> list[FloatArray]:
        """Log-probs of each sequence but for its first token, whose log-prob there is not."""
        return self._batches.sequences(self.scorer, sequences, temperature)

    def state(self) -> dict[str, Tensor]:
        """The weights under the names of the model's `state_dict`; views, not copies.

        With an adapter: what the weights are when it is added, under the names of the model without
        it. The weights that it adds to are then copies.
        """
        if has_adapter(self.model):  # gathered weights are let go one by one as they are merged
            return merged_state(self.model, whole_state(self.model))
        return whole_state(self.model)

    def saved_weights(self) -> dict[str, Tensor]:
        """The weights that `restore` takes, whole: the adapter's alone, if there is one."""
        return saved_weights(self.model)

    def optimiser_state(self) -> dict[str, Any]:
        """What `restore` needs to go on as if nothing had happened, apart from the weights."""
        critic = self.scorer.critic
        return {
            "optimiser": self._zero.state()
            if self._zero
            else whole_optimiser_state(self._optimiser),
            "critic": {} if critic is None else whole_state(critic),
            "version": self.version,
            "steps": self.steps,
            "bad_steps": self._bad_steps,
        }

    def restore(self, weights: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Take weights as the model's `state_dict` and the rest as `optimiser_state()` gave them.

        With an adapter, its weights alone: `adapter_weights` of the model.

        Raises:
            UsageError: They are of another model or agent.
        """
        try:
            load_saved_weights(self.model, weights, self._zero is not None)
            if self.scorer.critic is not None:
                load_whole_state(self.scorer.critic, state["critic"], self._zero is not None)
            if self._zero is not None:
                self._zero.load(state["optimiser"])
            else:
                load_optimiser(self._optimiser, state["optimiser"])
            self.version, self.steps = int(state["version"]), int(state["steps"])
            self._bad_steps = int(state["bad_steps"])
        except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
            line = " ".join(str(error).split())[:200]
            raise UsageError(
                f"the saved state does not fit this {type(self.model).__name__} and agent: {line}"
            ) from error

    def _step(
        self, batch: Batch, signals: Signals, credit: Credit, rows: IntArray, meters: Meters
    ) -> None:
        """One optimiser step on `rows`; skipped where there is nothing to learn from."""
        index = torch.from_numpy(rows)
        if not bool(credit.mask[index].any()):
            meters.add("skipped_steps", 1)
            return
        weights = torch.zeros(credit.mask.shape, dtype=torch.float64)
        weights[index] = self.agent.weights(credit.mask[index], signals.group[index]).double()
        self._optimiser.zero_grad()
        live = rows[credit.mask[index].any(1).numpy()]
        loss, found = self._gradients.add_up(self.agent, batch, signals, credit, weights, live)
        meters.merge(found)
        rate = set_rates(self._optimiser, self.options.scale(self.steps))
        grad_norm = self._step_if_finite(loss)
        if not (np.isfinite(loss) and np.isfinite(grad_norm)):
            self._skip(loss, grad_norm, meters)
            return
        self._bad_steps = 0
        self.steps += 1
        meters.set("learning_rate", rate)
        meters.mean("loss", loss, 1)
        meters.mean("grad_norm", grad_norm, 1)

    def _step_if_finite(self, loss: float) -> float:
        """Clip and step, unless the loss or the gradient is not finite; return the gradient's norm."""
        if self._zero is not None:
            return self._zero.step(bool(np.isfinite(loss)))
        norm = self.accelerator.clip_grad_norm_(
            self._scorer.parameters(), self.options.max_grad_norm
        )
        grad_norm = float(whole(cast(Tensor, norm)))
        if np.isfinite(loss) and np.isfinite(grad_norm):
            self._optimiser.step()
        return grad_norm

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

    def _reference_logprobs(self, batch: Batch) -> Tensor:
        if self._reference is not None:
            return self._batches.batch(self._reference, batch).logprobs
        with adapter_off(self.model):
            return self._batches.batch(self.scorer, batch).logprobs

    def _frozen(self, scorer: Scorer, reference: PreTrainedModel | None) -> Scorer:
        if reference is None:
            reference = copy.deepcopy(scorer.model)
        frozen = Scorer(reference, scorer.share_prompts)
        return frozen.requires_grad_(False).to(self.accelerator.device)
