"""Checkpoints: a directory that appears whole or not at all, and is checked before it is believed.

    RUN/checkpoints/step-000040/
        model/          weights (safetensors), config and tokenizer, as any tool reads them; where an
                        adapter is trained, that alone, as peft has it, and the tokenizer
        optimiser.pt    state of the optimiser
        state.json      step, whatever the trainer adds, and the size and SHA-256 of every file

It is written under a hidden name, flushed to the disk, and renamed: whoever is killed at any moment
leaves either the new checkpoint or the old ones, never half of one.
"""

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_gym.checkpoint.weights import read_weights, write_model
from grpo_gym.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

FORMAT = "grpo-gym checkpoint 1"
_NAME = re.compile(r"step-(\d{6,})(?:-(\d+))?")


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint holds.

    Attributes:
        path: its directory.
        step: the trainer's step.
        weights: name -> tensor, as the model's `state_dict` has them, tied ones included; of an
            adapter, as `adapter_weights` has them.
        optimiser: the learner's `optimiser_state`.
        state: what the trainer added.
    """

    path: Path
    step: int
    weights: dict[str, "Tensor"]
    optimiser: dict[str, Any]
    state: dict[str, Any]


def save(
    run: Path,
    step: int,
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase | None",
    optimiser: Mapping[str, Any],
    state: Mapping[str, Any],
    keep: int = 2,
    weights: "Mapping[str, Tensor] | None" = None,
) -> Path:
    """Save a checkpoint, then remove all but the last `keep`.

    Args:
        run: directory of the run.
        step: the trainer's step.
        model: saved with its config, in the dtype it has.
        tokenizer: saved beside the model.
        optimiser: nested dicts and lists of tensors and plain values.
        state: values that JSON can hold.
        keep: how many checkpoints to keep, at least 1.
        weights: the model's `state_dict`, or its `adapter_weights`, where the model itself holds a part
            of them only.

    Returns:
        The checkpoint's directory.

    Raises:
        ValueError: `keep` is below 1, or `state` holds what JSON cannot.
    """
    import torch

    if keep < 1:
        raise ValueError(f"keep must be at least 1, got {keep}")
    root = run / "checkpoints"
    root.mkdir(parents=True, exist_ok=True)
    _sweep(root)
    target = _free(root, step)
    hidden = Path(tempfile.mkdtemp(prefix=".saving-", dir=root))
    try:
        write_model(hidden / "model", model, tokenizer, weights)
        torch.save(dict(optimiser), hidden / "optimiser.pt")
        record = {"format": FORMAT, "step": step, "state": dict(state), "files": _files(hidden)}
        try:
            text = json.dumps(record, indent=1, sort_keys=True)
        except TypeError as error:
            raise ValueError(f"the state of a checkpoint must fit into JSON: {error}") from error
        (hidden / "state.json").write_text(text, encoding="utf-8")
        for path in sorted(hidden.rglob("*")):
            _flush(path)
        _flush(hidden)
        hidden.chmod(0o755)
        hidden.rename(target)
    except BaseException:
        shutil.rmtree(hidden, ignore_errors=True)
        raise
    _flush(root)
    for path in _list(root)[:-keep]:
        _remove(path)
    return target


def latest(run: Path) -> Path | None:
    """The newest checkpoint of a run; None if there is none."""
    found = _list(run / "checkpoints")
    return found[-1] if found else None


def load(path: Path, model: "PreTrainedModel") -> Checkpoint:
    """Read a checkpoint and check that it is whole and fits `model`, which is left as it is.

    Args:
        path: directory of a checkpoint.
        model: the model that the weights are for.

    Raises:
        UsageError: The directory is no checkpoint, one of its files is missing, cut short or
            changed, or it is of another model.
    """
    import torch

    record = _record(path)
    for name, (size, digest) in record["files"].items():
        _verify(path, name, size, digest)
    weights = read_weights(path, model)
    try:
        optimiser = torch.load(path / "optimiser.pt", map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load raises whatever the bytes make it raise
        line = " ".join(str(error).split())[:200]
        raise UsageError(f"checkpoint {path}: cannot read optimiser.pt: {line}") from error
    return Checkpoint(path, record["step"], weights, optimiser, record["state"])


def _record(path: Path) -> dict[str, Any]:
    """The content of state.json, its types checked."""
    if not path.is_dir():
        raise UsageError(f"checkpoint {path}: there is no such directory")
    try:
        record = json.loads((path / "state.json").read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UsageError(f"checkpoint {path}: it has no state.json, so it is none") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"checkpoint {path}: state.json is damaged: {error}") from error
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise UsageError(f"checkpoint {path}: state.json is not of the format {FORMAT!r}")
    files: Any = record.get("files")
    sound = (
        isinstance(record.get("step"), int)
        and isinstance(record.get("state"), dict)
        and isinstance(files, dict)
        and all(
            isinstance(entry, list)
            and len(entry) == 2
            and isinstance(entry[0], int)
            and isinstance(entry[1], str)
            for entry in files.values()
        )
    )
    if not sound or "optimiser.pt" not in files:
        raise UsageError(f"checkpoint {path}: state.json lacks what a checkpoint has")
    return record


def _verify(path: Path, name: str, size: int, digest: str) -> None:
    file = path / name
    if not file.resolve().is_relative_to(path.resolve()):
        raise UsageError(f"checkpoint {path}: it names {name!r}, outside its directory")
    if not file.is_file():
        raise UsageError(f"checkpoint {path}: {name} is missing")
    if file.stat().st_size != size:
        raise UsageError(
            f"checkpoint {path}: {name} has {file.stat().st_size} bytes instead of {size}"
        )
    if _digest(file) != digest:
        raise UsageError(f"checkpoint {path}: {name} was changed after it was saved")


def _files(directory: Path) -> dict[str, tuple[int, str]]:
    paths = sorted(path for path in directory.rglob("*") if path.is_file())
    return {
        path.relative_to(directory).as_posix(): (path.stat().st_size, _digest(path))
        for path in paths
    }


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush(path: Path) -> None:
    """Bring a file or directory to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _list(root: Path) -> list[Path]:
    """Checkpoints, the oldest first."""
    if not root.is_dir():
        return []
    found = [(match, path) for path in root.iterdir() if (match := _NAME.fullmatch(path.name))]
    found.sort(key=lambda pair: (int(pair[0][1]), int(pair[0][2] or 1)))
    return [path for _, path in found]


def _free(root: Path, step: int) -> Path:
    """A name for a checkpoint of `step`; a second one of the same step gets a number."""
    path, number = root / f"step-{step:06d}", 1
    while path.exists():
        number += 1
        path = root / f"step-{step:06d}-{number}"
    return path


def _remove(path: Path) -> None:
    """Remove a checkpoint; it vanishes from the list at once, then from the disk."""
    hidden = path.with_name(f".removed-{path.name}")
    shutil.rmtree(hidden, ignore_errors=True)
    path.rename(hidden)
    shutil.rmtree(hidden)


def _sweep(root: Path) -> None:
    """Remove what a killed process left; one process writes to a run at a time."""
    for pattern in (".saving-*", ".removed-*"):
        for path in root.glob(pattern):
            shutil.rmtree(path, ignore_errors=True)
