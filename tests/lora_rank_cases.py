"""Adapters that several ranks train, and what they make of it: cases for `test_lora_ranks`.

python -m tests.lora_rank_cases FILE WORK     # as one rank of several: saves what it found
"""

import gc
import json
import sys
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from accelerate import Accelerator

from grpo_agents import AGENTS
from grpo_gym.agent import Agent
from grpo_gym.config import TrainConfig, from_values
from grpo_gym.jobs import run_training
from grpo_gym.learner import Learner, OptimiserOptions
from grpo_gym.learner.sharding import whole_state
from grpo_gym.lora import LoraOptions, add_adapter
from grpo_gym.objectives.penalties import KL
from grpo_gym.ranks import Ranks
from tests.learner_batches import make_batch
from tests.models import tiny_model
from tests.rank_cases import accelerator_of

Found = dict[str, Any]
SHAPE = LoraOptions(4, 8.0)


@dataclass(frozen=True)
class Case:
    """An agent and the adapter that it trains.

    A `resumed` learner hands what it knows to another one between its updates.
    """

    agent: Agent
    options: OptimiserOptions
    shape: LoraOptions = SHAPE
    model_type: str = "gpt2"
    tied: bool = True
    sizes: tuple[int, ...] = (4, 2, 3)
    resumed: bool = False


def cases() -> dict[str, Case]:
    """Every case by its name."""
    options = OptimiserOptions(
        learning_rate=1e-2, epochs=2, mini_batches=2, tokens_per_micro_batch=40, max_grad_norm=0.1
    )
    ppo, grpo = (
        replace(agent, penalties=(KL(0.1),)) for agent in (AGENTS["ppo"](), AGENTS["grpo"]())
    )
    return {
        "all layers, resumed": Case(ppo, options, resumed=True),
        # The very first pass is that of the base; and one rank gets no row of the adapter.
        "one layer": Case(
            grpo,
            replace(options, epochs=1, mini_batches=1),
            shape=LoraOptions(1, targets=("transformer.h.0.mlp.c_fc",)),
            sizes=(3, 2),
        ),
        "untied, recomputed": Case(
            AGENTS["grpo"](),
            replace(options, gradient_checkpointing=True),
            model_type="llama",
            tied=False,
        ),
    }


def play(case: Case, accelerator: Accelerator, dtype: torch.dtype) -> Found:
    """Two updates; the metrics, and all that the learner has at the end, whole."""
    # A larger epsilon keeps AdamW from making much of tiny gradients in single precision.
    if dtype == torch.float32:
        case = replace(case, options=replace(case.options, eps=1e-3))
    learner = _learner(case, accelerator, dtype, 0)
    metrics = []
    for number in range(2):
        batch = make_batch(number, case.sizes)
        metrics.append(learner.update(batch, learner.prepare(batch)))
        learner.logprobs(
            [[3, 4, 5, 6]]
        )  # as each sync does: weights stay as a forward pass leaves them
        if case.resumed:
            weights, state = learner.saved_weights(), learner.optimiser_state()
            accelerator.free_memory()
            learner = _learner(case, accelerator, dtype, 7)
            learner.restore(weights, state)
    found = {
        "metrics": metrics,
        "adapter": _copies(learner.saved_weights()),
        "merged": _copies(learner.state()),
        "all": _copies(whole_state(learner.scorer)),
        "optimiser": learner.optimiser_state()["optimiser"]["state"],
    }
    accelerator.free_memory()
    return found


def _learner(case: Case, accelerator: Accelerator, dtype: torch.dtype, seed: int) -> Learner:
    """The base is always the same; the adapter comes from the seed."""
    model: Any = tiny_model(0, case.model_type, tie_word_embeddings=case.tied)
    model = model.to(dtype)
    add_adapter(model, case.shape, seed)
    return Learner(model, case.agent, case.options, accelerator)


def _copies(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in state.items()}


def accelerator_for(kind: str, ranks: Ranks) -> Accelerator:
    """Of this rank: weights are whole, or shared out; "kept" ones stay gathered after a forward pass."""
    if kind == "whole":
        return cast(Accelerator, ranks.accelerator)
    accelerator = accelerator_of("sharded" if kind == "kept" else kind)
    if kind == "kept":
        accelerator.state.fsdp_plugin.reshard_after_forward = False
    return accelerator


def precision(kind: str) -> torch.dtype:
    """In which the cases are played; DeepSpeed takes single precision alone."""
    return torch.float32 if kind.startswith("zero") else torch.float64


if __name__ == "__main__":
    gc.collect()
    gc.freeze()  # each case ends with a collection, which would look through all that was imported
    found = {}
    with Ranks() as ranks:
        for kind, names, runs in json.loads(sys.argv[2]):
            ranks.accelerator = accelerator_for(kind, ranks)
            found[kind] = {n: play(cases()[n], ranks.accelerator, precision(kind)) for n in names}
            for options in runs:
                run_training(from_values(TrainConfig, options, "test"), ranks=ranks)
                ranks.accelerator.free_memory()
        torch.save(found, f"{sys.argv[1]}-{ranks.index}.pt")
