"""A mark by which the model that an adapter was trained on is known again."""

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

_KEPT = "_grpo_gym_base_mark"


def fingerprint(model: "nn.Module") -> str:
    """A mark of the weights beside the adapter: other weights have another one.

    It is made from names, shapes and at most 4096 numbers of each tensor, so it is quick.
    """
    kept: str | None = getattr(model, _KEPT, None)
    if kept is not None:
        return kept
    mark = hashlib.sha256()
    plain = {
        name.replace(".base_layer.", "."): value
        for name, value in model.named_parameters()
        if ".lora_A." not in name and ".lora_B." not in name
    }
    for name, value in sorted(plain.items()):
        numbers = value.detach().flatten()[:: max(1, value.numel() // 4096)]
        mark.update(f"{name} {tuple(value.shape)} ".encode())
        mark.update(numbers.float().cpu().numpy().tobytes())
    return mark.hexdigest()


def keep_fingerprint(model: "nn.Module") -> None:
    """Let `model` keep its mark: one process alone cannot make it once the weights are sharded.

    It stays true as long as nothing but the adapter is trained.
    """
    setattr(model, _KEPT, fingerprint(model))
