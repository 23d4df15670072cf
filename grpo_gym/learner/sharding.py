"""What `accelerate` may do to the learner's model, and weights that it has sharded over the ranks.

Sharded weights (FSDP2, `torch.distributed.fsdp.fully_shard`; DeepSpeed, `zero`) are gathered layer by layer
in each pass, so every rank has to make the same passes in the same order.
"""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from grpo_gym.errors import UsageError
from grpo_gym.learner.zero import check_zero, gathered, is_zero, put
from grpo_gym.lora import adapter_parameters, has_adapter, load_adapter_weights

if TYPE_CHECKING:
    from accelerate import Accelerator

    from grpo_gym.learner.forward import Scorer


def is_sharding(accelerator: "Accelerator") -> bool:
    """Whether the accelerator shards the weights of what it prepares."""
    return str(accelerator.distributed_type.value) == "FSDP" or is_zero(accelerator)


def check_accelerator(accelerator: "Accelerator") -> None:
    """Refuse settings under which the update would not be the one that the agent asks for.

    Raises:
        UsageError: A kind of parallelism, or an option, that the learner does not know.
    """
    kind = str(accelerator.distributed_type.value)
    for asked in ("FSDP", "DEEPSPEED"):
        if os.environ.get(f"ACCELERATE_USE_{asked}", "false").lower() == "true" and kind != asked:
            raise UsageError(
                f"accelerate does {asked} on GPUs alone, and there is none: use a configuration without it"
            )
    if kind not in ("NO", "FSDP", "DEEPSPEED") and not kind.startswith("MULTI_"):
        raise UsageError(
            f"the learner runs on one process, on several, and sharded by FSDP2 or DeepSpeed, but not "
            f"with {kind}: choose another configuration for accelerate"
        )
    state: Any = accelerator.state
    mixed = accelerator.mixed_precision
    settings = [
        (mixed != "no", f"mixed_precision {mixed}", "'no', and --precision bf16"),
        (
            accelerator.gradient_accumulation_steps != 1,
            "gradient_accumulation_steps",
            "1, and --tokens-per-micro-batch",
        ),
        (state.dynamo_plugin.backend.value != "NO", "dynamo_backend", "'no'"),
    ]
    if kind == "FSDP":
        plugin = state.fsdp_plugin
        loading = "fsdp_cpu_ram_efficient_loading"
        settings += [
            (plugin.fsdp_version != 2, f"fsdp_version {plugin.fsdp_version}", "2"),
            (bool(plugin.cpu_ram_efficient_loading), loading, "false"),
        ]
    if kind == "DEEPSPEED":
        plugin = state.deepspeed_plugin
        check_zero(plugin.deepspeed_config, bool(plugin.zero3_init_flag))
    for refused, option, instead in settings:
        if refused:
            raise UsageError(f"accelerate's {option} does not go with the learner: use {instead}")


def check_shardable(scorer: "Scorer") -> None:
    """Refuse a model that cannot be sharded.

    Raises:
        UsageError: Its head cannot be tiled, or more is trained than its adapter.
    """
    model = scorer.model
    if has_adapter(model):
        adapter = {id(value) for value in adapter_parameters(model).values()}
        for name, value in model.named_parameters():
            if value.requires_grad and id(value) not in adapter:
                raise UsageError(
                    f"{name} is to be trained beside an adapter, but checkpoints would not hold it: "
                    "set its requires_grad to false"
                )
    if not scorer.tiled:
        raise UsageError(
            f"{type(model).__name__} is not sharded, since its head cannot be tiled: train it without "
            "FSDP or DeepSpeed"
        )


def whole(value: Tensor) -> Tensor:
    """A tensor as it is without sharding; all ranks have to ask for it."""
    return value.full_tensor() if isinstance(value, DTensor) else gathered(value)


def part(value: Tensor, like: Tensor) -> Tensor:
    """A whole tensor, which every rank has, sharded as `like` is."""
    if not isinstance(like, DTensor) or isinstance(value, DTensor) or value.ndim == 0:
        return value
    value = value.to(like.device)
    return distribute_tensor(value, like.device_mesh, like.placements, src_data_rank=None)


def whole_state(model: nn.Module) -> dict[str, Tensor]:
    """The `state_dict` of a model, without sharding; weights that are tied stay one tensor."""
    found: dict[int, Tensor] = {}
    out = {}
    for name, value in model.state_dict(keep_vars=True).items():
        if id(value) not in found:
            found[id(value)] = whole(value).detach()
        out[name] = found[id(value)]
    return out


def saved_weights(model: nn.Module) -> dict[str, Tensor]:
    """What a checkpoint holds of a model, without sharding: its adapter, or all if it has none."""
    if not has_adapter(model):
        return whole_state(model)
    return {name: whole(value).detach() for name, value in adapter_parameters(model).items()}


def load_saved_weights(model: nn.Module, weights: Mapping[str, Tensor], zero: bool) -> None:
    """Take what `saved_weights` gave of the same model, however it is sharded.

    Raises:
        UsageError: They are of another adapter.
        RuntimeError: They are of another model.
    """
    if not has_adapter(model):
        load_whole_state(model, weights, zero)
    elif zero:
        load_adapter_weights(model, weights, put)
    else:
        load_adapter_weights(model, weights, lambda own, v: own.detach().copy_(part(v, own)))


def load_whole_state(model: nn.Module, weights: Mapping[str, Tensor], zero: bool = False) -> None:
    """Load what `whole_state` gave, into a model that may be sharded; raises as `load_state_dict`."""
    own = model.state_dict()
    if zero:
        if weights.keys() != own.keys():
            raise RuntimeError(
                f"missing or unexpected weights: {sorted(weights.keys() ^ own.keys())}"
            )
        for name, value in [*model.named_parameters(), *model.named_buffers()]:
            if name in own:
                put(value, weights[name])
        return
    model.load_state_dict({n: part(v, own[n]) if n in own else v for n, v in weights.items()})


def whole_optimiser_state(optimiser: torch.optim.Optimizer) -> dict[str, Any]:
    """The `state_dict` of an optimiser, without sharding, on the CPU where it was sharded."""
    state = optimiser.state_dict()
    moments = {
        number: {
            name: whole(value).cpu() if isinstance(value, DTensor) else value
            for name, value in entry.items()
        }
        for number, entry in state["state"].items()
    }
    return state | {"state": moments}
