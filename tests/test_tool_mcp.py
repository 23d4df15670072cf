"""Tools of an MCP server; needs the mcp extra."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from grpo_gym.errors import UsageError
from grpo_gym.rewards import Score
from grpo_gym.tasks import ListTasks, Task
from grpo_gym.testing import EnvContract
from grpo_gym.tools import Call, ToolEnv, make_codec
from grpo_gym.tools.mcp import MCPTools

mcp = pytest.importorskip("mcp")

SERVER = '''
import logging, time
from mcp.server.mcpserver import MCPServer

logging.disable(logging.CRITICAL)
server = MCPServer("demo")


@server.tool()
def add(a: int, b: int = 1) -> int:
    """Add two
    numbers.

    Not for the model.
    """
    return a + b


@server.tool()
def fail() -> str:
    """Fail."""
    raise ValueError("no")


@server.tool()
def wait() -> str:
    """Wait."""
    time.sleep(1.5)
    return "late"


if __name__ == "__main__":
    server.run("stdio")
'''


def in_process() -> Any:
    scope: dict[str, Any] = {"__name__": "demo"}
    exec(SERVER, scope)
    return scope["server"]


@pytest.fixture(params=["in process", "stdio"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MCPTools]:
    target: Any = in_process() if request.param == "in process" else None
    if target is None:
        path = tmp_path / "server.py"
        path.write_text(SERVER)
        target = mcp.StdioServerParameters(command=sys.executable, args=[str(path)])
    with MCPTools(target) as tools:
        yield tools


class SumEnv(ToolEnv):
    """Add with a tool, then answer."""

    max_turns = 4

    def default_tasks(self) -> ListTasks:
        return ListTasks([Task("one", "What is 2 + 3?", "5")])

    def grade(self, task: Task, action: str) -> Score:
        return Score(float(action == task.answer), action == task.answer)

    def solution(self, task: Task) -> tuple[str, ...]:
        return self.codec.render(Call("add", {"a": 2, "b": 3})), task.answer


def answer(env: ToolEnv, call: Call) -> str:
    observation, *_ = env.step(env.codec.render(call))
    return observation[0]["content"]


def test_an_episode_with_a_server(server: MCPTools) -> None:
    env = SumEnv(tools=server.tools, call_seconds=0.5)
    system = env.reset(seed=0)[0][0]["content"]
    assert '"Add two numbers."' in system
    assert '"properties": {"a": {' in system
    assert answer(env, Call("add", {"a": 2, "b": 3})) == "5"
    assert answer(env, Call("add", {"a": "two"})).startswith("Error: ")
    assert answer(env, Call("fail", {})).startswith("Error: ")
    _, reward, *_ = env.step("5")
    assert reward == 1.0


def test_a_late_answer_is_not_waited_for(server: MCPTools) -> None:
    env = SumEnv(tools=server.tools, call_seconds=0.2)
    env.reset(seed=0)
    started = time.monotonic()
    assert answer(env, Call("wait", {})) == "Error: no result in 0.2 s"
    assert time.monotonic() - started < 1.0


def test_texts_get_the_types_of_the_schema() -> None:
    with MCPTools(in_process()) as server:
        env = SumEnv(tools=server.tools, codec="xml")
        env.reset(seed=0)
        assert answer(env, Call("add", {"a": "2", "b": "3"}, untyped=True)) == "5"
        assert "add(a: integer, b: integer = 1): Add" in make_codec("python").instructions(
            server.tools
        )


def test_a_closed_connection_is_told() -> None:
    server = MCPTools(in_process())
    env = SumEnv(tools=server.tools)
    env.reset(seed=0)
    server.close()
    server.close()
    assert answer(env, Call("add", {"a": 1})) == "Error: add: the connection is closed"


def test_a_server_that_cannot_be_started_is_named() -> None:
    with pytest.raises(UsageError, match="the MCP server cannot be used"):
        MCPTools(mcp.StdioServerParameters(command="/nowhere/at/all"))


class TestToolsOfAServerKeepTheContract(EnvContract):
    seeds = range(2)

    @pytest.fixture(autouse=True)
    def _connect(self) -> Iterator[None]:
        with MCPTools(in_process()) as self.server:
            yield

    def make(self) -> SumEnv:
        return SumEnv(tools=self.server.tools)
