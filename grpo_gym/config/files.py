"""Configs from plain values and TOML files, and back."""

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from grpo_gym.config.options import EvalConfig, RolloutConfig, TrainConfig
from grpo_gym.config.text import format_arguments, toml_value
from grpo_gym.errors import UsageError

Config = TypeVar("Config", TrainConfig, EvalConfig, RolloutConfig)


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
    names = [field.name for field in fields(kind)]
    for name in values:
        if name not in names:
            raise UsageError(f"{where}: no option {name!r}{nearest(name, names)}")
    try:
        plain = {name: _plain(name, value) for name, value in values.items()}
        return TypeAdapter(kind).validate_python(plain, strict=True)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        cause = first.get("ctx", {}).get("error")
        if isinstance(cause, UsageError):
            raise UsageError(f"{where}: {cause}") from error
        name = ".".join(str(part) for part in first["loc"])
        what = first["msg"].removeprefix("Input should be ")
        raise UsageError(f"{where}: {name} is {first['input']!r}, but must be {what}") from error


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
        return tomllib.loads(path.read_text(encoding="utf-8"))
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


def _plain(name: str, value: Any) -> Any:
    """A value in the type that its field has."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping) and name in ("env_arg", "agent_arg"):
        return format_arguments(value)
    return tuple(value) if isinstance(value, list) else value
