"""The adapter of a run: put into the policy at the beginning, merged into a model at the end."""

import shutil
import tempfile
from pathlib import Path

from grpo_gym.checkpoint import latest
from grpo_gym.checkpoint.weights import write_model
from grpo_gym.config import TrainConfig
from grpo_gym.errors import UsageError
from grpo_gym.lora import LoraOptions, add_adapter, is_adapter_folder, put_adapter, read_adapter
from grpo_gym.policy import Policy, load_policy


def trains_adapter(config: TrainConfig) -> bool:
    """Whether a run trains an adapter, not the model's own weights."""
    return config.lora_rank > 0 or config.lora_adapter is not None


def adapt(config: TrainConfig, policy: Policy, folder: Path) -> None:
    """Put the adapter that the config asks for into the policy's model.

    A run that goes on takes its own last adapter: where it began from may be gone.

    Args:
        config: of a run that trains an adapter.
        policy: its model is changed in place.
        folder: of the run.

    Raises:
        UsageError: The adapter cannot be read, or does not fit the model; or the model is an adapter.
    """
    if policy.adapter is not None:
        raise UsageError(
            f"model {config.model} is an adapter: to go on with it give it as lora_adapter, and as model "
            f"the one that it was trained on ({policy.source}); or merge it first"
        )
    path = Path(policy.source)
    source = str(path.resolve()) if path.is_dir() else policy.source
    if config.lora_adapter is None:
        options = LoraOptions(config.lora_rank, config.lora_alpha, config.lora_targets)
        add_adapter(policy.model, options, config.seed, source)
        return
    last = latest(folder) if config.resume else None
    saved = read_adapter(Path(config.lora_adapter) if last is None else last / "model")
    put_adapter(policy.model, saved, source)


def merge_into_folder(source: Path, out: Path) -> None:
    """Write a model with its adapter merged into the weights, in float32, with its tokenizer.

    Args:
        source: folder of a run that trained an adapter, or of an adapter.
        out: where to write; it must not be there yet, and appears whole or not at all.

    Raises:
        UsageError: There is no adapter in `source`, or its model is not to be had; or `out` cannot be
            written.
    """
    try:
        last = latest(source)
        folder = source if last is None else last / "model"
        if not is_adapter_folder(folder):
            whole = "" if last is None else f"; the model of this run is whole already: {folder}"
            raise UsageError(f"there is no adapter in {source}{whole}")
        if out.exists():
            raise UsageError(f"cannot write {out}: it is there already")
        policy = load_policy(folder)
        out.parent.mkdir(parents=True, exist_ok=True)
        hidden = Path(tempfile.mkdtemp(prefix=".merging-", dir=out.parent))
    except OSError as error:
        raise UsageError(f"cannot merge {source} into {out}: {error.strerror}") from error
    try:
        write_model(hidden, policy.model, policy.tokenizer)
        hidden.chmod(0o755)
        hidden.rename(out)
    except BaseException:
        shutil.rmtree(hidden, ignore_errors=True)
        raise
