"""The folder of a run: made or found, its config saved in it, and cleared if nothing came of it.

RUN/config.toml         the resolved options
RUN/agent.txt           the agent, as a value
RUN/metrics.jsonl       one JSON object a step
RUN/eval-000000.json    an evaluation, named after the steps before it
RUN/rollouts/           rollouts of some steps and of the evaluations
RUN/checkpoints/        see `grpo_gym.checkpoint`
"""

import json
import math
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from grpo_gym.checkpoint import latest
from grpo_gym.config import TrainConfig, from_values, load_toml, to_toml
from grpo_gym.errors import UsageError
from grpo_gym.evaluation import Evaluation
from grpo_gym.monitor import write_atomically, write_rollouts
from grpo_gym.types import Group

CONFIG = "config.toml"
_EVALUATION = re.compile(r"eval-(\d{6,})\.json")

# What a run cannot change when it goes on: it would no longer be the same run.
_FIXED = (
    "env",
    "env_arg",
    "model",
    "chat_template",
    "seed",
    "agent",
    "agent_arg",
    "kl",
    "kl_kind",
    "groups_per_step",
    "group_size",
    "split",
    "lora_rank",
    "lora_alpha",
    "lora_targets",
    "lora_adapter",
)


@dataclass(frozen=True)
class Run:
    """What a training run left.

    Attributes:
        folder: the folder of the run.
        model: folder of the trained model, which `transformers` loads.
        steps: training steps done.
        evaluations: step to the evaluation made after it.
    """

    folder: Path
    model: Path
    steps: int
    evaluations: dict[int, Evaluation] = field(default_factory=dict)

    @property
    def metrics_path(self) -> Path:
        """One JSON object a step."""
        return self.folder / "metrics.jsonl"


def saved_config(folder: Path) -> TrainConfig:
    """The config of the run in a folder, set to resume it.

    Raises:
        UsageError: There is no run, or its config cannot be read.
    """
    path = folder / CONFIG
    if not path.is_file():
        raise UsageError(f"{folder} holds no run to resume: there is no {CONFIG} in it")
    values = load_toml(path)
    config = from_values(TrainConfig, values | {"run_dir": str(folder), "resume": True}, str(path))
    lacking = {"env", "model", "agent"} - values.keys()
    if lacking:  # with the defaults another run would go on in this one's place
        raise UsageError(f"{path} lacks {min(lacking)}: it is not as the run wrote it")
    return config


@contextmanager
def open_run(config: TrainConfig) -> Iterator[Path]:
    """The folder of a run: a new one, or the one to resume.

    A new folder vanishes again when an error leaves the block before anything was trained or saved.

    Raises:
        UsageError: The folder cannot be written, is not empty, or differs from the run to resume.
    """
    if config.resume:
        folder = Path(config.run_dir or "")
        _check_same(saved_config(folder), config)
        _try_writing(folder)
        yield folder
        return
    folder, made = _new_folder(config)
    try:
        _try_writing(folder)
        yield folder
    except BaseException:
        if latest(folder) is None and not (folder / "metrics.jsonl").exists():
            _clear(folder, made)
        raise


def save_config(config: TrainConfig, agent: object, folder: Path) -> None:
    """Write the resolved config, and the agent as a value, into the folder of the run."""
    write_atomically(folder / CONFIG, to_toml(config, without=("resume", "run_dir")))
    write_atomically(folder / "agent.txt", f"{agent!r}\n")


def evaluation_path(folder: Path, step: int) -> Path:
    """Where the evaluation after a step is written."""
    return folder / f"eval-{step:06d}.json"


def save_evaluation(
    folder: Path, step: int, evaluation: Evaluation, groups: Sequence[Group]
) -> None:
    """Write the evaluation after a step, and its rollouts."""
    write_rollouts(folder / "rollouts" / f"eval-{step:06d}.jsonl", groups)
    write_atomically(evaluation_path(folder, step), evaluation.to_json() + "\n")


def saved_evaluations(folder: Path) -> dict[int, Evaluation]:
    """Step to evaluation, as far as the files in a folder can be read."""
    found = {}
    for path in sorted(folder.glob("eval-*.json")):
        match = _EVALUATION.fullmatch(path.name)
        evaluation = _read_evaluation(path)
        if match and evaluation is not None:
            found[int(match[1])] = evaluation
    return found


def _read_evaluation(path: Path) -> Evaluation | None:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(record, dict) and record.get("reward") is None:
            record["reward"] = math.nan
        return TypeAdapter(Evaluation).validate_python(record)
    except (OSError, ValueError, RecursionError, ValidationError):
        return None  # it is then made again


def _check_same(before: TrainConfig, now: TrainConfig) -> None:
    for name in _FIXED:
        old, new = getattr(before, name), getattr(now, name)
        if old != new:
            raise UsageError(
                f"the run in {now.run_dir} has {name} {old!r}, not {new!r}: resume it as it is, or "
                "begin another"
            )


def _new_folder(config: TrainConfig) -> tuple[Path, list[Path]]:
    """An empty folder, and those of it and its parents that had to be made, deepest first."""
    if config.run_dir is None:
        return _named_folder(config)
    folder = Path(config.run_dir)
    try:
        made = [path for path in (folder, *folder.parents) if not path.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        taken = any(folder.iterdir())
    except (OSError, ValueError) as error:  # a null character in a path is a ValueError
        raise _cannot_write(folder, error) from error
    if taken:
        raise UsageError(
            f"the run folder {folder} is not empty: resume the run in it, or choose another run_dir"
        )
    return folder, made


def _named_folder(config: TrainConfig) -> tuple[Path, list[Path]]:
    """runs/ENV-AGENT-N with the first N that is free, even while other runs take theirs."""
    env = re.sub(r"[^A-Za-z0-9]+", "-", config.env.rpartition("/")[2].removesuffix("-v0"))
    agent = re.sub(r"[^A-Za-z0-9_]+", "-", config.agent.partition("(")[0])
    runs = Path("runs")
    made = [] if runs.exists() else [runs]
    number = 0
    while True:
        number += 1
        folder = runs / f"{env.strip('-')}-{agent}-{number}"
        try:
            folder.mkdir(parents=True)
            return folder, [folder, *made]
        except FileExistsError:
            if not runs.is_dir():
                raise _cannot_write(folder, NotADirectoryError(20, "Not a directory")) from None
        except OSError as error:
            raise _cannot_write(folder, error) from error


def _try_writing(folder: Path) -> None:
    """Be sure that a file can be written into the folder."""
    probe = folder / ".probe"
    try:
        probe.write_text("", encoding="utf-8")
        probe.unlink()
    except OSError as error:
        raise _cannot_write(folder, error) from error


def _cannot_write(folder: Path, error: Exception) -> UsageError:
    reason = getattr(error, "strerror", None) or error
    return UsageError(
        f"the run folder {folder} cannot be written: {reason}; choose another run_dir"
    )


def _clear(folder: Path, made: list[Path]) -> None:
    """Empty the folder, and remove it and its parents as far as they were `made`, deepest first."""
    for path in list(folder.iterdir()) if folder.is_dir() else ():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    for path in made:
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()
