"""A policy from a name: the tiny one, a model folder, or an id on the Hugging Face hub."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from grpo_gym.errors import UsageError
from grpo_gym.rendering import Renderer

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

TINY = "tiny"
TINY_FOLDER = Path(__file__).parent / "tiny" / "model"


@dataclass(frozen=True, eq=False)
class Policy:
    """A model, its tokenizer, and the renderer that speaks its chat template."""

    name: str
    model: "PreTrainedModel"
    tokenizer: "PreTrainedTokenizerBase"
    renderer: Renderer


def load_policy(name: str | Path, *, dtype: str = "float32") -> Policy:
    """Load a policy.

    Args:
        name: "tiny", a folder that `save_pretrained` wrote, or a hub id such as "Qwen/Qwen3-0.6B".
        dtype: of the weights.

    Raises:
        UsageError: There is no such folder or id, or it holds no causal language model with a
            tokenizer.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    source = TINY_FOLDER if str(name) == TINY else name
    _check_folder(source)
    # Loading bars would cut through the run's own progress display.
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        tokenizer = AutoTokenizer.from_pretrained(source)
        model = AutoModelForCausalLM.from_pretrained(
            source, dtype=getattr(torch, dtype), use_safetensors=True
        )
    except Exception as error:  # whatever a foreign folder makes the loaders raise
        raise UsageError(
            f"model {str(name)!r} cannot be loaded: {' '.join(str(error).split())[:300]}"
        ) from error
    eos = getattr(model.generation_config, "eos_token_id", None)
    return Policy(str(name), model, tokenizer, Renderer(tokenizer, eos))


def _check_folder(source: str | Path) -> None:
    """Refuse at once what can only be a folder and is none, instead of asking the hub for it."""
    path = Path(source)
    looks_local = isinstance(source, Path) or str(source).startswith((".", "/", "~"))
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise UsageError(f"model folder {source} has no config.json: is it a saved model?")
    elif looks_local or path.exists() or str(source).count("/") > 1:
        raise UsageError(f"there is no model folder {source}")
