"""What a vLLM server loads into its workers, so that its weights can follow a learner.

`--worker-extension-cls grpo_gym.engines.vllm_server_worker.WeightsExtension` mixes the class into vLLM's
worker; its methods are then called over HTTP, by name, through `/collective_rpc`.
"""

import os
import re
import tempfile
from pathlib import Path
from typing import Any

PROTOCOL = 1
"""Raised whenever an engine could not work with a server that was started by an older version."""

FOLDER_VARIABLE = "GRPO_GYM_WEIGHTS_DIR"
"""Environment variable of the server: the folder through which weights come."""

SHAPE_FIELDS = (
    "model_type",
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "tie_word_embeddings",
)
"""Fields of a model's configuration that two models of the same shapes agree in."""

_NAME = re.compile(r"weights-[0-9a-f]{32}\.safetensors")


class WeightsExtension:
    """Methods for vLLM's worker; the names are long since they share its namespace."""

    vllm_config: Any

    def grpo_gym_describe(self) -> dict[str, Any]:
        """What an engine needs to know of the server, in plain values."""
        model = self.vllm_config.model_config
        return {
            "protocol": PROTOCOL,
            "folder": str(weights_folder()),
            "context_length": int(model.max_model_len),
            "vocabulary": int(model.get_vocab_size()),
            "dtype": str(model.dtype).removeprefix("torch."),
            "head_dtype": str(model.head_dtype).removeprefix("torch."),
            "logprobs_mode": str(model.logprobs_mode),
            "model": shapes(model.hf_config),
        }

    def grpo_gym_load(self, name: str) -> dict[str, str]:
        """Take the weights in a file of the folder; say what is wrong, if anything is."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        from grpo_gym.engines.vllm_weights import take_weights

        path = weights_folder() / name
        if _NAME.fullmatch(name) is None or path.is_symlink() or not path.is_file():
            return {"error": f"the server finds no file {name} in {weights_folder()}"}
        try:
            weights = list(load_file(path).items())
        except (OSError, SafetensorError) as error:
            return {"error": f"the server cannot read {path}: {error}"}
        take_weights(self, weights)
        return {"loaded": name}

    def grpo_gym_scale_logits(self, factor: float) -> None:
        """Scale all logits from now on: by `factor` in all, whatever was said before."""
        from vllm.model_executor.layers.logits_processor import LogitsProcessor

        for module in self.get_model().modules():  # type: ignore[attr-defined]
            if isinstance(module, LogitsProcessor):
                if not hasattr(module, "grpo_gym_scale"):
                    module.grpo_gym_scale = module.scale
                module.scale = module.grpo_gym_scale * float(factor)


def shapes(config: Any) -> dict[str, Any]:
    """The fields of a model's configuration that decide the shapes of its weights."""
    text = config.get_text_config()
    return {name: getattr(text, name, None) for name in SHAPE_FIELDS}


def weights_folder() -> Path:
    """The folder through which weights come, made if it is not there.

    Raises:
        PermissionError: It is in the folder for temporary files, and somebody else has made it.
    """
    given = os.environ.get(FOLDER_VARIABLE)
    if given:
        return Path(given).absolute()
    folder = Path(tempfile.gettempdir()) / f"grpo-gym-weights-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to somebody else; set {FOLDER_VARIABLE}")
    return folder
