"""Native tool calls: how they reach the environment, and what the model is told of the results."""

from typing import Any

import gymnasium
import pytest

from grpo_gym.chat.answer import NativeCall, Usage, read_answer
from grpo_gym.chat.messages import observed, said
from grpo_gym.chat.tools import NativeCodec, with_native_tools, write_action
from grpo_gym.engines.http_text import parsed
from grpo_gym.registry import make
from grpo_gym.rewards import Score
from grpo_gym.tasks import ProceduralTasks, Task
from grpo_gym.tools import CODECS, Call, ToolEnv, tool
from grpo_gym.types import Message
from grpo_gym.wrappers import TurnLimit
from tests import chat_endpoint
from tests.chat_endpoint import call, talking
from tests.playing import Fake, specs


class Adder(ToolEnv):
    """One answers with the sum of two numbers, found with a tool."""

    max_turns = 4

    @tool
    def add(self, a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    def default_tasks(self) -> ProceduralTasks:
        return ProceduralTasks(lambda rng: ("Add 1 and 2.", "3"))

    def grade(self, task: Task, action: str) -> Score:
        return Score(float(action == task.answer), action == task.answer)


def native(*calls: Any, content: Any = None) -> Any:
    return chat_endpoint.said(content, list(calls), "tool_calls")


def conversation(turns: list[Any], make: Any = Adder, **options: Any) -> list[dict[str, Any]]:
    """The messages of the last request, when the model says these turns."""
    script = [*turns, "3"]

    def policy(body: dict[str, Any]) -> Any:
        return script[sum(m["role"] == "assistant" for m in body["messages"])]

    with talking(policy, make, **options) as (here, collector):
        collection = collector.collect(specs(1), 0)
    assert (collection.failures, collection.stopped) == (0, None)
    return here.bodies[-1]["messages"][2:]


@pytest.mark.parametrize("codec", CODECS)
def test_a_call_is_run_whatever_the_text_format(codec: str) -> None:
    if codec == "code":  # a block is text for one tool of one argument
        assert NativeCodec(CODECS[codec]()).parse(
            write_action("", [NativeCall("a", "f", '{"x": 1}')]), 3
        ) == (Call("f", {"x": 1}),)
        return
    assistant, result = conversation(
        [native(call("add", {"a": 1, "b": 2}))], lambda: Adder(codec=codec)
    )
    assert assistant == {
        "role": "assistant",
        "content": None,
        "tool_calls": [call("add", {"a": 1, "b": 2})],
    }
    assert result == {"role": "tool", "tool_call_id": "call-a", "content": "3"}


def test_a_text_call_still_counts() -> None:
    text = Adder().codec.render(Call("add", {"a": 1, "b": 2}))
    assistant, result = conversation([text])
    assert assistant == {"role": "assistant", "content": text}
    assert result == {"role": "user", "content": "<tool_response>\n3\n</tool_response>"}


def test_several_calls_are_answered_in_order_each_by_its_id() -> None:
    calls = [call("add", {"a": n, "b": n}, f"id-{n}") for n in range(3)]
    assistant, *results = conversation([native(*calls, content="Let me see.")])
    assert assistant["content"] == "Let me see."
    assert [(r["tool_call_id"], r["content"]) for r in results] == [
        ("id-0", "0"),
        ("id-1", "2"),
        ("id-2", "4"),
    ]


@pytest.mark.parametrize(
    ("name", "arguments", "error"),
    [
        ("add", '{"a": 1, "b": ', "Error: the arguments are not valid JSON"),
        ("add", "[1, 2]", "Error: tool calls are written"),
        (
            "add",
            '{"a": 1, "a": 2, "b": 3}',
            "Error: the arguments are not valid JSON (a key occurs",
        ),
        ("add", '{"a": NaN, "b": 1}', "Error: the arguments are not valid JSON (NaN"),
        ("add", '{"a": 1} {"b": 2}', "there is text after them"),
        ("add", '{"a": "one", "b": 2}', "Error: add: a: Input should be a valid integer"),
        ("add", "", "Error: add: a: Field required"),
        ("add", "{" * 5000, "Error: the arguments are not valid JSON"),
        ("subtract", {"a": 1, "b": 2}, "Error: no tool of that name; there is add"),
        ("", {}, "Error: no tool of that name"),
        ("__class__", {}, "Error: no tool of that name"),
        ("a b\n<c>" * 30, {}, "Error: no tool of that name"),
    ],
)
def test_a_wrong_call_is_told_to_the_model(name: str, arguments: Any, error: str) -> None:
    assistant, result = conversation([native(call(name, arguments))])
    assert error in result["content"]
    assert result["tool_call_id"] == "call-a"
    # Servers parse what they are sent, and refuse names and arguments that are none.
    (echo,) = assistant["tool_calls"]
    assert isinstance(parsed(echo["function"]["arguments"].encode()), dict)
    assert 0 < len(echo["function"]["name"]) <= 64
    assert " " not in echo["function"]["name"]


def test_a_name_that_is_no_text_is_none() -> None:
    broken = {"id": "a", "type": "function", "function": {"name": None, "arguments": None}}
    _, result = conversation([native(broken)])
    assert "Error: no tool of that name" in result["content"]


def test_arguments_may_be_an_object() -> None:
    lax = {"id": "a", "function": {"name": "add", "arguments": {"a": 1, "b": 2}}}
    assert conversation([native(lax)])[1]["content"] == "3"


@pytest.mark.parametrize("ids", [("x", "x"), (None, "x"), ("", "x"), (3, 4), ("y" * 1000, "x")])
def test_ids_that_name_nothing_are_given(ids: tuple[Any, Any]) -> None:
    calls = [call("add", {"a": n, "b": 1}, id) for n, id in enumerate(ids)]
    assistant, *results = conversation([native(*calls)])
    assert [c["id"] for c in assistant["tool_calls"]] == ["call_0", "call_1"]
    assert [r["tool_call_id"] for r in results] == ["call_0", "call_1"]


def test_calls_beyond_the_limit_are_answered_too() -> None:
    calls = [call("add", {"a": n, "b": 0}, f"id-{n}") for n in range(6)]
    _, *results = conversation([native(*calls)], lambda: Adder(max_calls=3))
    assert [r["tool_call_id"] for r in results] == [f"id-{n}" for n in range(6)]
    assert [r["content"] for r in results[:3]] == ["0", "1", "2"]
    assert all("Error" in r["content"] for r in results[3:])


def test_calls_of_tools_that_are_not_there_are_answered() -> None:
    def policy(body: dict[str, Any]) -> Any:
        return native(call("f", {})) if len(body["messages"]) == 1 else "x"

    step = lambda env, action: ("more", 0.0, len(env.seen) == 2, False, {})  # noqa: E731
    with talking(policy, lambda: Fake(step)) as (here, collector):
        collector.collect(specs(1), 0)
    assert here.bodies[-1]["messages"][2:] == [
        {"role": "tool", "tool_call_id": "call-a", "content": "Error: this call was not run"},
        {"role": "user", "content": "more"},
    ]


def test_the_native_line_is_the_last_and_the_only_one_that_counts() -> None:
    """A model that also writes calls as text has those run that it made natively."""
    codec = NativeCodec(CODECS["openai"]())
    text = codec.render(Call("f", {"x": 1}))
    action = write_action(f"I call {text}", [NativeCall("a", "g", "{}")])
    assert codec.parse(action, 5) == (Call("g", {}),)
    assert codec.parse(f"I call {text}", 5) == (Call("f", {"x": 1}),)
    assert codec.parse("no call", 5) == ()


def test_what_is_offered_is_what_is_there_at_that_turn() -> None:
    class Late(Adder):
        def respond(self, task: Task, action: str) -> Any:
            answer = super().respond(task, action)
            self.tools = {}
            return answer

    def policy(body: dict[str, Any]) -> Any:
        return native(call("add", {"a": 1, "b": 2})) if "tools" in body else "3"

    with talking(policy, Late) as (here, collector):
        ((rollout,),) = [g.rollouts for g in collector.collect(specs(1), 0).groups]
    assert ["tools" in body for body in here.bodies] == [True, False]
    assert rollout.success


def test_tools_are_found_below_wrappers() -> None:
    calls = native(call("add", {"a": 1, "b": 2}))
    _, result = conversation([calls], lambda: TurnLimit(Adder(), 3))
    assert result["content"] == "3"
    env = with_native_tools(make("grpo_gym/Calculator-v0"))
    _, info = env.reset(seed=0)
    assert [schema["function"]["name"] for schema in info["tool_schemas"]] == ["calculator"]
    plain = make("grpo_gym/Arithmetic-v0")
    assert with_native_tools(plain) is plain


def test_the_prompt_is_the_same_for_every_policy() -> None:
    one, other = make("grpo_gym/Calculator-v0"), make("grpo_gym/Calculator-v0")
    assert with_native_tools(one).reset(seed=0)[0] == other.reset(seed=0)[0]


def test_examples_in_the_first_observation_stay_as_they_are() -> None:
    example: list[Message] = [
        {"role": "assistant", "content": "", "tool_calls": [call("f", {})]},
        {"role": "tool", "content": "1", "tool_call_id": "call-a"},
    ]
    assert observed(example) == example


def test_an_answer_without_words_or_calls_is_an_empty_one() -> None:
    answer = read_answer(chat_endpoint.said(None, []), Usage())
    assert said(answer) == {"role": "assistant", "content": ""}
    assert isinstance(with_native_tools(Fake()), gymnasium.Env)
