"""LoRA through peft: small trained matrices beside weights that stay as they are.

Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021, arXiv 2106.09685.
"""

from grpo_gym.lora.adapter import (
    LoraOptions,
    adapter_off,
    adapter_parameters,
    adapter_weights,
    add_adapter,
    has_adapter,
    load_adapter_weights,
    misfits,
)
from grpo_gym.lora.files import (
    ADAPTER_CONFIG,
    SavedAdapter,
    is_adapter_folder,
    put_adapter,
    read_adapter,
    save_adapter,
)
from grpo_gym.lora.marks import fingerprint, keep_fingerprint
from grpo_gym.lora.merging import merge, merged_state, merged_twin

__all__ = [
    "ADAPTER_CONFIG",
    "LoraOptions",
    "SavedAdapter",
    "adapter_off",
    "adapter_parameters",
    "adapter_weights",
    "add_adapter",
    "fingerprint",
    "has_adapter",
    "is_adapter_folder",
    "keep_fingerprint",
    "load_adapter_weights",
    "merge",
    "merged_state",
    "merged_twin",
    "misfits",
    "put_adapter",
    "read_adapter",
    "save_adapter",
]
