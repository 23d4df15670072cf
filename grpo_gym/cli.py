"""The command line: `grpo-gym train | eval | rollout | envs | agents | check | tiny`.

Heavy imports stand inside the commands, so that listing and help are quick.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import tyro
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from grpo_gym.config import (
    EvalConfig,
    RolloutConfig,
    TaskOptions,
    TrainConfig,
    from_values,
    load_toml,
)
from grpo_gym.errors import UsageError

_Options = TypeVar("_Options")
_registry = tyro.constructors.ConstructorRegistry()


@_registry.primitive_rule
def _numbers(
    kind: tyro.constructors.PrimitiveTypeInfo,
) -> tyro.constructors.PrimitiveConstructorSpec[tuple[int, ...]] | None:
    """A tuple of whole numbers is written 1,8,16."""
    if kind.type != tuple[int, ...]:
        return None
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="K,K,...",
        instance_from_str=lambda args: tuple(int(part) for part in args[0].split(",")),
        is_instance=lambda value: isinstance(value, tuple),
        str_from_instance=lambda value: [",".join(map(str, value))],
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status.

    0: done. 1: the run failed. 2: a mistake in what was given. 130: interrupted, and saved.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    console = Console()
    if not words or words[0] in ("-h", "--help"):
        _print_help(console)
        return 0 if words else 2
    if words[0] == "--version":
        from grpo_gym import __version__

        console.print(__version__, highlight=False)
        return 0
    command = COMMANDS.get(words[0])
    try:
        if command is None:
            raise UsageError(f"no command {words[0]!r}; there is {', '.join(COMMANDS)}")
        return command(words[1:], console)
    except UsageError as error:
        _complain(error)
        return 2
    except BrokenPipeError:  # the reader of our output has left, as `head` does
        sys.stderr.close()
        return 0
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _complain(error: BaseException) -> None:
    print(f"grpo-gym: error: {' '.join(str(error).split())}", file=sys.stderr)


def _train(words: list[str], console: Console) -> int:
    """Train a model on an environment."""
    base = _base(TrainConfig, words)
    if "--resume" in words:
        folder = _value_of(words, "--run-dir")
        if folder is None:
            raise UsageError("--resume needs --run-dir, the folder of the run")
        from grpo_gym.runs import saved_config

        base = replace(saved_config(Path(folder)), run_dir=folder)
    config = _parse(TrainConfig, words, "train", base)
    from grpo_gym.api import run_training
    from grpo_gym.evaluation import print_table
    from grpo_gym.session import EnvironmentFailure
    from grpo_gym.sync import SyncError
    from grpo_gym.trainer import Interrupted

    try:
        run = run_training(config, console)
    except Interrupted as stop:
        print(f"grpo-gym: {stop}", file=sys.stderr)
        return 130
    except (EnvironmentFailure, SyncError) as error:
        _complain(error)
        return 1
    if len(run.evaluations) > 1:
        first, last = min(run.evaluations), max(run.evaluations)
        pair = {"before": run.evaluations[first], f"after step {last}": run.evaluations[last]}
        print_table(pair, console)
    lines = {"run": run.folder, "model": run.model, "metrics": run.metrics_path}
    lines["rollouts"] = run.folder / "rollouts"
    for name, path in lines.items():
        console.print(f"{name:9}{path}", highlight=False, soft_wrap=True)
    return 0


def _eval(words: list[str], console: Console) -> int:
    """Estimate pass@k of a model on an environment."""
    config = _parse(EvalConfig, words, "eval", _base(EvalConfig, words))
    from grpo_gym.api import run_evaluate
    from grpo_gym.evaluation import print_table
    from grpo_gym.session import EnvironmentFailure

    try:
        evaluation = run_evaluate(config, console)
    except EnvironmentFailure as error:
        _complain(error)
        return 1
    print_table({config.model: evaluation}, console)
    if config.out is not None:
        console.print(f"written to {config.out}", highlight=False, soft_wrap=True)
    return 0


def _rollout(words: list[str], console: Console) -> int:
    """Play episodes and show the conversations."""
    config = _parse(RolloutConfig, words, "rollout", _base(RolloutConfig, words))
    from grpo_gym.api import run_rollouts
    from grpo_gym.conversation import show
    from grpo_gym.session import EnvironmentFailure

    try:
        groups = run_rollouts(config)
    except EnvironmentFailure as error:
        _complain(error)
        return 1
    for group in groups:
        for rollout in group.rollouts:
            show(rollout, console)
    return 0


def _envs(words: list[str], console: Console) -> int:
    """List the environments."""
    _parse(_Nothing, words, "envs", _Nothing())
    from grpo_gym.registry import environments

    table = Table("id", "turns", "tools", "verifier", "tasks", "summary")
    for row in environments():
        cells = (row.id, row.turns, ", ".join(row.tools), row.verifier, row.source, row.summary)
        table.add_row(*map(escape, cells))
    console.print(table)
    return 0


def _tiny(words: list[str], console: Console) -> int:
    """Write the tiny policy as a model folder, or make it anew."""
    options = _parse(_TinyOptions, words, "tiny", _TinyOptions())
    if options.out is None:
        raise UsageError("say where to write the model: --out DIR")
    from grpo_gym import tiny

    folder = Path(options.out)
    if options.rebuild:
        from rich.progress import Progress

        with Progress(console=console) as bar:
            task = bar.add_task("warming up", total=tiny.STEPS)
            tiny.rebuild(
                folder,
                seed=options.seed,
                progress=lambda step, steps, loss: bar.update(
                    task, completed=step, total=steps, description=f"warming up, loss {loss:.3f}"
                ),
            )
    else:
        tiny.write(folder)
    console.print(f"written to {folder}", highlight=False, soft_wrap=True)
    return 0


@dataclass(frozen=True)
class _Nothing:
    """No options."""


@dataclass(frozen=True, kw_only=True)
class _TinyOptions:
    """The tiny policy that ships with the package."""

    out: str | None = None
    """Folder to write it to."""
    rebuild: bool = False
    """Train it anew from demonstrations instead of copying what ships."""
    seed: int = 0
    """Of the demonstrations and the weights."""


def _parse(kind: type[_Options], words: list[str], command: str, base: _Options) -> _Options:
    """The options of a command: `base`, changed by the words of the command line."""
    with _registry:
        return tyro.cli(
            kind,
            prog=f"grpo-gym {command}",
            args=_without(words, "--config"),
            default=base,
            config=(tyro.conf.UseAppendAction, tyro.conf.FlagCreatePairsOff),
        )


def _base(kind: Any, words: list[str]) -> Any:
    """The options that the command line starts from: those of --config FILE, if there is one."""
    path = _value_of(words, "--config")
    if path is None:
        return kind()
    return from_values(kind, load_toml(Path(path)), path)


def _value_of(words: list[str], option: str) -> str | None:
    for i, word in enumerate(words):
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
        if word == option:
            if i + 1 == len(words):
                raise UsageError(f"{option} needs a value")
            return words[i + 1]
    return None


def _without(words: list[str], option: str) -> list[str]:
    out: list[str] = []
    skip = False
    for word in words:
        if skip or word == option or word.startswith(f"{option}="):
            skip = word == option
            continue
        out.append(word)
    return out


def _print_help(console: Console) -> None:
    console.print(
        "usage: grpo-gym COMMAND [OPTIONS]   (grpo-gym COMMAND --help lists the options)\n"
    )
    for name, command in COMMANDS.items():
        console.print(f"  {name:8} {(command.__doc__ or '').splitlines()[0]}", highlight=False)
    console.print("\ntrain, eval and rollout also take --config FILE, a TOML file of options.")


COMMANDS: dict[str, Callable[[list[str], Console], int]] = {
    "train": _train,
    "eval": _eval,
    "rollout": _rollout,
    "envs": _envs,
    "tiny": _tiny,
}

__all__ = ["TaskOptions", "main"]


if __name__ == "__main__":
    sys.exit(main())
