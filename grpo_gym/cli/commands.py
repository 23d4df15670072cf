"""The commands: words and where to write in, exit status out. The first line of each is its help."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.box import SIMPLE
from rich.markup import escape
from rich.table import Column, Table

from grpo_gym.cli.options import Config, parse, parse_config
from grpo_gym.cli.output import Output
from grpo_gym.cli.serve import serve
from grpo_gym.config import EvalConfig, RolloutConfig, Texts, TrainConfig, parse_arguments
from grpo_gym.errors import UsageError
from grpo_gym.launch import launched


def train(words: list[str], output: Output) -> int:
    """Train a model on an environment."""
    return _shared("train", TrainConfig, words, output)


def evaluate(words: list[str], output: Output) -> int:
    """Estimate pass@k of a model on an environment."""
    return _shared("eval", EvalConfig, words, output)


def rollout(words: list[str], output: Output) -> int:
    """Play episodes and show the conversations."""
    return _shared("rollout", RolloutConfig, words, output)


def _shared(
    name: str,
    kind: type[Config],
    words: list[str],
    output: Output,
) -> int:
    if launched() == (0, 1):
        parse_config(kind, words, name)  # help and mistakes need no heavy imports
    from grpo_gym.cli.jobs import run_together

    return run_together(name, words, output)


def envs(words: list[str], output: Output) -> int:
    """List the environments."""
    parse(_Nothing, words, "envs")
    from grpo_gym.registry import environments

    table = Table(Column("id", no_wrap=True), Column("turns", no_wrap=True), "summary", box=SIMPLE)
    for row in environments():
        tools = f" Tools: {', '.join(row.tools)}." if row.tools else ""
        table.add_row(*map(escape, (row.id, row.turns, row.summary + tools)))
    output.print(table)
    return 0


def agents(words: list[str], output: Output) -> int:
    """List the agents; `agents show NAME` explains one, `agents diff A B` compares two."""
    options = parse(_AgentsOptions, words, "agents")
    from grpo_gym.literature import describe, diff, paper, summary
    from grpo_gym.registry import agents as known
    from grpo_gym.registry import make_agent

    names, makers = options.names, known()
    for name in names:
        make_agent(name)  # refuses an unknown one
    if options.action == "show" and len(names) == 1:
        output.say(describe(makers[names[0]]))
    elif options.action == "diff" and len(names) == 2:
        one, two = names
        output.say(diff(make_agent(one), make_agent(two), (one, two)))
    elif options.action == "list" and not names:
        table = Table("agent", "year", "arXiv", "summary")
        for name, make in makers.items():
            cited = paper(make)
            table.add_row(name, str(cited.year), cited.arxiv, escape(summary(make)))
        output.print(table)
    else:
        raise UsageError("say: agents, agents show NAME, or agents diff A B")
    return 0


def check(words: list[str], output: Output) -> int:
    """Check an environment against the contract, and measure it."""
    options = parse(_CheckOptions, words, "check")
    from functools import partial

    from grpo_gym.policy import load_tokenizer
    from grpo_gym.registry import make, tried
    from grpo_gym.testing import check_environment, measure_environment
    from grpo_gym.wrappers import count_tokens

    arguments = parse_arguments(options.env_arg, f"argument of {options.env}")
    build, seeds = partial(make, options.env, **arguments), range(options.tasks)
    with tried(build, options.env):
        pass
    count = None if options.model is None else partial(count_tokens, load_tokenizer(options.model))
    report = check_environment(build, seeds)
    output.say(str(report))
    if report.ok:  # what breaks the contract cannot always be played
        unit = ("characters", len) if count is None else ("tokens", count)
        output.say(f"\n{measure_environment(build, seeds, unit[1], unit[0])}\n")
    output.say(f"{options.env} {'keeps' if report.ok else 'breaks'} the contract")
    return 0 if report.ok else 1


def init_env(words: list[str], output: Output) -> int:
    """Write a plug-in package with a new environment to begin from."""
    options = parse(_InitEnvOptions, words, "init-env")
    from grpo_gym.scaffold import write_plugin

    files = write_plugin(options.name, Path(options.folder))
    for path in files:
        output.say(f"written {path}")
    output.say(f"\nnext: cd {files[0].parent} && pip install -e . && pytest && grpo-gym envs")
    return 0


def tiny(words: list[str], output: Output) -> int:
    """Write the tiny policy as a model folder, or make it anew."""
    options = parse(_TinyOptions, words, "tiny")
    if options.out is None:
        raise UsageError("say where to write the model: --out DIR")
    folder = Path(options.out)
    from rich.progress import Progress

    from grpo_gym import tiny

    if options.rebuild:
        with Progress(console=output) as bar:
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
    output.say(f"written to {folder}")
    return 0


def merge(words: list[str], output: Output) -> int:
    """Write the model of a run that trained an adapter, with the adapter in its weights."""
    options = parse(_MergeOptions, words, "merge")
    from grpo_gym.adapting import merge_into_folder

    merge_into_folder(Path(options.source), Path(options.out))
    output.say(f"written to {options.out}")
    return 0


@dataclass(frozen=True)
class _Nothing:
    """List the environments."""


@dataclass(frozen=True)
class _AgentsOptions:
    """List the agents, explain one, or compare two."""

    action: Annotated[str, tyro.conf.Positional] = "list"
    """list, show or diff."""
    names: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """One name after show, two after diff."""


@dataclass(frozen=True, kw_only=True)
class _CheckOptions:
    """Check an environment against the contract, and measure it."""

    env: Annotated[str, tyro.conf.Positional]
    """Environment: a registered id, or module:Class."""
    env_arg: Texts = ()
    """Arguments of the environment, as name=value."""
    tasks: int = 8
    """How many tasks each check plays."""
    model: str | None = None
    """Count lengths in this model's tokens: tiny, a folder, or an id on the hub."""

    def __post_init__(self) -> None:
        if self.tasks < 1:
            raise UsageError(f"tasks is {self.tasks}, but must be at least 1")


@dataclass(frozen=True, kw_only=True)
class _InitEnvOptions:
    """Write a plug-in package: a file with an environment, its test, and a pyproject.toml."""

    name: Annotated[str, tyro.conf.Positional]
    """Of the package, as in word-sort."""
    folder: str = "."
    """Where its folder is made."""


@dataclass(frozen=True, kw_only=True)
class _TinyOptions:
    """Write the tiny policy that ships with the package, or make it anew."""

    out: str | None = None
    """Folder to write it to."""
    rebuild: bool = False
    """Train it anew from demonstrations instead of copying what ships."""
    seed: int = 0
    """Of the demonstrations and the weights."""

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise UsageError(f"seed is {self.seed}, but must be at least 0")


@dataclass(frozen=True)
class _MergeOptions:
    """Write the model of a run that trained an adapter, with the adapter in its weights."""

    source: Annotated[str, tyro.conf.Positional]
    """Folder of the run, or of an adapter."""
    out: Annotated[str, tyro.conf.Positional]
    """Folder to write the model to; it must not be there yet."""


COMMANDS: dict[str, Callable[[list[str], Output], int]] = {
    "train": train,
    "eval": evaluate,
    "rollout": rollout,
    "serve": serve,
    "envs": envs,
    "agents": agents,
    "check": check,
    "init-env": init_env,
    "tiny": tiny,
    "merge": merge,
}
"""Name to command."""

SHARED = ("train", "eval", "rollout")
"""Those that all processes of a launch share; the others the first process does alone."""
