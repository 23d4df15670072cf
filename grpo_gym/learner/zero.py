"""DeepSpeed's ZeRO-2 and ZeRO-3: its engine does the backward pass, the clipping and the step.

accelerate has the engine step at the end of a backward pass; here the passes and the step are apart, so that
a step comes once for all micro-batches, and not at all where the loss is not finite.
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from grpo_gym.errors import UsageError

if TYPE_CHECKING:
    from accelerate import Accelerator

MOMENTS = ("exp_avg", "exp_avg_sq")


def is_zero(accelerator: "Accelerator") -> bool:
    """Whether DeepSpeed does what the accelerator prepares."""
    return str(accelerator.distributed_type.value) == "DEEPSPEED"


def check_zero(config: Mapping[str, Any], inits: bool) -> None:
    """Refuse what has not been tried, or would change the update.

    Args:
        config: what DeepSpeed is given.
        inits: whether models are sharded as soon as they are loaded.

    Raises:
        UsageError: It is not ZeRO-2 or ZeRO-3 in float32 with all on the device.
    """
    zero = config.get("zero_optimization", {})
    away = [zero.get(f"offload_{what}") or {} for what in ("optimizer", "param")]
    accumulation = ("gradient_accumulation_steps", "1, and --tokens-per-micro-batch")
    settings = [
        (zero.get("stage") not in (2, 3), "zero_stage", "2 or 3"),
        (inits, "zero3_init_flag", "false"),
        (config.get("gradient_accumulation_steps") not in (None, "auto", 1), *accumulation),
        (any(part.get("device", "none") != "none" for part in away), "offloading", "'none'"),
    ]
    for kind in ("bf16", "fp16"):
        on = (config.get(kind) or {}).get("enabled") is True
        settings.append((on, kind, "none of it, and --precision bf16"))
    for refused, option, instead in settings:
        if refused:
            raise UsageError(f"DeepSpeed's {option} does not go with the learner: use {instead}")


def configure(accelerator: "Accelerator", max_grad_norm: float) -> None:
    """Set what the learner decides: clipping, and micro-batches of its own making."""
    config = accelerator.state.deepspeed_plugin.deepspeed_config
    config["gradient_clipping"] = float(max_grad_norm)
    config["train_micro_batch_size_per_gpu"] = 1  # DeepSpeed only reports it


def gathered(parameter: Tensor) -> Tensor:
    """All values of a parameter; a copy if they are sharded, and then all ranks have to ask for it."""
    if not hasattr(parameter, "ds_id"):
        return parameter
    import deepspeed

    with deepspeed.zero.GatheredParameters([parameter]):
        return parameter.detach().clone()


@torch.no_grad()
def put(parameter: Tensor, value: Tensor) -> None:
    """Set a parameter, and the copy of it that the optimiser steps; all ranks do, with the same value.

    Raises:
        ValueError: The value has another shape.
    """
    import deepspeed

    _check_shape(parameter, value)
    with deepspeed.zero.GatheredParameters([parameter], modifier_rank=0):
        parameter.copy_(value)
    if parameter.requires_grad:
        _put_shard(parameter, value, None)


class Zero:
    """A step of DeepSpeed's engine, and the state of its optimiser without sharding.

    Args:
        engine: the scorer as `accelerate` prepared it.
        groups: the groups of the optimiser before that.
    """

    def __init__(self, engine: Any, groups: list[list[nn.Parameter]]) -> None:
        self._engine = engine
        self._groups = groups
        self._parameters = [parameter for group in groups for parameter in group]
        sharded = engine.optimizer
        self._inner = sharded.optimizer
        third = hasattr(sharded, "fp32_partitioned_groups_flat")
        shards = (
            sharded.fp32_partitioned_groups_flat
            if third
            else sharded.single_partition_of_fp32_groups
        )
        # AdamW would make them in its first step; they have to be there to be restored, and DeepSpeed 0.19
        # links them to the parameters before that step has made those of the second group.
        for shard in shards:
            self._inner.state[shard] = {"step": torch.zeros((), device=shard.device)}
            self._inner.state[shard] |= {name: torch.zeros_like(shard) for name in MOMENTS}
        if not third:
            sharded._lazy_init_hp_params_optimizer_state()

    def step(self, usable: bool) -> float:
        """Clip the gradient, take the step, and drop the gradient; return its norm before clipping.

        Args:
            usable: whether the step may be taken; all ranks say the same. It is not taken either if
                the norm is not finite.
        """
        from deepspeed.utils import safe_set_full_grad

        if not usable:
            # the engine drops the gradient that it has added up only where it finds it broken
            for parameter in self._parameters:
                bad = torch.full(_shape(parameter), math.nan, device=parameter.device)
                safe_set_full_grad(parameter, bad)
        self._engine.step()
        if self._engine.optimizer.overflow:
            return math.nan
        return float(self._engine.get_global_grad_norm())

    def state(self) -> dict[str, Any]:
        """What the `state_dict` of the optimiser would be without DeepSpeed, on the CPU."""
        from deepspeed.utils import safe_get_full_optimizer_state

        entries: dict[int, dict[str, Tensor]] = {}
        step = next(iter(self._inner.state.values()))["step"].detach().cpu()
        for number, parameter in enumerate(self._parameters if step > 0 else []):
            entries[number] = {"step": step.clone()}
            for name in MOMENTS:
                value = safe_get_full_optimizer_state(parameter, name)
                entries[number][name] = value.detach().cpu().clone()
        numbers = iter(range(len(self._parameters)))
        groups = [
            {name: value for name, value in settings.items() if name != "params"}
            | {"params": [next(numbers) for _ in group]}
            for settings, group in zip(self._inner.param_groups, self._groups, strict=True)
        ]
        return {"state": entries, "param_groups": groups}

    @torch.no_grad()
    def load(self, state: Mapping[str, Any]) -> None:
        """Take the moments of a saved state, of a learner with DeepSpeed or without.

        Raises:
            ValueError: The state is of other parameters.
        """
        ours = [len(group) for group in self._groups]
        theirs = [len(group["params"]) for group in state["param_groups"]]
        if ours != theirs:
            raise ValueError(f"groups of {theirs} parameters, and not of {ours}")
        entries = state["state"]
        steps = {float(entry["step"]) for entry in entries.values()} or {0.0}
        if len(steps) > 1:
            raise ValueError(f"parameters with different numbers of steps: {sorted(steps)}")
        for number, parameter in enumerate(self._parameters):
            for name in MOMENTS:
                value = (
                    entries[number][name] if number in entries else torch.zeros(_shape(parameter))
                )
                _check_shape(parameter, value)
                _put_shard(parameter, value, name)
        for moments in self._inner.state.values():
            moments["step"].fill_(next(iter(steps)))


def _shape(parameter: Tensor) -> torch.Size:
    shape: torch.Size = getattr(parameter, "ds_shape", parameter.shape)
    return shape


def _check_shape(parameter: Tensor, value: Tensor) -> None:
    if value.shape != _shape(parameter):
        raise ValueError(f"{tuple(value.shape)} for a parameter of {tuple(_shape(parameter))}")


def _put_shard(parameter: Any, value: Tensor, moment: str | None) -> None:
    """Set this rank's part of a moment, or of the optimiser's copy of the parameter."""
    from deepspeed import utils

    value = value.to(parameter.device, torch.float32)
    if hasattr(parameter, "ds_id"):
        size = parameter.ds_tensor.ds_numel
        start = size * torch.distributed.get_rank()
        mine = value.flatten()[start : start + size]
        mine = nn.functional.pad(mine, (0, size - len(mine)))
        if moment is None:
            utils.safe_set_local_fp32_param(parameter, mine)
        else:
            utils.safe_set_local_optimizer_state(parameter, mine, moment)
    elif moment is None:
        utils.safe_set_full_fp32_param(parameter, value)
    else:
        utils.safe_set_full_optimizer_state(parameter, value, moment)
