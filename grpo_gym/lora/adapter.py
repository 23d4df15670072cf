"""An adapter in a model: put in, looked up, switched off.

peft replaces the chosen layers of the very model by ones that hold the old layer and two small
matrices; the model keeps its class, so that whatever runs it goes on as before.
"""

import importlib.util
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from grpo_gym.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PreTrainedModel

ALL_LINEAR = "all-linear"
NAME = "default"
"""The name by which peft knows the only adapter."""

_PREFIX = "base_model.model."
"""What peft's files put before the name of each layer."""

_PARTS = ("lora_A", "lora_B")
"""The two matrices of a layer."""


@dataclass(frozen=True)
class LoraOptions:
    """The shape of an adapter.

    Dropout is not among them: the learner scores what the engine sampled, so both must be the same
    function.

    Attributes:
        rank: of the product that is added to each weight.
        alpha: the product is scaled by alpha / rank.
        targets: the layers that get one, by name ("q_proj") or ending ("self_attn.q_proj");
            "all-linear" stands for every linear layer but the head.
        rank_stabilised: scale by alpha / sqrt(rank) instead (Kalajdzievski 2023, arXiv 2312.03732).
    """

    rank: int
    alpha: float = 32.0
    targets: tuple[str, ...] = (ALL_LINEAR,)
    rank_stabilised: bool = False

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise UsageError(f"lora_rank is {self.rank}, but must be at least 1")
        if not 0 < self.alpha < math.inf:
            raise UsageError(f"lora_alpha is {self.alpha}, but must be a finite number above 0")
        if not self.targets or "" in self.targets:
            raise UsageError("lora_targets must name at least one layer, or be all-linear")


def add_adapter(
    model: "PreTrainedModel", options: LoraOptions, seed: int = 0, base: str | None = None
) -> None:
    """Put a new adapter into `model`, in place, and freeze everything else.

    It changes nothing until it is trained: one of its two matrices is 0.

    Args:
        model: without an adapter.
        options: the shape.
        seed: of the random matrix; the global generator is left as it was.
        base: folder or hub id of the model, for whoever loads the adapter.

    Raises:
        UsageError: peft is not installed, the model has an adapter, or no layer of such a name.
    """
    if importlib.util.find_spec("peft") is None:
        raise UsageError("LoRA needs peft: pip install 'grpo-gym[lora]'")
    if has_adapter(model):
        raise UsageError("the model has an adapter already")
    import torch
    from peft import LoraConfig, inject_adapter_in_model
    from transformers.pytorch_utils import Conv1D

    layers = _targets(model, options.targets)
    most = max(max(cast(Any, layer).weight.shape) for layer in layers.values())
    if options.rank > most:
        raise UsageError(f"lora_rank is {options.rank}, but no layer is wider than {most}")
    config = LoraConfig(
        r=options.rank,
        lora_alpha=cast(int, options.alpha),
        target_modules=list(layers),
        use_rslora=options.rank_stabilised,
        fan_in_fan_out=any(isinstance(layer, Conv1D) for layer in layers.values()),
        base_model_name_or_path=base,
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # of layers whose weight is transposed, which it sees itself
        torch.manual_seed(seed)
        try:
            inject_adapter_in_model(config, model, NAME)
        except ValueError as error:
            line = " ".join(str(error).split())[:250]
            raise UsageError(
                f"lora_targets: peft refuses this {type(model).__name__}: {line}"
            ) from error


def has_adapter(model: "nn.Module") -> bool:
    """Whether there is an adapter in `model`."""
    return bool(getattr(model, "peft_config", None))


def lora_layers(model: "nn.Module") -> dict[str, Any]:
    """Name to layer, of those that the adapter is in.

    Raises:
        UsageError: There is no adapter, or somebody added it to the weights.
    """
    if not has_adapter(model):
        raise UsageError("there is no adapter in this model: it was merged, or never there")
    from peft.tuners.lora import LoraLayer

    layers = {name: m for name, m in model.named_modules() if isinstance(m, LoraLayer)}
    for name, layer in layers.items():
        if cast(Any, layer).merged:
            raise UsageError(
                f"the adapter was added to {name}.weight already: it would count twice"
            )
    return layers


def adapter_weights(model: "nn.Module") -> dict[str, "Tensor"]:
    """The adapter's weights, under the names of peft's files; views, not copies."""
    return {name: value.detach() for name, value in adapter_parameters(model).items()}


def adapter_parameters(model: "nn.Module") -> dict[str, "nn.Parameter"]:
    """What `adapter_weights` gives views of; where weights are sharded, they are so here."""
    own: dict[str, nn.Parameter] = model.state_dict(keep_vars=True)
    return {
        f"{_PREFIX}{name}.{part}.weight": own[f"{name}.{part}.{NAME}.weight"]
        for name in lora_layers(model)
        for part in _PARTS
    }


def load_adapter_weights(
    model: "nn.Module",
    weights: Mapping[str, "Tensor"],
    put: "Callable[[nn.Parameter, Tensor], object] | None" = None,
) -> None:
    """Take weights as `adapter_weights` gives them.

    Args:
        model: with an adapter of the same shape.
        weights: by their names in peft's files, whole.
        put: sets a parameter to a value, where a copy does not do, as the parameter is sharded.

    Raises:
        UsageError: Names or shapes differ.
    """
    for problem in misfits(model, weights):
        raise UsageError(f"the adapter does not fit this model: {problem}")
    for name, parameter in adapter_parameters(model).items():
        if put is None:
            parameter.detach().copy_(weights[name])
        else:
            put(parameter, weights[name])


def misfits(model: "nn.Module", weights: Mapping[str, "Tensor"]) -> list[str]:
    """What is wrong with names and shapes of weights that are to be those of the adapter in `model`."""
    own = {  # from the layers, since a sharded weight does not have its shape
        f"{_PREFIX}{name}.{part}.weight": (linear.out_features, linear.in_features)
        for name, layer in lora_layers(model).items()
        for part, linear in ((part, getattr(layer, part)[NAME]) for part in _PARTS)
    }
    return [
        *(f"it lacks {name}" for name in sorted(own.keys() - weights.keys())),
        *(f"it has {name}, which this model lacks" for name in sorted(weights.keys() - own.keys())),
        *(
            f"{name} is {tuple(weights[name].shape)} there and {shape} here"
            for name, shape in own.items()
            if name in weights and tuple(weights[name].shape) != shape
        ),
    ]


@contextmanager
def adapter_off(model: "nn.Module") -> Iterator[None]:
    """Within, `model` computes what it did before it had the adapter; nothing is copied."""
    layers = list(lora_layers(model).values())
    _switch(layers, False)
    try:
        yield
    finally:
        _switch(layers, True)


def _switch(layers: list[Any], on: bool) -> None:
    """Let the adapter count or not; what is trained stays trained, which peft would decide as well."""
    trained = [(value, value.requires_grad) for layer in layers for value in layer.parameters()]
    for layer in layers:
        layer.enable_adapters(on)
    for value, flag in trained:
        value.requires_grad_(flag)


def _targets(model: "PreTrainedModel", names: tuple[str, ...]) -> dict[str, "nn.Module"]:
    """Name to layer, of those that are to get an adapter."""
    from torch import nn
    from transformers.pytorch_utils import Conv1D

    head = cast(Any, model).get_output_embeddings()
    linear: dict[str, nn.Module] = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D)
        and module is not head
        # A layer of one architecture's own, such as Llama 4's router, gives more than a product.
        and not type(module).__module__.startswith("transformers.models.")
    }
    if ALL_LINEAR in names:
        return linear
    chosen: dict[str, nn.Module] = {}
    for target in names:
        found = {n: m for n, m in linear.items() if n == target or n.endswith(f".{target}")}
        if not found:
            known = sorted({name.rpartition(".")[2] for name in linear})
            raise UsageError(
                f"lora_targets: {type(model).__name__} has no linear layer {target!r} that can have an "
                f"adapter; there is {', '.join(known)}"
            )
        chosen |= found
    return {name: module for name, module in linear.items() if name in chosen}
