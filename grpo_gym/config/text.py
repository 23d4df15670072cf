"""Values as text: TOML, and the name=value pairs of the command line."""

import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from grpo_gym.errors import UsageError


def parse_arguments(pairs: Iterable[str], option: str) -> dict[str, Any]:
    """name=value pairs as keyword arguments; a value is read as TOML if it can be, else as text.

    Dates stay text.

    Raises:
        UsageError: A pair without "=" or without a name, or a name that comes twice.
    """
    arguments: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(f"{option} {pair!r} is not of the form name=value")
        if name in arguments:
            raise UsageError(f"{option} gives {name} twice")
        arguments[name] = _value(text)
    return arguments


def format_arguments(arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """Keyword arguments as the name=value pairs that `parse_arguments` reads back.

    Raises:
        UsageError: A value that TOML cannot hold.
    """
    return tuple(f"{name}={toml_value(value, name)}" for name, value in arguments.items())


def merge_arguments(first: Iterable[str], then: Iterable[str]) -> tuple[str, ...]:
    """The name=value pairs of both; a name in `then` replaces the same name in `first`."""
    replaced = {pair.partition("=")[0] for pair in then}
    kept = (pair for pair in first if pair.partition("=")[0] not in replaced)
    return (*kept, *then)


def _value(text: str) -> Any:
    """A value as TOML, or as the text that it is."""
    try:
        values = tomllib.loads(f"value = {text}")
    except (tomllib.TOMLDecodeError, RecursionError):
        return text
    # A line break could smuggle in further keys; a date is no argument of anything.
    if set(values) != {"value"} or not _holds(values["value"]):
        return text
    return values["value"]


def _holds(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_holds(item) for item in value)
    if isinstance(value, dict):
        return all(isinstance(key, str) and _holds(item) for key, item in value.items())
    return isinstance(value, bool | int | float | str)


def toml_value(value: Any, name: str) -> str:
    """A value as TOML; `name` is for the message.

    Raises:
        UsageError: A value that TOML cannot hold.
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        return repr(float(value))
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml_value(item, name) for item in value) + "]"
    if isinstance(value, Mapping):
        items = (
            f"{_string(str(key), name)} = {toml_value(item, name)}" for key, item in value.items()
        )
        return "{" + ", ".join(items) + "}"
    if isinstance(value, str | Path):
        return _string(str(value), name)
    raise UsageError(
        f"{name} is {value!r:.80}, and a config cannot hold a {type(value).__name__}: leave it out, "
        "or give the environment or agent itself instead of its name"
    )


def _string(text: str, name: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{name} is {text!r}, which is not valid Unicode text") from error
    # A JSON string is a TOML string, but for the one character that TOML wants escaped.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007F")
