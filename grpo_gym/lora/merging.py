"""An adapter added to the weights that it stands beside: in a copy, or for good."""

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from grpo_gym.lora.adapter import NAME, lora_layers

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PreTrainedModel


def merged_state(
    model: "nn.Module", state: "Mapping[str, Tensor] | None" = None
) -> dict[str, "Tensor"]:
    """The weights with the adapter added, under the names that the model had without it.

    The model's own weights stay as they are; what the adapter does not touch is not copied.

    Args:
        model: with an adapter.
        state: its `state_dict`, where the model itself holds a part of each weight only.

    Raises:
        UsageError: There is no adapter, or it was added before.
    """
    layers = lora_layers(model)
    state = dict(model.state_dict() if state is None else state)
    merged: dict[str, Tensor] = {}
    for name, layer in layers.items():
        old = f"{name}.base_layer."
        down, up = (state.pop(f"{name}.{part}.{NAME}.weight") for part in ("lora_A", "lora_B"))
        merged |= {
            f"{name}.{key.removeprefix(old)}": state.pop(key)
            for key in list(state)
            if key.startswith(old)
        }
        merged[f"{name}.weight"] = _merged(layer, merged[f"{name}.weight"], down, up)
    return {name: value.detach() for name, value in (state | merged).items()}


def merged_twin(model: "PreTrainedModel") -> "PreTrainedModel":
    """A model without the adapter that computes what `model` does with it.

    It shares the memory of all weights but those that the adapter adds to.

    Raises:
        UsageError: There is no adapter, or it was added before.
    """
    lora_layers(model)
    shared = [*model.parameters(), *model.buffers()]
    twin = copy.deepcopy(model, {id(tensor): tensor for tensor in shared})
    merge(twin)
    return twin


def merge(model: "PreTrainedModel") -> None:
    """Add the adapter to the weights of `model` for good; there is none left afterwards.

    Layers get new weights: whoever shares the old ones does not notice.

    Raises:
        UsageError: There is no adapter, or it was added before.
    """
    from torch import nn

    for name, layer in lora_layers(model).items():
        base: Any = layer.get_base_layer()
        weight = _merged(layer, base.weight, layer.lora_A[NAME].weight, layer.lora_B[NAME].weight)
        base.weight = nn.Parameter(weight, requires_grad=False)
        model.set_submodule(name, base)
    del model.peft_config


def _merged(layer: Any, weight: "Tensor", down: "Tensor", up: "Tensor") -> "Tensor":
    """W + scale B A, in the dtype of W.

    As peft's `get_delta_weight`, but of given matrices: those of a sharded layer are in parts.
    """
    product = up.detach() @ down.detach()
    delta = (product.T if layer.fan_in_fan_out else product) * layer.scaling[NAME]
    whole: Tensor = weight.detach() + delta
    return whole.to(weight.dtype)
