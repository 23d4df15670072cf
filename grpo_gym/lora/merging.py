"""An adapter added to the weights that it stands beside: in a copy, or for good."""

import copy
from typing import TYPE_CHECKING, Any

from grpo_gym.lora.adapter import NAME, lora_layers

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PreTrainedModel


def merged_state(model: "nn.Module") -> dict[str, "Tensor"]:
    """The weights with the adapter added, under the names that the model had without it.

    The model's own weights stay as they are; what the adapter does not touch is not copied.

    Raises:
        UsageError: There is no adapter, or it was added before.
    """
    layers = lora_layers(model)
    state = {name: value.detach() for name, value in model.state_dict().items()}
    for name, layer in layers.items():
        kept = {key: state.pop(key) for key in list(state) if key.startswith(f"{name}.")}
        state |= {
            f"{name}.{key.removeprefix(f'{name}.base_layer.')}": value
            for key, value in kept.items()
            if key.startswith(f"{name}.base_layer.")
        }
        state[f"{name}.weight"] = _merged(layer)
    return state


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
        base.weight = nn.Parameter(_merged(layer), requires_grad=False)
        model.set_submodule(name, base)
    del model.peft_config


def _merged(layer: Any) -> "Tensor":
    """W + scale B A, in the dtype of W."""
    weight: Tensor = layer.get_base_layer().weight.detach()
    delta: Tensor = layer.get_delta_weight(NAME).detach()
    return (weight + delta).to(weight.dtype)
