"""Hidden parameters, time limits, and tools that are coroutines."""

import asyncio
import gc
import math
import threading
import time
from collections.abc import Mapping
from typing import Annotated, Any

import pytest

from grpo_gym.errors import UsageError
from grpo_gym.rewards import Score
from grpo_gym.tasks import ListTasks, Task
from grpo_gym.testing import EnvContract
from grpo_gym.tools import Call, HermesCodec, Hidden, ToolEnv, tool
from grpo_gym.tools.deadline import Caller, run_within


@tool
def withdraw(amount: int, account: Annotated[dict[str, int], Hidden]) -> str:
    """Take money out."""
    account["balance"] -= amount
    return f"{account['balance']} left"


@tool
def slow(seconds: float) -> str:
    """Sleep."""
    time.sleep(seconds)
    return "awake"


@tool
async def slow_async(seconds: float) -> dict[str, str]:
    """Sleep without blocking."""
    await asyncio.sleep(seconds)
    return {"state": "awake"}


class BankEnv(ToolEnv):
    """Withdraw, then say what is left."""

    max_turns = 3
    call_seconds = 0.2

    def __init__(self, **kwargs: Any) -> None:
        task = Task("one", "Withdraw 3 of 10. What is left?", "7")
        super().__init__(tasks=ListTasks([task]), tools=[withdraw, slow, slow_async], **kwargs)

    def observe(self, task: Task) -> Any:
        self.account = {"balance": 10}
        return super().observe(task)

    def hidden(self) -> Mapping[str, Any]:
        return {"account": self.account}

    def grade(self, task: Task, action: str) -> Score:
        right = action == task.answer and self.account["balance"] == 7
        return Score(float(right), right)

    def solution(self, task: Task) -> tuple[str, ...]:
        return self.codec.render(Call("withdraw", {"amount": 3})), task.answer


class TestBankEnvKeepsTheContract(EnvContract):
    seeds = range(2)

    def make(self) -> BankEnv:
        return BankEnv()


def answer(env: ToolEnv, name: str, **arguments: Any) -> str:
    observation, *_ = env.step(HermesCodec().render(Call(name, arguments)))
    return observation[0]["content"]


def begun(**kwargs: Any) -> BankEnv:
    env = BankEnv(**kwargs)
    env.reset(seed=0)
    return env


def test_the_model_does_not_see_a_hidden_parameter() -> None:
    assert list(withdraw.schema["function"]["parameters"]["properties"]) == ["amount"]
    assert "account" not in BankEnv().reset(seed=0)[0][0]["content"]


def test_the_environment_passes_a_hidden_parameter() -> None:
    env = begun()
    assert answer(env, "withdraw", amount=3) == "7 left"
    assert env.account == {"balance": 7}


def test_the_model_cannot_pass_a_hidden_parameter() -> None:
    env = begun()
    assert answer(env, "withdraw", amount=3, account={"balance": 99}).startswith(
        "Error: withdraw: account"
    )
    assert env.account == {"balance": 10}


def test_a_hidden_parameter_with_a_default_need_not_be_passed() -> None:
    @tool
    def look(where: Annotated[str, Hidden()] = "here") -> str:
        """Look."""
        return where

    assert look.run({}) == ("here", True)
    assert look.run({}, hidden={"where": "there", "other": 1}) == ("there", True)


def test_a_missing_hidden_value_is_the_authors_mistake() -> None:
    class Forgetful(BankEnv):
        def hidden(self) -> Mapping[str, Any]:
            return {}

    with pytest.raises(UsageError, match=r"Forgetful.hidden\(\) lacks account of withdraw"):
        Forgetful().reset(seed=0)


@pytest.mark.parametrize("name", ["slow", "slow_async"])
def test_a_call_that_takes_too_long_is_told_and_the_episode_goes_on(name: str) -> None:
    env = begun()
    started = time.monotonic()
    assert answer(env, name, seconds=1.5) == "Error: no result in 0.2 s"
    assert time.monotonic() - started < 1.0
    assert answer(env, "withdraw", amount=1) == "9 left"


@pytest.mark.parametrize("limit", [math.inf, 5.0])
def test_coroutines_are_run_to_their_end(limit: float) -> None:
    env = begun(call_seconds=limit)
    assert answer(env, "slow", seconds=0.0) == "awake"
    assert answer(env, "slow_async", seconds=0.01) == '{"state": "awake"}'


def test_coroutines_run_although_the_caller_has_an_event_loop() -> None:
    async def play() -> str:
        return answer(begun(call_seconds=math.inf), "slow_async", seconds=0.0)

    assert "awake" in asyncio.run(play())


def test_without_a_limit_a_tool_runs_in_the_callers_thread() -> None:
    @tool
    def where() -> str:
        """Name of the thread."""
        return threading.current_thread().name

    assert where.run({}) == (threading.current_thread().name, True)
    assert where.run({}, seconds=5.0) == ("tool", True)


def test_an_environments_tools_share_a_thread_until_one_is_late() -> None:
    seen: list[threading.Thread] = []

    @tool
    def stay(seconds: float) -> str:
        """Remember the thread."""
        seen.append(threading.current_thread())
        time.sleep(seconds)
        return "here"

    class Stay(BankEnv):
        max_turns = 9

        def __init__(self) -> None:
            ToolEnv.__init__(self, tasks=ListTasks([Task("one", "?", "!")]), tools=[stay])

    env = Stay()
    env.reset(seed=0)
    for seconds in (0.0, 0.0, 0.4, 0.0):
        answer(env, "stay", seconds=seconds)
    assert seen[0] is seen[1] is seen[2] is not seen[3]
    env.close()
    for thread in seen:
        thread.join(5.0)
        assert not thread.is_alive()


def test_a_thread_ends_with_what_it_belongs_to() -> None:
    caller = Caller()
    thread = caller.run(threading.current_thread, 5.0)
    assert thread.is_alive()
    del caller
    gc.collect()
    thread.join(5.0)
    assert not thread.is_alive()


class Rude(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize("error", [SystemExit(3), Rude(), TimeoutError("gateway"), GeneratorExit()])
@pytest.mark.parametrize("limit", [None, 5.0])
def test_whatever_a_tool_raises_is_told(error: BaseException, limit: float | None) -> None:
    @tool
    def fail() -> str:
        """Fail."""
        raise error

    text, well = fail.run({}, seconds=limit)
    assert not well
    assert text in ("Error: 3", "Error: Rude", "Error: gateway", "Error: GeneratorExit")


def test_a_tools_own_time_limit_is_told_in_its_own_words() -> None:
    async def gateway() -> None:
        raise TimeoutError("gateway")

    with pytest.raises(TimeoutError, match="gateway"):
        run_within(gateway, 5.0)


@pytest.mark.parametrize("limit", [0, -1.0, float("nan")])
def test_a_limit_is_positive(limit: float) -> None:
    with pytest.raises(UsageError, match="call_seconds must be positive"):
        BankEnv(call_seconds=limit)


def test_an_error_message_is_cut_like_any_output() -> None:
    @tool
    def shout() -> str:
        """Fail loudly."""
        raise ValueError("x" * 1000)

    class Loud(BankEnv):
        def __init__(self) -> None:
            ToolEnv.__init__(
                self, tasks=ListTasks([Task("one", "?", "!")]), tools=[shout], max_output=30
            )

    env = Loud()
    env.reset(seed=0)
    assert answer(env, "shout") == "Error: " + "x" * 23 + "... [977 more characters]"
