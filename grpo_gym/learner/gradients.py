"""The gradient of one optimiser step, added up over micro-batches and ranks."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
from accelerate import Accelerator
from torch import Tensor

from grpo_gym.agent import Agent
from grpo_gym.learner.meters import Meters, meter_distances
from grpo_gym.learner.scoring import BatchScorer
from grpo_gym.learner.zero import is_zero
from grpo_gym.objectives.signals import Credit, Outputs, Signals
from grpo_gym.types import Batch, IntArray


class Gradients:
    """Runs the forward and backward passes of a step.

    Args:
        accelerator: says where this rank runs.
        scorer: the policy's forward pass, as `accelerate` prepared it.
        batches: splits rows and scores them.
    """

    def __init__(self, accelerator: Accelerator, scorer: Any, batches: BatchScorer) -> None:
        self._accelerator = accelerator
        self._scorer = scorer
        self._batches = batches

    def add_up(
        self,
        agent: Agent,
        batch: Batch,
        signals: Signals,
        credit: Credit,
        weights: Tensor,
        rows: IntArray,
    ) -> tuple[float, Meters]:
        """Add the gradient of `rows` to the parameters'; return their loss and metrics, over all ranks."""
        turns = self._batches.turns(batch, rows)
        total = Meters()
        for number, part in enumerate(turns):
            idle = len(part) == 0  # this rank then takes part with a gradient of 0
            meters = Meters()
            with self._sync(last=number == len(turns) - 1):
                loss, metrics = self._loss(
                    agent,
                    batch,
                    signals,
                    credit,
                    torch.zeros_like(weights) if idle else weights,
                    rows[:1] if idle else part,
                    meters,
                )
                # accelerate averages gradients over ranks, while the agent's weights make a sum
                self._backward(loss * self._accelerator.num_processes)
            meters.mean("loss", float(loss.detach()), 0)
            meters.means(metrics)
            if idle:
                meters.forget()
            total.merge(meters)
        total.reduce(self._accelerator)
        return total.pop("loss"), total

    def _loss(
        self,
        agent: Agent,
        batch: Batch,
        signals: Signals,
        credit: Credit,
        weights: Tensor,
        part: IntArray,
        meters: Meters,
    ) -> tuple[Tensor, dict[str, tuple[Tensor, Tensor]]]:
        """Loss and metrics of one micro-batch."""
        device = self._accelerator.device
        index = torch.from_numpy(part)
        some, earned = signals.rows(index).to(device), credit.rows(index).to(device)
        top_ids = some.behaviour_top_ids if agent.needs.top_logprobs else None
        scores = self._batches.rows(self._scorer, batch, part, True, top_ids)
        entropy = cast(Tensor, scores.entropy)
        outputs = Outputs(
            logprobs=scores.logprobs,
            entropy=entropy if agent.needs.entropy else entropy.detach(),
            top_logprobs=scores.top_logprobs,
            values=scores.values,
        )
        meter_distances(outputs, some, meters)
        return agent.loss(outputs, some, earned, weights[index].to(device))

    def _backward(self, loss: Tensor) -> None:
        # accelerate would have DeepSpeed take its step as well
        owner = self._scorer if is_zero(self._accelerator) else self._accelerator
        owner.backward(loss)

    def _sync(self, last: bool) -> AbstractContextManager[Any]:
        """Gradients go over the ranks with the last micro-batch only."""
        if is_zero(self._accelerator):
            self._scorer.set_gradient_accumulation_boundary(last)
            return nullcontext()
        if last:
            return nullcontext()
        return cast(AbstractContextManager[Any], self._accelerator.no_sync(self._scorer))
