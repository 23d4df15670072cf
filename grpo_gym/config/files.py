"""Configs from plain values and TOML files, and back."""

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from pydantic import TypeAdapter, ValidationError

from grpo_gym.config.options import EvalConfig, RolloutConfig, TrainConfig
from grpo_gym.config.text import format_arguments, toml_value
from grpo_gym.errors import UsageError

Config = TypeVar("Config")


def from_values(kind: type[Config], values: Mapping[str, Any], where: str) -> Config:
    """A config from plain values, checked.

    Args:
        kind: the dataclass.
        values: field names to values. A list stands for a tuple, a path for its text, and a table
            for the name=value pairs of `env_arg` and `agent_arg`.
        where: the file, or whatever the values come from, for the message.

    Raises:
        UsageError: An unknown option (the known ones near it are named), or a value of another type.
    """
    kinds = get_type_hints(kind)
    for name in values:
        if name not in kinds:
            raise UsageError(f"{where}: no option {name!r}{nearest(name, kinds)}")
    try:
        return kind(**{name: _read(name, value, kinds[name]) for name, value in values.items()})
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error


def nearest(name: str, names: Iterable[str]) -> str:
    """A clause that names the known names nearest to an unknown one."""
    near = difflib.get_close_matches(name, list(names), n=3, cutoff=0.5)
    return f"; nearest: {', '.join(near)}" if near else ""


def load_toml(path: Path) -> dict[str, Any]:
    """The values of a TOML file.

    Raises:
        UsageError: It cannot be read, or is not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{path}: not a TOML file: {error}") from error


def to_toml(config: TrainConfig | EvalConfig | RolloutConfig, without: Iterable[str] = ()) -> str:
    """A config as TOML that `from_values` reads back; fields that are None are left out.

    Args:
        config: the config.
        without: names of further fields to leave out.

    Raises:
        UsageError: A text that TOML cannot hold.
    """
    values = {name: value for name, value in asdict(config).items() if value is not None}
    return "".join(
        f"{name} = {toml_value(value, name)}\n"
        for name, value in values.items()
        if name not in without
    )


def _read(name: str, value: Any, kind: Any) -> Any:
    """A value in the type that its field has; true is no number, and a text is none either."""
    if isinstance(value, Path):
        value = str(value)
    elif isinstance(value, list):
        value = tuple(value)
    elif isinstance(value, Mapping) and name in ("env_arg", "agent_arg", "engine_arg"):
        value = format_arguments(value)
    try:
        return TypeAdapter(kind).validate_python(value, strict=True)
    except ValidationError as error:
        what = error.errors()[0]["msg"].removeprefix("Input should be ").replace("tuple", "list")
        raise UsageError(f"{name} is {value!r:.80}, but must be {what}") from error
