"""Conversations with stateful back ends: how they go, and what a model may do."""

import decimal
import math
import time
from typing import Any

import mpmath
import pytest

from grpo_envs.tools.stateful import StatefulToolsEnv
from grpo_envs.tools.stateful_backends import Backends, make_tools
from grpo_envs.tools.stateful_cases import (
    load_cases,
    read_call,
)
from grpo_gym.errors import UsageError
from grpo_gym.tasks import ListTasks, Task
from grpo_gym.tools import XMLCodec
from tests.stateful import calls, case, installed, needs_bfcl, playing


def told(env: StatefulToolsEnv, *texts: str) -> list[str]:
    observation, *_ = env.step(calls(env, *texts))
    return [str(message["content"]) for message in observation]


# How a conversation goes


@needs_bfcl
def test_requests_come_one_after_another() -> None:
    env = playing(case(("pwd()",), ("mkdir(dir_name='new')", "ls()")))
    assert told(env, "pwd()") == ['{"current_working_directory": "/home"}']
    observation, reward, terminated, _, _ = env.step("Here you are.")
    assert observation == ({"role": "user", "content": "Request 1."},)
    assert (reward, terminated) == (0.0, False)
    assert told(env, "mkdir(dir_name='new')")[0] == "None"
    assert "new" in told(env, "ls()")[0]
    observation, reward, terminated, _, info = env.step("It is done.")
    assert (observation, reward, terminated, info["success"]) == ((), 1.0, True, True)
    assert info["reward_components"] == {"turns": 1.0, "state": 1.0, "calls": 1.0}


@needs_bfcl
def test_calls_that_change_nothing_do_no_harm_and_the_order_does_not_matter() -> None:
    env = playing(case(("pwd()", "mkdir(dir_name='new')")))
    told(env, "ls()", "mkdir(dir_name='new')", "pwd()", "cat(file_name='nothing')")
    assert env.step("Done.")[4]["success"] is True


@needs_bfcl
@pytest.mark.parametrize(
    ("made", "state", "results"),
    [
        ((), 0.0, 0.0),
        (("mkdir(dir_name='new')",), 1.0, 0.0),
        (("pwd()",), 0.0, 0.0),
        (("mkdir(dir_name='new')", "pwd()", "touch(file_name='more')"), 0.0, 1.0),
        (("mkdir(dir_name='other')", "pwd()"), 0.0, 1.0),
    ],
)
def test_the_first_request_that_is_not_met_ends_the_episode(
    made: tuple[str, ...], state: float, results: float
) -> None:
    env = playing(case(("mkdir(dir_name='new')", "pwd()"), ("ls()",)))
    if made:
        told(env, *made)
    _, reward, terminated, _, info = env.step("Done.")
    assert (reward, terminated, info["success"]) == (0.0, True, False)
    assert info["reward_components"] == {"turns": 0.0, "state": state, "calls": results}


@needs_bfcl
def test_where_nothing_can_be_done_doing_nothing_is_right() -> None:
    env = playing(case((), ("pwd()",)))
    assert env.step("Which folder?")[0][0]["content"] == "Request 1."
    told(env, "pwd()")
    assert env.step("There.")[4]["success"] is True
    env = playing(case((), ("pwd()",)))
    told(env, "mkdir(dir_name='new')")
    env.step("Done.")
    told(env, "pwd()")
    assert env.step("There.")[4]["success"] is False


@needs_bfcl
def test_a_tool_that_comes_late_is_not_there_before() -> None:
    found = case((), ("pwd()",), late={1: ("pwd",)}, excluded=("cp",))
    env = playing(found)
    first = str(env.conversation[0]["content"])
    assert '"ls"' in first
    assert '"pwd"' not in first
    assert '"cp"' not in first
    assert told(env, "pwd()")[0].startswith("Error: no tool of that name")
    (message,) = env.step("I cannot.")[0]
    assert message["role"] == "user"
    assert '"pwd"' in message["content"]
    told(env, "pwd()")
    assert env.step("Done.")[4]["success"] is True


@needs_bfcl
def test_a_case_that_takes_a_late_tool_early_has_no_solution() -> None:
    found = case(("pwd()",), ("ls()",), late={1: ("pwd",)})
    env = playing(found)
    assert env.task is not None
    assert not found.is_solvable
    assert env.solution(env.task) == ()


@needs_bfcl
def test_a_solution_may_pass_arguments_by_position_and_any_codec_writes_it() -> None:
    found = case(("mkdir('new')", "add(1.5, b=2)"))
    for codec in ("hermes", "openai", "python", "xml"):
        env = playing(found, codec=codec)
        assert env.task is not None
        *_, last = [env.step(action) for action in env.solution(env.task)]
        assert last[4]["success"] is True


@needs_bfcl
def test_schemas_are_json_schemas() -> None:
    for classes in (load_cases("base")[0].classes, ("MathAPI", "TradingBot", "TravelAPI")):
        for name, tool in make_tools(case(classes=classes), lambda *a, **k: "").items():
            assert tool.name == name
            assert tool.description
            parameters = tool.schema["function"]["parameters"]
            assert parameters["type"] == "object"
            kinds = {rule["type"] for rule in parameters["properties"].values()}
            assert kinds <= {"string", "number", "integer", "boolean", "array", "object"}
    assert "mean" in XMLCodec().instructions(tuple(make_tools(case(), lambda *a: "").values()))


# What a model may do


@needs_bfcl
@pytest.mark.parametrize(
    "call",
    [
        "power(base=9, exponent=1000000000)",
        "power(base=" + "9" * 200 + ", exponent=200)",
        "square_root(number=2, precision=100000000)",
        "logarithm(value=2, base=3, precision=100000000)",
        "round_number(number=5, decimal_places=-1000000000)",
        "sum_values(numbers=[1, " + "9" * 200 + "])",
    ],
)
def test_numbers_beyond_reason_are_refused_at_once(call: str) -> None:
    env = playing(case(("pwd()",)))
    start = time.monotonic()
    assert "must be between" in told(env, call)[0]
    assert time.monotonic() - start < 5


@needs_bfcl
@pytest.mark.parametrize(
    "call",
    [
        "cd(folder=5)",
        "cd()",
        "cd(folder='x', more=1)",
        "cat(file_name=['a.txt'])",
        "sum_values(numbers='abc')",
        "sum_values(numbers={'a': [1]})",
        "power(base='9', exponent='9')",
        "power(base=1000000000000000, exponent=300)",
        "_load_scenario(scenario={})",
        "__init__()",
    ],
)
def test_wrong_arguments_are_told_and_private_methods_are_no_tools(call: str) -> None:
    env = playing(case(("pwd()",)))
    assert "rror" in told(env, call)[0]
    told(env, "pwd()")
    assert env.step("Done.")[4]["success"] is True


@needs_bfcl
def test_a_folder_in_itself_ends_the_episode() -> None:
    env = playing(case(("pwd()",)))
    env.step(calls(env, "mkdir(dir_name='x')"))
    _, reward, terminated, _, info = env.step(calls(env, "cp(source='x', destination='x')"))
    assert (reward, terminated, info["success"]) == (0.0, True, False)


@needs_bfcl
def test_folders_that_double_end_the_episode_before_they_hang() -> None:
    env = playing(case(("pwd()",)), max_turns=1000, max_calls=1000)
    start = time.monotonic()
    ended = False
    env.step(calls(env, "mkdir(dir_name='d0')"))
    for n in range(60):
        new, old = f"d{n + 1}", f"d{n}"
        step = env.step(
            calls(
                env,
                f"cp(source='{old}', destination='e{n}')",
                f"mkdir(dir_name='{new}')",
                f"mv(source='{old}', destination='{new}')",
                f"mv(source='e{n}', destination='{new}')",
                "find(path='.', name='zzz')",
            )
        )
        if step[2]:
            ended = True
            break
    assert ended
    assert time.monotonic() - start < 20


@needs_bfcl
def test_settings_of_the_process_stay_as_they_were() -> None:
    backends = Backends(case())
    before = mpmath.mp.dps, decimal.getcontext().prec
    assert "result" in backends.call("logarithm", value=2.0, base=10.0, precision=50)
    assert "result" in backends.call("square_root", number=2.0, precision=7)
    assert (mpmath.mp.dps, decimal.getcontext().prec) == before


@needs_bfcl
def test_copies_do_not_share_state() -> None:
    found = case(("pwd()",))
    one, other = Backends(found), Backends(found)
    one.call("echo", content="changed", file_name="a.txt")
    assert not one.same_state(other)
    assert other.call("cat", file_name="a.txt") == '{"file_content": "one\\ntwo"}'
    assert Backends(found).same_state(other)


@needs_bfcl
def test_results_are_counted() -> None:
    backends = Backends(case())
    backends.call("pwd")
    (result,) = backends.results
    assert backends.has_results([result])
    assert not backends.has_results([result, result])
    assert backends.has_results([])


# Reading and refusing


@pytest.mark.parametrize("text", ["", "x", "f(", "f(g(1))", "f(x)", "a.b()", "f(**{})", "1 + 1"])
def test_what_is_not_a_call_with_literals_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a call"):
        read_call(text)


def test_a_call_is_read_without_being_run() -> None:
    call = read_call("f(1, 'x', a=[1, -2.5], b={'c': None})")
    assert (call.name, call.args) == ("f", (1, "x"))
    assert call.kwargs == {"a": [1, -2.5], "b": {"c": None}}


@pytest.mark.parametrize("categories", [(), ("bas",), "base"])
def test_wrong_categories_are_told(categories: Any) -> None:
    with pytest.raises(UsageError, match="categories"):
        StatefulToolsEnv(categories=categories)


@needs_bfcl
def test_tasks_without_a_case_are_refused() -> None:
    with pytest.raises(UsageError, match="no case"):
        StatefulToolsEnv(tasks=ListTasks([Task("t", "p", "a")]))


@pytest.mark.skipif(installed, reason="bfcl-eval is installed")
def test_without_the_package_the_command_is_named() -> None:
    with pytest.raises(UsageError, match="pip install --no-deps bfcl-eval"):
        StatefulToolsEnv()


def test_limits_are_finite_where_it_matters() -> None:
    assert StatefulToolsEnv.max_turns < math.inf
