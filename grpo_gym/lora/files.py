"""Adapters on the disk, as peft has them: adapter_config.json and adapter_model.safetensors.

What comes from the disk is not trusted: of the config only plain values that are understood are
taken, since peft itself would import modules that it names, and no file is unpickled.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_gym.errors import UsageError
from grpo_gym.lora.adapter import (
    NAME,
    LoraOptions,
    adapter_weights,
    add_adapter,
    load_adapter_weights,
    lora_layers,
)
from grpo_gym.lora.marks import fingerprint

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PreTrainedModel

ADAPTER_CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
_WEIGHT = re.compile(r"base_model\.model\.(.+)\.lora_[AB]\.weight")

# Fields of peft's config that change what an adapter computes, and the values that leave it a plain one.
_PLAIN: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none", None),
    "use_dora": (False, None),
    "use_qalora": (False, None),
    "lora_bias": (False, None),
    "modules_to_save": (None, []),
    "rank_pattern": (None, {}),
    "alpha_pattern": (None, {}),
    "layer_replication": (None, []),
    "target_parameters": (None, []),
    "trainable_token_indices": (None, [], {}),
    "megatron_config": (None,),
    "alora_invocation_tokens": (None, []),
    "arrow_config": (None,),
}


@dataclass(frozen=True)
class SavedAdapter:
    """An adapter from the disk.

    Attributes:
        folder: where it lies.
        options: its shape; the targets are the full names of its layers.
        base: folder or hub id of the model that it was trained on; None if it does not say.
        base_mark: `fingerprint` of that model's weights; None if it does not say.
        weights: as `adapter_weights` gives them, on the CPU.
    """

    folder: Path
    options: LoraOptions
    base: str | None
    base_mark: str | None
    weights: dict[str, "Tensor"]


def save_adapter(
    model: "nn.Module", folder: Path, weights: "Mapping[str, Tensor] | None" = None
) -> None:
    """Write the adapter of `model` into a folder, as peft reads it; the base is not written.

    Args:
        model: with an adapter.
        folder: made if it is not there.
        weights: as `adapter_weights` gives them, where the model itself holds a part of each only.

    Raises:
        UsageError: There is no adapter, or it was added to the weights.
    """
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    weights = adapter_weights(model) if weights is None else weights
    plain = {name: value.contiguous().cpu() for name, value in weights.items()}
    save_file(plain, folder / WEIGHTS, {"format": "pt", "base": fingerprint(model)})
    peft_config: Any = model.peft_config
    config = {
        name: sorted(value) if isinstance(value, set) else value
        for name, value in peft_config[NAME].to_dict().items()
    }
    config |= {"target_modules": sorted(lora_layers(model)), "inference_mode": True}
    text = json.dumps(config, indent=2, sort_keys=True) + "\n"
    (folder / ADAPTER_CONFIG).write_text(text, encoding="utf-8")


def is_adapter_folder(path: Path) -> bool:
    """Whether a folder holds an adapter."""
    return (path / ADAPTER_CONFIG).is_file()


def read_adapter(folder: Path) -> SavedAdapter:
    """Read an adapter and check what can be checked without the model.

    Raises:
        UsageError: The folder holds none, its files are damaged, or it is more than a plain LoRA.
    """
    config = _config(folder)
    weights, mark = _weights(folder)
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if type(rank) is not int or not isinstance(alpha, int | float) or not 0 < alpha < 1e9:
        raise UsageError(
            f"adapter {folder}: r is {rank!r:.40} and lora_alpha {alpha!r:.40}, but both must be numbers "
            "above 0"
        )
    targets = tuple(sorted({_layer(folder, name) for name in weights}))
    options = LoraOptions(rank, float(alpha), targets, config.get("use_rslora") is True)
    ranks = {len(value) for name, value in weights.items() if name.endswith(".lora_A.weight")}
    if ranks != {options.rank}:
        raise UsageError(f"adapter {folder}: r is {options.rank}, but its weights have {ranks}")
    base = config.get("base_model_name_or_path")
    return SavedAdapter(folder, options, base if isinstance(base, str) else None, mark, weights)


def _layer(folder: Path, name: str) -> str:
    """The layer that a weight is for."""
    match = _WEIGHT.fullmatch(name)
    if match is None:
        raise UsageError(f"adapter {folder} has {name!r:.80}, which is no weight of a LoRA adapter")
    return match[1]


def _config(folder: Path) -> dict[str, Any]:
    path = folder / ADAPTER_CONFIG
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"there is no adapter in {folder}: {path.name}: {error.strerror}"
        ) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"adapter {folder}: its {ADAPTER_CONFIG} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise UsageError(f"adapter {folder}: its {ADAPTER_CONFIG} is not an object")
    for name, plain in _PLAIN.items():
        value = config.get(name, plain[0])
        if value not in plain:
            raise UsageError(
                f"adapter {folder}: {name} is {value!r:.80}, but only plain LoRA adapters are known; "
                "merge it into its model with the tool that made it"
            )
    return config


def _weights(folder: Path) -> tuple[dict[str, "Tensor"], str | None]:
    import torch
    from safetensors import SafetensorError, safe_open

    path = folder / WEIGHTS
    if not path.is_file():
        raise UsageError(f"adapter {folder} has no {WEIGHTS}: other formats are not read")
    try:
        with safe_open(path, "pt") as file:
            mark = (file.metadata() or {}).get("base")
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        line = " ".join(str(error).split())[:200]
        raise UsageError(f"adapter {folder}: its {WEIGHTS} is damaged: {line}") from error
    if not weights:
        raise UsageError(f"adapter {folder}: its {WEIGHTS} is empty")
    known = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
    for name, value in weights.items():
        if value.dtype not in known or not bool(value.isfinite().all()):
            raise UsageError(
                f"adapter {folder}: {name:.200} is {value.dtype} or holds what is no finite number"
            )
    return weights, mark


def put_adapter(model: "PreTrainedModel", saved: SavedAdapter, base: str | None = None) -> None:
    """Put a saved adapter into the model that it was trained on, in place.

    Args:
        model: without an adapter.
        saved: the adapter.
        base: folder or hub id of the model.

    Raises:
        UsageError: It is of another model.
    """
    if saved.base_mark not in (None, fingerprint(model)):
        raise UsageError(
            f"adapter {saved.folder} was trained on other weights than those of this model: "
            f"give its own ({saved.base})"
        )
    add_adapter(model, saved.options, base=base)
    load_adapter_weights(model, saved.weights)
