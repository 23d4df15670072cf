"""From words and a TOML file to a config."""

import io
from collections.abc import Iterable, Mapping
from contextlib import redirect_stderr
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar, cast

import tyro

from grpo_gym.config import (
    EvalConfig,
    RolloutConfig,
    TrainConfig,
    from_values,
    load_toml,
    merge_arguments,
    nearest,
)
from grpo_gym.errors import UsageError

Config = TypeVar("Config", TrainConfig, EvalConfig, RolloutConfig)
Options = TypeVar("Options")


def parse_config(
    kind: type[Config], words: list[str], command: str, saved: Mapping[str, Any] | None = None
) -> Config:
    """A config: what was saved, changed by the file of --config, changed by the other words.

    Args:
        kind: the dataclass.
        words: the command line after the command.
        command: its name.
        saved: values to start from instead of the defaults.

    Raises:
        UsageError: An unknown option, a value of another type or out of range.
    """
    path, rest = take_option(words, "--config")
    values = dict(saved or {})
    if path is not None:
        values |= load_toml(Path(path))
    base = from_values(kind, values, path or "the saved config")
    note = "\n--config FILE reads options from a TOML file; the others given here go over it."
    config = parse(kind, rest, command, base, note)
    return replace(config, **_merged(base, config))


def parse(
    kind: type[Options],
    words: list[str],
    command: str,
    base: Options | None = None,
    note: str = "",
) -> Options:
    """The options of a command: `base`, changed by words; `note` ends the first lines of its help.

    Raises:
        UsageError: An unknown option, or a value that the dataclass refuses.
        SystemExit: With status 0, after --help.
    """
    _check_names(kind, words)
    given: dict[str, Any] = {} if base is None else {"default": base}
    noise = io.StringIO()
    try:
        with redirect_stderr(noise):
            return cast(
                Options,
                tyro.cli(
                    kind,
                    prog=f"grpo-gym {command}",
                    description=f"{kind.__doc__}{note}",
                    args=words,
                    **given,
                ),
            )
    except SystemExit as stop:
        if not stop.code:
            raise
        raise UsageError(
            f"{_reason(stop, noise.getvalue())} (see grpo-gym {command} --help)"
        ) from None


def take_option(words: Iterable[str], option: str) -> tuple[str | None, list[str]]:
    """The value of an option, if it is there, and the words without it.

    Raises:
        UsageError: It comes twice, or without a value.
    """
    values, rest = [], []
    stream = iter(words)
    for word in stream:
        name, equals, value = word.partition("=")
        if name != option:
            rest.append(word)
        elif equals:
            values.append(value)
        else:
            values.append(next(stream, ""))
    if len(values) > 1:
        raise UsageError(f"{option} is given twice")
    if values == [""]:
        raise UsageError(f"{option} needs a value")
    return (values[0] if values else None), rest


def _merged(base: TrainConfig | EvalConfig | RolloutConfig, config: Any) -> dict[str, Any]:
    """Arguments on the command line replace those of the same name in the file."""
    return {
        name: merge_arguments(
            getattr(base, name), getattr(config, name)[len(getattr(base, name)) :]
        )
        for name in ("env_arg", "agent_arg", "engine_arg")
        if hasattr(config, name)
    }


def _check_names(kind: type[Any], words: list[str]) -> None:
    """Refuse unknown options with the nearest known ones."""
    names = [field.name.replace("_", "-") for field in fields(kind)]
    known = {*names, *(f"no-{name}" for name in names), "help"}
    for word in words:
        name = word.removeprefix("--").partition("=")[0]
        if word.startswith("--") and name.replace("_", "-") not in known:
            near = nearest(name, names).replace(" nearest: ", " nearest: --").replace(", ", ", --")
            raise UsageError(f"no option --{name}{near}")


def _reason(stop: SystemExit, text: str) -> str:
    """Why the parser gave up: the error that our dataclass raised, or else the parser's own words."""
    error: BaseException | None = stop
    while error is not None:
        if isinstance(error, UsageError):
            return str(error)
        error = error.__context__
    lines = [line.strip("│ ").removeprefix("Error parsing ") for line in text.splitlines()]
    rules = [i for i, line in enumerate(lines) if set(line) <= set("─-╰╯")]
    # The title is in the frame where the terminal can show one, else it stands above a rule of its own.
    first, end = (1, rules[0]) if lines[0].startswith("╭") else (rules[0] + 1, rules[1])
    return " ".join(lines[first:end])
