"""The literature as values: one paper, one file; records, texts, recipes, and how to add one."""

import ast
import inspect
import pickle
import re
import runpy
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

import grpo_agents
from grpo_agents import AGENTS, dapo, dr_grpo, grpo, recipe_files
from grpo_gym import objectives
from grpo_gym.agent import Agent
from grpo_gym.config import TrainConfig, from_values, load_toml, parse_arguments
from grpo_gym.errors import UsageError
from grpo_gym.literature import describe, diff, paper, readme, short, summary, table
from grpo_gym.objectives.corrections import TIS
from grpo_gym.objectives.penalties import KL
from grpo_gym.registry import agents, make_agent
from tests.agent_batches import make as example_batch

ROOT = Path(__file__).parents[1]
AGENTS_DIR = Path(inspect.getfile(grpo_agents)).parent
every = pytest.mark.parametrize("name", AGENTS)


def needs(path: str) -> pytest.MarkDecorator:
    """The built package does not hold everything that a checkout does."""
    return pytest.mark.skipif(not (ROOT / path).exists(), reason=f"no {path} here")


def test_the_whole_family_is_there() -> None:
    assert set(AGENTS) >= {
        *("grpo", "dr_grpo", "dapo", "gspo", "gspo_token", "two_grpo", "sapo", "vespo", "dppo"),
        *("cispo", "scalerl", "gdpo", "gopo", "rloo", "reinforce_pp", "reinforce_pp_baseline"),
        *("luspo", "gmpo", "ppo"),
    }
    assert set(agents()) >= set(AGENTS)


@every
def test_a_file_has_one_function_of_its_name_and_only_composes(name: str) -> None:
    tree = ast.parse((AGENTS_DIR / f"{name}.py").read_text())
    public = [
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
    ]
    assert public == [name]
    for node in ast.walk(tree):
        assert not isinstance(node, ast.If | ast.IfExp | ast.For | ast.While), ast.dump(node)
        if isinstance(node, ast.Import):
            assert not any(alias.name == "torch" for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            assert (node.module or "").split(".")[0] in ("grpo_gym", "typing", "collections")


@every
def test_a_docstring_gives_paper_equation_and_every_argument(name: str) -> None:
    function = AGENTS[name]
    document = inspect.getdoc(function) or ""
    assert paper(function).year >= 2017
    assert "iffers from the" in document
    assert "L = " in document
    for argument in inspect.signature(function).parameters:
        assert re.search(rf"^    {argument}: ", document, re.M), f"{name}: {argument}"


@every
def test_an_agent_is_a_value(name: str) -> None:
    agent, again = AGENTS[name](), AGENTS[name]()
    assert agent == again
    assert hash(agent) == hash(again)
    assert pickle.loads(pickle.dumps(agent)) == agent
    assert replace(agent, max_nan_fraction=0.5) != agent
    assert eval(repr(agent), _stage_classes()) == agent  # our own text


def _stage_classes() -> dict[str, Any]:
    modules = [m for n, m in sys.modules.items() if n.startswith(objectives.__name__ + ".")]
    return {k: v for module in modules for k, v in vars(module).items()} | {"Agent": Agent}


def test_no_two_papers_are_the_same_agent() -> None:
    made = [make() for make in AGENTS.values()]
    assert len(set(made)) == len(made)


def test_a_new_paper_is_a_replacement() -> None:
    corrected = replace(grpo(), corrections=(TIS(2.0),))
    assert corrected.needs.behaviour
    assert not grpo().needs.behaviour
    assert replace(corrected, corrections=()) == grpo()


def test_type_checkers_see_what_discovery_finds() -> None:
    text = (AGENTS_DIR / "__init__.py").read_text()
    seen = re.findall(r"^    from grpo_agents\.(\w+) import (\w+) as (\w+)$", text, re.M)
    assert seen == [(name, name, name) for name in sorted(AGENTS)]


# Mistakes.


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: grpo(std_ddof=2), "ddof=2 is not an option"),
        (lambda: grpo(kl=0.1, kl_kind="k9"), "'k9' is not an option; use one of 'k1'"),  # type: ignore[arg-type]
        (lambda: grpo(dual_clip=1.0), "dual clip 1.0 must be above"),
        (lambda: grpo(clip_low=-1.0), "clip range low=-1.0 is out of range"),
        (lambda: grpo(adv_eps=float("nan")), "eps=nan is out of range"),
        (lambda: dr_grpo(budget=0), "length must be at least 1"),
        (lambda: dapo(loss_agg="mean"), "loss_agg='mean' is not an option"),  # type: ignore[arg-type]
        (lambda: dapo(max_tokens=10), "max_tokens=10 is out of range"),
        (lambda: replace(grpo(), corrections=TIS()), "corrections is a tuple"),  # type: ignore[arg-type]
        (lambda: replace(grpo(), penalties=(TIS(),)), "penalties takes a Penalty stage"),  # type: ignore[arg-type]
        (lambda: replace(grpo(), max_rounds=0), "max_rounds=0 is out of range"),
        (lambda: replace(grpo(), exhausted="stop"), "exhausted='stop' is not an option"),  # type: ignore[arg-type]
    ],
)
def test_a_mistake_is_one_line(make: Callable[[], Agent], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)) as caught:
        make()
    assert "\n" not in str(caught.value)


# Texts.


def test_stages_are_shown_without_their_defaults() -> None:
    assert short(grpo().trust_region) == "Clip"
    assert short(dapo().trust_region) == "Clip(high=0.28)"
    assert short((KL(0.1), KL(0.2, "k1"))) == "KL(coefficient=0.1), KL(coefficient=0.2, kind='k1')"
    assert short(()) == "none"


def test_describe_has_equation_citation_and_defaults() -> None:
    text = describe(dapo)
    for part in ("arXiv 2503.14476", "L = 1 / (sum_i |o_i|)", "clip_high = 0.28", "TokenMean"):
        assert part in text
    assert "Args:" not in text


def test_diff_names_the_fields_that_differ_and_no_others() -> None:
    text = diff(grpo(), dapo(filter_zero_variance="none"), ("grpo", "dapo"))
    assert [line for line in text.splitlines() if not line.startswith(" ")] == [
        "trust_region:",
        "aggregation:",
    ]
    assert "dapo: TokenMean()" in text
    assert diff(grpo(), grpo()) == "a and b are the same agent"


def test_the_table_has_a_row_for_every_agent() -> None:
    rows = table(AGENTS).splitlines()
    assert len(rows) == 2 + len(AGENTS)
    assert len({row.count(" | ") for row in rows}) == 1
    for name, make in AGENTS.items():
        (row,) = [row for row in rows if row.startswith(f"| `{name}` |")]
        assert paper(make).arxiv in row


@needs("agents/README.md")
def test_the_readme_is_fresh() -> None:
    text = (ROOT / "agents" / "README.md").read_text(encoding="utf-8")
    assert text == readme(AGENTS), "run: python -m grpo_agents > agents/README.md"


# Recipes.


def test_every_agent_has_a_recipe() -> None:
    assert set(recipe_files()) == set(AGENTS)


@every
def test_a_recipe_is_a_training_config(name: str) -> None:
    path = recipe_files()[name]
    assert re.search(r"^# .*arXiv \d{4}\.\d{5}", path.read_text(), re.M)
    config = from_values(TrainConfig, load_toml(path), str(path))
    agent = make_agent(config.agent, **parse_arguments(config.agent_arg, "agent_arg"))
    assert config.agent == name
    agent.check(config.group_size)
    if name == "dr_grpo":
        assert agent == dr_grpo(budget=config.max_tokens)


# The page about them.


def blocks(page: str) -> list[str]:
    path = ROOT / page
    return re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), re.S)


@needs("docs/variants.md")
def test_the_examples_of_the_page_run() -> None:
    made = []
    for code in blocks("docs/variants.md"):
        scope: dict[str, Any] = {"__name__": "page"}
        exec(compile(code, "docs/variants.md", "exec"), scope)  # our own documentation
        made += [value for value in scope.values() if isinstance(value, Agent)]
    assert len(made) >= 2


@pytest.mark.parametrize("page", ["docs/variants.md", "CONTRIBUTING.md"])
def test_a_variant_is_added_in_twenty_lines(page: str) -> None:
    if not (ROOT / page).exists() or "Add a variant in 20 lines" not in (ROOT / page).read_text():
        pytest.skip(f"{page} does not show how")
    code = next(code for code in blocks(page) if re.search(r"^def \w+.*-> Agent:", code, re.M))
    assert len(code.splitlines()) <= 20
    scope: dict[str, Any] = {"__name__": "page"}
    exec(compile(code, page, "exec"), scope)  # our own documentation
    (function,) = [v for v in scope.values() if getattr(v, "__module__", "") == "page"]
    agent = function()
    agent.check(8)
    batch = example_batch([[0.0, 1.0], [0.5, 1.0]], 4, 0)
    credit = agent.credit(batch.signals)
    assert batch.loss(agent, credit).isfinite()


@needs("docs/variants.md")
def test_the_figure_is_drawn_by_the_trust_regions_as_they_are() -> None:
    scope = runpy.run_path(str(ROOT / "docs" / "variants_figure.py"))
    saved = (ROOT / "docs" / "variants.svg").read_text(encoding="utf-8")
    number = r"-?\d+(?:\.\d+)?"
    assert re.sub(number, "", saved) == re.sub(number, "", scope["svg"]())
    found, expected = (
        [float(x) for x in re.findall(number, text)] for text in (saved, scope["svg"]())
    )
    assert found == pytest.approx(expected, abs=0.2), "run: python docs/variants_figure.py"
    for _, region in scope["REGIONS"].values():
        for advantage in (1.0, -1.0):
            weight = scope["gradient_weight"](region, 1.0, advantage)
            assert weight == pytest.approx(1.0)  # on policy, each is the policy gradient


def test_every_field_of_an_agent_is_documented() -> None:
    document = inspect.getdoc(Agent) or ""
    for field in fields(Agent):
        assert re.search(rf"^    {field.name}: ", document, re.M), field.name


def test_summaries_are_one_sentence() -> None:
    for make in AGENTS.values():
        assert summary(make).endswith(".")
