"""The weights in a checkpoint: those of a whole model, or of the adapter that is trained in it."""

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from grpo_gym.errors import UsageError
from grpo_gym.lora import (
    fingerprint,
    has_adapter,
    misfits,
    read_adapter,
    save_adapter,
)

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def write_model(
    folder: Path,
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase | None",
    weights: "Mapping[str, Tensor] | None" = None,
) -> None:
    """Write a model, or its adapter alone if it has one, and its tokenizer.

    With `weights` these are written as the model's, or the adapter's, whose own are then not looked at.
    """
    with _quiet():
        if has_adapter(model):
            save_adapter(model, folder, weights)
        else:
            given = None if weights is None else dict(weights)
            model.save_pretrained(folder, state_dict=given)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)


def read_weights(path: Path, model: "PreTrainedModel") -> dict[str, "Tensor"]:
    """The weights in a checkpoint, checked to be for `model`; of its adapter, if it has one.

    Raises:
        UsageError: They are of another model, or cannot be read.
    """
    return _of_adapter(path, model) if has_adapter(model) else _of_model(path, model)


def _of_adapter(path: Path, model: "PreTrainedModel") -> dict[str, "Tensor"]:
    """The adapter's weights."""
    saved = read_adapter(path / "model")
    if saved.base_mark not in (None, fingerprint(model)):
        raise UsageError(
            f"checkpoint {path} is an adapter of another model: give the model that it was trained on"
        )
    for problem in misfits(model, saved.weights):
        raise UsageError(f"checkpoint {path} is of another adapter: {problem}")
    return saved.weights


def _of_model(path: Path, model: "PreTrainedModel") -> dict[str, "Tensor"]:
    """The weights, read into a second model of the same configuration.

    The configuration in the checkpoint decides nothing, so a foreign one cannot build a huge model.
    """
    import torch

    with torch.random.fork_rng(devices=[]), _quiet():
        try:
            loaded, report = cast(Any, type(model)).from_pretrained(
                path / "model",
                config=copy.deepcopy(model.config),
                dtype=next(model.parameters()).dtype,
                use_safetensors=True,
                local_files_only=True,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
            )
        except Exception as error:  # whatever a foreign file makes transformers raise
            line = " ".join(str(error).split())[:200]
            raise UsageError(f"checkpoint {path}: its weights cannot be read: {line}") from error
    problems = [
        *(
            f"{name} is {tuple(there)} there and {tuple(here)} here"
            for name, there, here in sorted(report["mismatched_keys"])
        ),
        *(f"it lacks {name}" for name in sorted(report["missing_keys"])),
        *(f"it has {name}, which this model lacks" for name in sorted(report["unexpected_keys"])),
    ]
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise UsageError(
            f"checkpoint {path} is of another model: {problems[0]}{more}; "
            "give the model that was trained"
        )
    return cast("dict[str, Tensor]", loaded.state_dict())


@contextmanager
def _quiet() -> Iterator[None]:
    """Without progress bars, and without a report on what is checked and reported here."""
    from transformers.utils import logging as its_logging

    logging = cast(Any, its_logging)
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
