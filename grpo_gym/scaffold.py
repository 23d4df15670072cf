"""A new plug-in package to begin from: one file with an environment, its test, a pyproject.toml."""

import importlib.util
import keyword
import re
import sys
from pathlib import Path
from string import Template

from grpo_gym.errors import UsageError

_PYPROJECT = """\
[build-system]
requires = ["hatchling>=1.27"]
build-backend = "hatchling.build"

[project]
name = "$project"
version = "0.1.0"
description = "An environment for grpo_gym."
requires-python = ">=3.11"
dependencies = ["grpo-gym"]

[project.optional-dependencies]
dev = ["pytest>=8"]

# This makes the environment known wherever the package is installed.
[project.entry-points."grpo_gym.envs"]
$module = "$module"

[tool.hatch.build.targets.wheel]
include = ["$module.py"]

[tool.pytest.ini_options]
pythonpath = ["."]
"""

_MODULE = '''\
"""$title: replace this line by the task in a sentence."""

import numpy as np
from grpo_gym import ProceduralTasks, Score, Task, TextEnv, register


class ${cls}Env(TextEnv):
    """Sort five letters; a wrong attempt may be repaired once."""

    max_turns = 2
    system_prompt = "Answer with the sorted letters alone."

    def default_tasks(self) -> ProceduralTasks:
        """Endless random letters: the task is a function of its seed."""

        def make(rng: np.random.Generator) -> tuple[str, str]:
            letters = "".join(rng.choice(list("abcdefghijklmnopqrstuvwxyz"), size=5, replace=False))
            return f"Sort the letters of {letters}.", "".join(sorted(letters))

        return ProceduralTasks(make)

    def respond(self, task: Task, action: str) -> Score | str:
        """A score ends the episode; a string is what the model reads next."""
        if action.strip() == task.answer:
            return Score(value=1.0, success=True)
        return "That is not it. Try again."

    def mistakes(self, task: Task, rng: np.random.Generator) -> tuple[str, ...]:
        """Answers that look right and are wrong, one per turn: the tests prove that they fail."""
        return (task.answer[::-1], "".join(rng.permutation(list(task.answer[:-1]))))


register(
    "$id",
    "$module:${cls}Env",
    turns="1-2",
    verifier="exact match",
    source="procedural",
    summary="Sort five letters.",
)
'''

_TEST = '''\
"""The environment keeps the contract, and does what it is for."""

import grpo_gym
from grpo_gym.testing import EnvContract

from $module import ${cls}Env


class Test${cls}KeepsTheContract(EnvContract):
    """See grpo_gym.testing for what is checked."""

    def make(self) -> ${cls}Env:
        return ${cls}Env()


def test_it_is_made_by_its_id() -> None:
    env = grpo_gym.make("$module:$id")
    assert isinstance(env.unwrapped, ${cls}Env)


def test_a_wrong_attempt_may_be_repaired() -> None:
    env = ${cls}Env()
    env.reset(seed=0)
    assert env.task is not None
    _, reward, terminated, _, _ = env.step("perhaps")
    assert (reward, terminated) == (0.0, False)
    _, reward, terminated, _, info = env.step(env.task.answer)
    assert (reward, terminated, info["success"]) == (1.0, True, True)
'''


def write_plugin(name: str, parent: Path) -> tuple[Path, ...]:
    """Write a plug-in package into a new folder below `parent`; return its files.

    Args:
        name: of the package, such as "word-sort": letters, digits, hyphens, underscores.
        parent: where the folder is made.

    Raises:
        UsageError: A name that cannot be one, that is taken, or a folder that is there already.
    """
    if re.fullmatch(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*", name) is None:
        raise UsageError(
            f"{name!r} cannot be the name of a package: write small letters, digits and hyphens, "
            "as in word-sort"
        )
    module = name.replace("-", "_")
    taken = module in sys.stdlib_module_names or importlib.util.find_spec(module) is not None
    if keyword.iskeyword(module) or taken:
        raise UsageError(f"{module!r} is the name of another Python module: choose another one")
    folder = parent / name
    words = re.split("[-_]", name)
    values = {
        "project": name,
        "module": module,
        "title": " ".join(words).capitalize(),
        "cls": (cls := "".join(word.capitalize() for word in words)),
        "id": f"{module}/{cls}-v0",
    }
    files = {
        folder / "pyproject.toml": _PYPROJECT,
        folder / f"{module}.py": _MODULE,
        folder / f"test_{module}.py": _TEST,
    }
    try:
        folder.mkdir(parents=True)
        for path, template in files.items():
            path.write_text(Template(template).substitute(values), encoding="utf-8")
    except FileExistsError as error:
        raise UsageError(f"{folder} is there already: choose another name, or remove it") from error
    except OSError as error:
        raise UsageError(f"cannot write {folder}: {error.strerror}") from error
    return tuple(files)
