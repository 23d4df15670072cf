"""Agents as text: what a paper says, how two differ, and the table of all."""

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from typing import Any

from grpo_gym.agent import Agent

Make = Callable[..., Agent]


@dataclass(frozen=True)
class Paper:
    """Where an agent is from: full title, year, arXiv id."""

    title: str
    year: int
    arxiv: str


def paper(function: Make) -> Paper:
    """The paper that an agent's docstring cites, as "Title (year), arXiv id".

    Raises:
        ValueError: It cites none.
    """
    text = " ".join(_body(function).split())
    found = re.match(r"(?P<title>.+?) \((?P<year>\d{4})\), arXiv (?P<id>\d{4}\.\d{5})", text)
    if found is None:
        raise ValueError(f"the docstring of {function.__name__} cites no paper")
    return Paper(found["title"], int(found["year"]), found["id"])


def _body(function: Make) -> str:
    """A docstring without its summary and without the section on arguments."""
    document = inspect.getdoc(function) or ""
    return document.partition("\n\n")[2].partition("\nArgs:")[0].strip()


def summary(function: Make) -> str:
    """The first line of an agent's docstring."""
    return (inspect.getdoc(function) or "").partition("\n")[0]


def defaults(function: Make) -> dict[str, Any]:
    """An agent's hyper-parameters with their defaults."""
    return {name: p.default for name, p in inspect.signature(function).parameters.items()}


def short(value: Any) -> str:
    """A stage, or a tuple of stages, with the fields alone that are not at their default."""
    if isinstance(value, tuple):
        return ", ".join(map(short, value)) or "none"
    if not is_dataclass(value) or isinstance(value, type):
        return repr(value)
    changed = [
        f"{f.name}={short(getattr(value, f.name))}"
        for f in fields(value)
        if getattr(value, f.name) != _default(f)
    ]
    return f"{type(value).__name__}({', '.join(changed)})" if changed else type(value).__name__


def _default(field: Field[Any]) -> Any:
    if field.default_factory is not MISSING:
        return field.default_factory()
    return field.default


def describe(function: Make) -> str:
    """Everything about one agent: summary, paper, equation, hyper-parameters, stages."""
    name, agent = function.__name__, function()
    arguments = [f"  {key} = {value!r}" for key, value in defaults(function).items()]
    stages = [f"  {key}: {text}" for key, text in _stages(agent).items()]
    return "\n".join(
        [
            f"{name}: {summary(function)}",
            "",
            _body(function),
            "",
            "Hyper-parameters:",
            *(arguments or ["  none"]),
            "",
            "Stages:",
            *stages,
        ]
    )


def _stages(agent: Agent) -> dict[str, str]:
    """Field -> its value as text; fields at their default are left out."""
    return {
        f.name: short(getattr(agent, f.name))
        for f in fields(agent)
        if getattr(agent, f.name) != _default(f)
    }


def diff(a: Agent, b: Agent, names: tuple[str, str] = ("a", "b")) -> str:
    """How two agents differ: one line per field, with both values in full."""
    lines = [
        f"{f.name}:\n  {names[0]}: {getattr(a, f.name)!r}\n  {names[1]}: {getattr(b, f.name)!r}"
        for f in fields(Agent)
        if getattr(a, f.name) != getattr(b, f.name)
    ]
    return "\n".join(lines) if lines else f"{names[0]} and {names[1]} are the same agent"


_COLUMNS = ("advantage", "ratio", "trust_region", "aggregation")


def table(agents: Mapping[str, Make]) -> str:
    """The literature as a Markdown table, one row per agent, oldest paper first."""
    titles = ("agent", "paper", *(name.replace("_", " ") for name in _COLUMNS), "also", "defaults")
    lines = [_row(titles), _row(["---"] * len(titles))]
    for name in sorted(agents, key=lambda name: (_order(paper(agents[name]).arxiv), name)):
        function, agent = agents[name], agents[name]()
        cited = paper(function)
        link = f"{cited.title} ({cited.year}), [{cited.arxiv}](https://arxiv.org/abs/{cited.arxiv})"
        stages = [short(getattr(agent, column)) for column in _COLUMNS]
        also = [f"{k}: {v}" for k, v in _stages(agent).items() if k not in _COLUMNS]
        arguments = [f"{key}={value!r}" for key, value in defaults(function).items()]
        code = [f"`{name}`", link, *(f"`{s}`" for s in stages)]
        lines.append(_row([*code, _code(also), _code(arguments)]))
    return "\n".join(lines) + "\n"


def _order(arxiv: str) -> float:
    return float(arxiv)


def _code(items: list[str]) -> str:
    return ", ".join(f"`{item}`" for item in items)


def _row(cells: Any) -> str:
    return f"| {' | '.join(cells)} |"


def readme(agents: Mapping[str, Make]) -> str:
    """The text of agents/README.md."""
    return f"""# The literature

One paper, one file, one function in `grpo_agents/`. A stage is shown with the settings that are not its
own default; `grpo-gym agents show NAME` prints the equation, `grpo-gym agents diff A B` how two differ,
and `recipes/NAME.toml` holds the settings of the paper. Which failure each one answers, and how to add
one, stands in `docs/variants.md`.

{table(agents)}
This file is written by `python -m grpo_agents > agents/README.md`; a test fails when it is stale.
"""
