"""The learner against plain computations: whole rows, full softmax, one optimiser step by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from grpo_gym.agent import Agent
from grpo_gym.learner import Learner, OptimiserOptions
from grpo_gym.objectives.advantages import GroupCentred, GroupStandardised
from grpo_gym.objectives.aggregations import SequenceMean, TokenMean
from grpo_gym.objectives.ratios import SequenceRatio, TokenRatio
from grpo_gym.objectives.trust_regions import Clip
from grpo_gym.types import Batch
from tests.learner_batches import make_batch, plain_logprobs
from tests.models import tiny_model

GRPO = Agent(GroupStandardised(), TokenRatio(), Clip(0.2, 0.2), SequenceMean())
DAPO = Agent(GroupStandardised(), TokenRatio(), Clip(0.2, 0.28), TokenMean())
GSPO = Agent(GroupCentred(), SequenceRatio(), Clip(3e-4, 4e-4), SequenceMean())


def plain_gradient(model: Any, agent: Agent, batch: Batch, temperature: float, signals: Any) -> Any:
    """Loss and gradients of the whole batch at once."""
    from grpo_gym.objectives.signals import Outputs

    model.zero_grad()
    credit = agent.credit(signals)
    weights = agent.weights(credit.mask, signals.group)
    outputs = Outputs(plain_logprobs(model, batch, temperature))
    loss, _ = agent.loss(outputs, signals, credit, weights)
    loss.backward()
    return float(loss.detach()), {n: p.grad.clone() for n, p in model.named_parameters()}


def learner_gradient(learner: Learner, batch: Batch, signals: Any) -> Any:
    """Loss and gradients that the learner's one step is made of."""
    taken: dict[str, torch.Tensor] = {}
    names = dict(learner.model.named_parameters())
    step = learner._optimiser.step

    def record(*arguments: Any) -> Any:
        taken.update({name: p.grad.clone() for name, p in names.items()})
        return step(*arguments)

    learner._optimiser.step = record
    metrics = learner.update(batch, signals)
    return metrics["loss"], taken


def differing(options: OptimiserOptions | None = None, **changes: Any) -> OptimiserOptions:
    base = OptimiserOptions(max_grad_norm=float("inf"), temperature=0.8, learning_rate=1e-3)
    return replace(options or base, **changes)


@pytest.mark.parametrize("agent", [GRPO, DAPO, GSPO], ids=["grpo", "dapo", "gspo"])
@pytest.mark.parametrize("share", [True, False], ids=["shared", "plain"])
@pytest.mark.parametrize("budget", [10**6, 40, 1], ids=["whole", "some", "single"])
@pytest.mark.parametrize(
    ("model_type", "dtype", "tolerance"),
    [("gpt2", torch.float64, 1e-10), ("qwen2", torch.float32, 2e-6)],
)
def test_gradient_is_that_of_whole_rows_and_full_softmax(
    agent: Agent, share: bool, budget: int, model_type: str, dtype: torch.dtype, tolerance: float
) -> None:
    batch = make_batch()
    model = tiny_model(model_type=model_type).to(dtype)
    options = differing(share_prompts=share, tokens_per_micro_batch=budget)
    learner = Learner(model, agent, options)
    assert learner.scorer.tiled
    assert learner.scorer.share_prompts == share
    signals = learner.prepare(batch)
    # an old policy that differs, so that ratios and clipping matter
    shift = torch.from_numpy(np.random.default_rng(1).normal(0, 0.2, batch.mask.shape)).to(dtype)
    old = plain_logprobs(model, batch, 0.8).detach() + shift
    signals = replace(signals, old=old)
    loss, gradients = plain_gradient(model, agent, batch, 0.8, signals)
    learned_loss, learned = learner_gradient(learner, batch, signals)
    assert learned_loss == pytest.approx(loss, abs=tolerance)
    largest = max(float(g.abs().max()) for g in gradients.values())
    for name, gradient in gradients.items():
        assert float((learned[name] - gradient).abs().max()) < tolerance * max(1, largest), name
