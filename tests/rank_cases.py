"""What a learner is given, and what it makes of it, on any number of ranks: cases for `test_learner_ranks`.

python -m tests.rank_cases FILE     # as one rank of several: saves what it found
"""

import gc
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import DeepSpeedPlugin, DistributedType, FullyShardedDataParallelPlugin

from grpo_agents import AGENTS
from grpo_gym import UsageError
from grpo_gym.agent import Agent
from grpo_gym.learner import Learner, OptimiserOptions
from grpo_gym.learner.sharding import is_sharding, whole, whole_state
from grpo_gym.objectives.aggregations import (
    FixedLengthMean,
    PromptMean,
    SequenceMean,
    SequenceSum,
    TokenMean,
    TokenSum,
)
from grpo_gym.objectives.corrections import TIS
from grpo_gym.objectives.penalties import KL, AdaptiveEntropy
from grpo_gym.objectives.signals import Credit
from grpo_gym.types import Batch
from tests.learner_batches import make_batch
from tests.models import tiny_model

AGGREGATIONS = (
    TokenMean(),
    SequenceMean(),
    SequenceMean(count_empty_rows=True),
    SequenceSum(),
    SequenceSum(count_empty_rows=True),
    FixedLengthMean(7),
    FixedLengthMean(7, count_empty_rows=True),
    PromptMean(),
    TokenSum(),
)
SPLITS = {
    "whole groups": (4, 2, 3),
    "a group split over the ranks": (5,),
    "fewer groups than ranks": (3, 2),
    "a rank has nothing to do": (2,),
}


UNEVEN = OptimiserOptions(learning_rate=1e-3, tokens_per_micro_batch=24, max_grad_norm=0.1)


@dataclass(frozen=True)
class Case:
    """An agent, the sizes of the groups, how it is optimised, and what happens to the credit.

    `close` is how much two numbers may differ, absolutely and relatively. A `resumed` learner hands what it
    knows to another one between its updates. With `lost` the loss of the first step is no number, while its
    gradient is sound. `single` precision is that of DeepSpeed.
    """

    agent: Agent
    sizes: tuple[int, ...] = (4, 2, 3)
    options: OptimiserOptions = UNEVEN
    spoil: Callable[[Credit], Credit] | None = None
    top: int = 0
    updates: int = 2
    close: float = 1e-12  # in float64: the ranks add up the same numbers in another order
    model_type: str = "gpt2"
    resumed: bool = False
    lost: bool = False
    single: bool = False


def one_row_left(credit: Credit) -> Credit:
    """All tokens but those of the first row leave the loss."""
    mask = credit.mask.clone()
    mask[1:] = False
    return replace(credit, mask=mask)


def not_finite(credit: Credit) -> Credit:
    """One token, which one rank alone computes, has an advantage that is no number."""
    advantages = credit.advantages.clone()
    advantages[-1, 0] = torch.nan
    return replace(credit, advantages=advantages)


def cases() -> dict[str, Case]:
    """Every case by its name."""
    grpo = AGENTS["grpo"]()
    steps = OptimiserOptions(
        learning_rate=1e-3, epochs=2, mini_batches=2, tokens_per_micro_batch=40, max_grad_norm=0.1
    )
    found = {}
    for aggregation in AGGREGATIONS:
        agent = replace(grpo, aggregation=aggregation)
        for split, sizes in SPLITS.items():
            spoil = one_row_left if split == "a rank has nothing to do" else None
            found[f"{aggregation}: {split}"] = Case(agent, sizes, spoil=spoil, updates=1)
    for name, make in AGENTS.items():
        sizes = (2, 2, 2) if name == "two_grpo" else (4, 2, 3)
        found[name] = Case(make(), sizes, steps, updates=1)
    found["reference"] = Case(replace(grpo, penalties=(KL(0.1),)), options=steps)
    found["corrections"] = Case(replace(grpo, corrections=(TIS(2.0),)), options=steps)
    found["state"] = Case(replace(grpo, penalties=(AdaptiveEntropy(10.0, step=0.01),)))
    found["top log-probs"] = Case(AGENTS["dppo"](divergence="topk_kl", k=3), top=3, options=steps)
    found["resumed"] = Case(AGENTS["ppo"](), options=steps, resumed=True)
    found["not finite"] = Case(grpo, spoil=not_finite)
    found["loss not finite"] = Case(grpo, lost=True)
    found["no sharing"] = Case(grpo, options=replace(steps, share_prompts=False))
    found["recomputation"] = Case(
        grpo, options=replace(steps, gradient_checkpointing=True), model_type="llama"
    )
    # Its router computes in float32 whatever the weights are.
    found["experts"] = Case(grpo, updates=1, close=1e-6, model_type="mixtral")
    return found


def in_float32(case: Case) -> Case:
    """The case in single precision; a larger epsilon keeps AdamW from making much of tiny gradients."""
    return replace(case, single=True, close=1e-5, options=replace(case.options, eps=1e-3))


def accelerator_of(kind: str) -> Accelerator:
    """That of this rank, on the CPU."""
    accelerator = Accelerator(cpu=True)
    # accelerate shards on GPUs alone; but what it does there runs on the CPU as well.
    if kind == "sharded":
        accelerator.state.distributed_type = DistributedType.FSDP
        accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2,
            auto_wrap_policy="transformer_based_wrap",
            reshard_after_forward=True,
            cpu_ram_efficient_loading=False,
        )
    if kind in ("zero2", "zero3"):
        plugin = DeepSpeedPlugin(zero_stage=int(kind[-1]), zero3_init_flag=False)
        zero = plugin.deepspeed_config["zero_optimization"]
        zero["stage3_param_persistence_threshold"] = 0  # tiny weights are sharded too
        plugin._selected = True
        PartialState().distributed_type = DistributedType.DEEPSPEED
        accelerator.state.distributed_type = DistributedType.DEEPSPEED
        accelerator.state.deepspeed_plugins = {"default": plugin}
        accelerator.deepspeed_engine_wrapped = None
    return accelerator


def play(case: Case, accelerator: Accelerator) -> dict[str, Any]:
    """Some updates: their metrics, the gradients of each step, the weights and moments at the end."""
    # Ranks start from different weights where those of the first count.
    sharded = is_sharding(accelerator)
    gradients: list[dict[str, torch.Tensor]] = []
    learner = _learner(case, accelerator, 0 if sharded else accelerator.process_index, gradients)
    if case.lost:
        _lose(learner)
    metrics = []
    for number in range(case.updates):
        batch = make_batch(number, case.sizes, top=case.top)
        metrics.append(_update(learner, batch, case))
        if case.resumed:
            weights, state = dict(learner.state()), learner.optimiser_state()
            accelerator.free_memory()
            learner = _learner(case, accelerator, 7, gradients)
            learner.restore(weights, state)
    found = {
        "metrics": metrics,
        "gradients": gradients,
        "weights": {name: value.clone() for name, value in whole_state(learner.scorer).items()},
        "optimiser": learner.optimiser_state(),
    }
    accelerator.free_memory()
    return found


def _learner(
    case: Case, accelerator: Accelerator, seed: int, gradients: list[dict[str, torch.Tensor]]
) -> Learner:
    """A learner that records the gradients of each step."""
    model = tiny_model(seed, case.model_type, experts_implementation="eager")
    model = model if case.single else model.double()
    learner = Learner(model, case.agent, case.options, accelerator)
    step = learner._optimiser.step

    def recorded() -> Any:
        named = learner.scorer.named_parameters()
        gradients.append({n: whole(p.grad).clone() for n, p in named if p.grad is not None})
        return step()

    learner._optimiser.step = recorded
    return learner


def _lose(learner: Learner) -> None:
    """Make the loss of the first step no number, after the gradient is there."""
    add_up = learner._gradients.add_up

    def lost(*given: Any) -> Any:
        learner._gradients.add_up = add_up
        return torch.nan, add_up(*given)[1]

    learner._gradients.add_up = lost


def _update(learner: Learner, batch: Batch, case: Case) -> dict[str, float]:
    signals = learner.prepare(batch)
    credit = learner.agent.credit(signals)
    metrics = learner.update(batch, signals, case.spoil(credit) if case.spoil else credit)
    learner.agent = learner.agent.adapt(metrics)
    return metrics


def broken(accelerator: Accelerator) -> str:
    """The error of a learner whose every step fails on one rank."""
    case = replace(cases()["not finite"], options=OptimiserOptions(max_bad_steps=2))
    try:
        play(case, accelerator)
    except UsageError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    gc.collect()
    gc.freeze()  # each case ends with a collection, which would look through all that was imported
    this = accelerator_of(sys.argv[2])
    known, found = cases(), {}
    if sys.argv[2].startswith("zero"):
        known = {name: in_float32(case) for name, case in known.items()}
    for name in json.loads(sys.argv[3]):
        found[name] = broken(this) if name == "broken" else play(known[name], this)
    torch.save(found, f"{sys.argv[1]}-{this.process_index}.pt")
    this.end_training()
