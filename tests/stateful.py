"""Cases of our own over the back ends of `bfcl-eval`, and what its tests share."""

import importlib
import importlib.util
from collections.abc import Mapping
from typing import Any

import pytest

from grpo_envs.tools.stateful import StatefulToolsEnv
from grpo_envs.tools.stateful_cases import (
    Case,
    read_call,
)
from grpo_gym.tasks import ListTasks, Task
from grpo_gym.tools import Call

installed = importlib.util.find_spec("bfcl_eval") is not None
needs_bfcl = pytest.mark.skipif(not installed, reason="pip install --no-deps bfcl-eval")

FILES = {
    "root": {
        "home": {
            "type": "directory",
            "contents": {
                "a.txt": {"type": "file", "content": "one\ntwo"},
                "docs": {"type": "directory", "contents": {}},
            },
        }
    }
}


def case(
    *turns: tuple[str, ...],
    classes: tuple[str, ...] = ("GorillaFileSystem", "MathAPI"),
    late: Mapping[int, tuple[str, ...]] | None = None,
    excluded: tuple[str, ...] = (),
) -> Case:
    truth = tuple(tuple(map(read_call, turn)) for turn in turns)
    requests = tuple(f"Request {number}." for number in range(len(turns)))
    config = {"GorillaFileSystem": FILES}
    return Case("own_0", "base", requests, truth, classes, config, late or {}, excluded)


def playing(found: Case, **kwargs: Any) -> StatefulToolsEnv:
    tasks = ListTasks([Task(found.case_id, found.requests[0], "", metadata={"case": found})])
    env = StatefulToolsEnv(tasks=tasks, **kwargs)
    env.reset(seed=0)
    return env


def calls(env: StatefulToolsEnv, *texts: str) -> str:
    """An action of calls written as Python."""
    found = [read_call(text) for text in texts]
    return "\n".join(env.codec.render(Call(call.name, dict(call.kwargs))) for call in found)
