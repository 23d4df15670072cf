"""Ids and names, and what is said of wrong ones."""

import os
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from grpo_gym import plugins, registry
from grpo_gym.errors import UsageError
from grpo_gym.testing import CopyEnv

ROOT = Path(__file__).parent.parent


def test_make_builds_what_is_registered() -> None:
    env = registry.make("grpo_gym/Copy-v0", words=("sun", "moon"), split="test")
    assert isinstance(env, CopyEnv)
    assert env.words == ("sun", "moon")
    assert env.spec is not None
    assert env.spec.id == "grpo_gym/Copy-v0"


def test_gymnasium_itself_makes_them_by_module() -> None:
    env = gymnasium.make("grpo_envs:grpo_gym/Copy-v0")
    assert isinstance(env.unwrapped, CopyEnv)
    assert isinstance(registry.make("grpo_envs:grpo_gym/Copy-v0"), CopyEnv)


def test_make_builds_a_class_by_its_place() -> None:
    env = registry.make("grpo_gym.testing.copy:CopyEnv", words=("sun",))
    assert isinstance(env, CopyEnv)


@pytest.mark.parametrize(
    ("id", "message"),
    [
        ("", "no environment ''"),
        ("grpo_gym/Copi-v0", "nearest: grpo_gym/Copy-v0"),
        ("copy", "nearest: grpo_gym/Copy-v0"),
        ("Arithmetics", "nearest: grpo_gym/Arithmetic-v0"),
        ("grpo_gym/Copy", "nearest: grpo_gym/Copy-v0"),
        ("grpo_gym/Copy-v99", "nearest: grpo_gym/Copy-v0"),
        ("nowhere/Copy-v0", "nearest: grpo_gym/Copy-v0"),
        ("zzzzzzzzzz", "^no environment 'zzzzzzzzzz'$"),
        ("no_such_module:Class", "cannot import 'no_such_module'"),
        ("no_such_module:ns/Name-v0", "cannot import 'no_such_module'"),
        ("grpo_gym.testing.copy:CopyEn", "no class CopyEn; nearest: CopyEnv"),
        ("grpo_gym.testing.copy:WORDS", "no class WORDS"),
        ("grpo_gym.rewards:Score", "Score"),
        (":Class", "no environment ':Class'"),
        ("a..b:Class", "cannot import"),
        (".relative:Class", "cannot import"),
    ],
)
def test_a_wrong_id_is_told_in_one_line(id: str, message: str) -> None:
    kwargs = {"value": 1, "success": True} if "Score" in id else {}
    with pytest.raises(UsageError, match=message) as caught:
        registry.make(id, **kwargs)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("id", ["grpo_gym/Copy-v0", "grpo_gym.testing.copy:CopyEnv"])
def test_an_unknown_argument_is_told_with_the_known_ones(id: str) -> None:
    with pytest.raises(UsageError, match=r"has no argument word; it takes words, tasks, split"):
        registry.make(id, word="sun")


@pytest.mark.parametrize(
    ("id", "kwargs", "message"),
    [
        ("grpo_gym/GSM8K-v0", {"path": 5}, "GSM8K-v0: path must be a path or none, not 5"),
        ("grpo_gym/Arithmetic-v0", {"level": "1"}, "level must be a whole number, not '1'"),
        ("grpo_gym/Arithmetic-v0", {"level": True}, "level must be a whole number, not True"),
        ("grpo_gym/Arithmetic-v0", {"system_prompt": 3}, "system_prompt must be text or none"),
        ("grpo_gym/Calculator-v0", {"call_seconds": "x"}, "call_seconds must be a number or none"),
        ("grpo_gym/Search-v0", {"hops": 2.0}, "hops must be a whole number"),
        ("grpo_gym/GSM8K-v0", {"path": "a\0b"}, "path must be a path or none"),
        ("grpo_gym/GSM8K-v0", {"path": "\ud800"}, "cannot be the name of a file"),
        ("grpo_gym/Copy-v0", {"words": 5}, "words must be a list of text, not 5"),
        ("grpo_gym/Copy-v0", {"words": "red"}, "words must be a list of text, not 'red'"),
        ("grpo_gym.testing.copy:CopyEnv", {"words": [5]}, r"words must be a list of text, not \[5"),
        ("grpo_gym/Calculator-v0", {"tools": 5}, "tools must be a list, not 5"),
        (
            "grpo_gym/Calculator-v0",
            {"tools": ["add"]},
            r"tools is a list of functions marked @tool",
        ),
        ("grpo_gym/GymToText-v0", {"describe": "x"}, "describe must be a function or none"),
        ("grpo_gym/GymToText-v0", {"env_kwargs": 3}, "env_kwargs must be a table or none"),
        ("builtins:dict", {"tools": 5}, "is a dict, not a gymnasium.Env"),
        ("grpo_gym/Copy-v0", {"max_turns": "3"}, "max_turns must be a whole number"),
        ("grpo_gym/Calculator-v0", {"max_calls": 0}, "max_calls must be a whole number"),
    ],
)
def test_an_argument_of_the_wrong_type_is_told(
    id: str, kwargs: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        registry.make(id, **kwargs)


def test_numbers_of_numpy_are_numbers_and_none_is_the_default() -> None:
    arguments: dict[str, Any] = {"call_seconds": np.float32(1), "system_prompt": None}
    env = registry.make("grpo_gym/Calculator-v0", level=np.int32(1), **arguments)
    env.close()


def test_a_mistake_found_by_the_environment_stays_a_usage_error() -> None:
    with pytest.raises(UsageError, match="level"):
        registry.make("grpo_gym/Arithmetic-v0", level=9)


def test_the_catalogue_lists_what_can_be_made() -> None:
    rows = registry.environments()
    assert [row.id for row in rows] == sorted(row.id for row in rows)
    assert {"grpo_gym/Arithmetic-v0", "grpo_gym/Calculator-v0"} <= {row.id for row in rows}
    for row in rows:
        assert row.id in gymnasium.registry
        assert row.summary
        assert row.source
        assert row.verifier


def test_an_id_is_registered_once() -> None:
    registry.register("test_registry/Copy-v0", CopyEnv, summary="first")
    registry.register("test_registry/Copy-v0", CopyEnv, summary="second")
    with pytest.raises(UsageError, match="registered already"):
        registry.register("test_registry/Copy-v0", "grpo_gym.env:TextEnv")
    gymnasium.registry.pop("test_registry/Copy-v0")
    assert registry._CATALOGUE.pop("test_registry/Copy-v0").summary == "second"


def point(value: str, name: str = "theirs") -> EntryPoint:
    return EntryPoint(name=name, value=value, group="grpo_gym.envs")


def load(monkeypatch: pytest.MonkeyPatch, *points: EntryPoint) -> tuple[Any, ...]:
    monkeypatch.setattr(plugins, "entry_points", lambda group: list(points))
    return plugins.plugins.__wrapped__("grpo_gym.envs", "grpo_envs")


def test_a_broken_plugin_warns_and_does_not_take_others_along(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "broken_plugin.py").write_text("1 / 0")
    (tmp_path / "sound_plugin.py").write_text("sound = True")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.warns(UserWarning, match=r"'theirs'.*broken_plugin.*ZeroDivisionError"):
        modules = load(monkeypatch, point("broken_plugin"), point("sound_plugin", "ours"))
    assert [module.__name__ for module in modules] == ["grpo_envs", "sound_plugin"]


def test_a_plugin_that_is_gone_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.warns(UserWarning, match="no_such_plugin"):
        load(monkeypatch, point("no_such_plugin"))


def test_the_builtin_environments_are_found_without_an_installation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert [module.__name__ for module in load(monkeypatch)] == ["grpo_envs"]


def test_a_bare_checkout_needs_no_path_but_its_own() -> None:
    code = (
        "import grpo_gym; "
        "assert grpo_gym.make('grpo_gym/Copy-v0').max_turns == 1; "
        "assert 'grpo' in grpo_gym.agents()"
    )
    subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        timeout=60,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )


def test_environments_are_loaded_lazily() -> None:
    code = (
        "import sys, grpo_gym.registry as r; assert 'grpo_envs' not in sys.modules; "
        "r.environments(); assert 'grpo_envs' in sys.modules; "
        "assert 'grpo_envs.math.arithmetic' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


class FakeModule:
    """Stands for a plug-in of agents."""

    __name__ = "fake"
    AGENTS = {"grpo": lambda clip_low=0.2: ("grpo", clip_low), "gspo": lambda: ("gspo",)}  # noqa: RUF012


def test_a_plugin_without_agents_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "plugins", lambda group, builtin: (pytest, FakeModule))
    with pytest.warns(UserWarning, match="plug-in pytest has no mapping AGENTS"):
        assert list(registry.agents()) == ["grpo", "gspo"]


def test_agents_are_made_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "plugins", lambda group, builtin: (FakeModule,))
    assert list(registry.agents()) == ["grpo", "gspo"]
    made: Any = registry.make_agent("grpo", clip_low=0.1)
    assert made == ("grpo", 0.1)
    with pytest.raises(UsageError, match=r"no agent 'gropo'; nearest: grpo"):
        registry.make_agent("gropo")
    with pytest.raises(UsageError, match=r"agent grpo has no argument clip; it takes clip_low"):
        registry.make_agent("grpo", clip=0.1)
    with pytest.raises(UsageError, match=r"agent gspo has no argument clip; it takes none"):
        registry.make_agent("gspo", clip=0.1)


def test_an_id_is_text() -> None:
    with pytest.raises(UsageError, match="named by a text, not 3"):
        registry.make(3)  # type: ignore[arg-type]


def test_a_hyper_parameter_of_the_wrong_type_is_told() -> None:
    with pytest.raises(UsageError, match=r"agent dapo: clip_low must be a number, not '0.2'"):
        registry.make_agent("dapo", clip_low="0.2")
    assert registry.make_agent("dapo", clip_low=0) == registry.make_agent("dapo", clip_low=0.0)


def test_what_an_environment_raises_is_told_in_a_line_with_its_place() -> None:
    def raising(error: BaseException) -> Any:
        def raise_it(*arguments: Any) -> Any:
            raise error

        return raise_it

    def closing_badly() -> Any:
        env = registry.make("grpo_gym/Copy-v0")
        env.close = raising(OSError("in\nuse"))  # type: ignore[method-assign]
        return env

    for error in (KeyError("x"), SystemExit(0), MemoryError(), RecursionError("deep")):
        with (
            pytest.raises(
                UsageError, match=r"'m:E' cannot be made: \w+.*\(test_registry.py:\d+\)$"
            ),
            registry.tried(raising(error), "m:E"),
        ):
            pass
    with (
        pytest.raises(UsageError, match="'m:E' cannot be closed: OSError: in use"),
        registry.tried(closing_badly, "m:E"),
    ):
        pass
    with pytest.raises(KeyboardInterrupt), registry.tried(raising(KeyboardInterrupt()), "m:E"):
        pass
