"""The folder of a run: found or made, its config saved in it, and resumed from it."""

import os
import re
from dataclasses import fields
from pathlib import Path

from grpo_gym.config import TrainConfig, from_values, load_toml, to_toml
from grpo_gym.errors import UsageError
from grpo_gym.monitor import write_atomically

CONFIG = "config.toml"

# What a run cannot change when it goes on: it would no longer be the same run.
_FIXED = (
    "env",
    "env_arg",
    "model",
    "seed",
    "agent",
    "agent_arg",
    "kl",
    "kl_kind",
    "groups_per_step",
    "group_size",
    "split",
)


def saved_config(folder: Path) -> TrainConfig:
    """The config of the run in a folder.

    Raises:
        UsageError: There is no run, or its config cannot be read.
    """
    path = folder / CONFIG
    if not path.is_file():
        raise UsageError(f"{folder} holds no run to resume: there is no {CONFIG} in it")
    return from_values(TrainConfig, load_toml(path), str(path))


def open_run(config: TrainConfig) -> Path:
    """Make the folder of a run, or check the one to resume; write the config into it.

    Raises:
        UsageError: The folder cannot be written, holds another run, or differs from the run to
            resume.
    """
    if config.resume:
        if config.run_dir is None:
            raise UsageError("resume needs run_dir, the folder of the run")
        folder = Path(config.run_dir)
        before = saved_config(folder)
        for name in _FIXED:
            if getattr(before, name) != getattr(config, name):
                raise UsageError(
                    f"the run in {folder} has {name} {getattr(before, name)!r}, not "
                    f"{getattr(config, name)!r}: resume it as it is, or begin another"
                )
    else:
        folder = Path(config.run_dir) if config.run_dir is not None else _new_name(config)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(13, "Permission denied")
    except OSError as error:
        raise UsageError(
            f"the run folder {folder} cannot be written: {error.strerror}; choose another run_dir"
        ) from error
    if not config.resume and any(folder.iterdir()):
        raise UsageError(
            f"the run folder {folder} is not empty: resume the run in it, or choose another run_dir"
        )
    return folder


def save_config(config: TrainConfig, folder: Path) -> None:
    """Write the resolved config into the folder of the run."""
    values = {f.name for f in fields(config)} - {"resume", "run_dir"}
    lines = [line for line in to_toml(config).splitlines() if line.split(" = ")[0] in values]
    write_atomically(folder / CONFIG, "\n".join(lines) + "\n")


def _new_name(config: TrainConfig) -> Path:
    """runs/ENV-AGENT-N with the first N that is free."""
    env = re.sub(r"[^A-Za-z0-9]+", "-", config.env.rpartition("/")[2].removesuffix("-v0"))
    agent = re.sub(r"[^A-Za-z0-9_]+", "-", config.agent)
    number = 1
    while (folder := Path("runs") / f"{env.strip('-')}-{agent}-{number}").exists():
        number += 1
    return folder
