"""Tools: schema and validation, the format of calls, and an episode of them."""

import json
from typing import Annotated, Any

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_gym.errors import UsageError
from grpo_gym.rewards import Score
from grpo_gym.tasks import ListTasks, Task
from grpo_gym.testing import EnvContract
from grpo_gym.tools import BadCall, Call, HermesCodec, ToolEnv, tool

HERMES = HermesCodec()


@tool
def repeat(
    word: str, times: Annotated[int, pydantic.Field(ge=0, description="how often")] = 2
) -> str:
    """Say a word again
    and again.

    Not for the model.
    """
    return word * times


def test_a_schema_comes_from_the_type_hints() -> None:
    assert repeat.schema == {
        "type": "function",
        "function": {
            "name": "repeat",
            "description": "Say a word again and again.",
            "parameters": {
                "type": "object",
                "properties": {
                    "word": {"type": "string"},
                    "times": {
                        "type": "integer",
                        "minimum": 0,
                        "default": 2,
                        "description": "how often",
                    },
                },
                "required": ["word"],
                "additionalProperties": False,
            },
        },
    }


def test_a_tool_is_still_a_function() -> None:
    assert repeat("ab", times=1) == "ab"


def test_valid_arguments_run() -> None:
    assert repeat.run({"word": "ab"}) == ("abab", True)
    assert repeat.run({"word": "ab", "times": 3}) == ("ababab", True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "word: "),
        ({"word": 3}, "word: "),
        ({"word": None}, "word: "),
        ({"word": "a", "times": "2"}, "times: "),
        ({"word": "a", "times": 2.5}, "times: "),
        ({"word": "a", "times": True}, "times: "),
        ({"word": "a", "times": -1}, "times: "),
        ({"word": "a", "extra": 1}, "extra: "),
        ({"word": "\ud800"}, "repeat: "),
        ({"word": {1, 2}}, "cannot be read"),
    ],
)
def test_wrong_arguments_are_told_and_never_run(arguments: dict[str, Any], message: str) -> None:
    text, well = repeat.run(arguments)
    assert not well
    assert text.startswith("Error: repeat: ")
    assert message in text


@pytest.mark.parametrize(
    ("result", "text"),
    [("as it is", "as it is"), (29, "29"), ({"é": [1, None]}, '{"é": [1, null]}'), (1j, "1j")],
)
def test_results_become_text(result: object, text: str) -> None:
    @tool
    def give() -> object:
        return result

    assert give.run({}) == (text, True)


def test_parameter_names_may_be_those_of_pydantic() -> None:
    @tool
    def odd(copy: str, json: int, schema: str = "s") -> str:
        return f"{copy} {json} {schema}"

    assert odd.run({"copy": "c", "json": 1}) == ("c 1 s", True)


def test_an_untyped_tool_is_refused_at_once() -> None:
    with pytest.raises(UsageError, match="'word' needs a type hint"):

        @tool
        def untyped(word) -> str:  # type: ignore[no-untyped-def]
            return str(word)

    with pytest.raises(UsageError, match="cannot be passed by name"):

        @tool
        def many(*words: str) -> str:
            return " ".join(words)

    with pytest.raises(UsageError, match="cannot be resolved"):

        @tool
        def unknown(word: "Nowhere") -> str:  # type: ignore[name-defined]  # noqa: F821
            return str(word)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.text(), st.dictionaries(st.text(), JSON, max_size=3))
def test_a_rendered_call_reads_back(name: str, arguments: dict[str, Any]) -> None:
    text = f"Let me see. {HERMES.render(Call(name, arguments))} And then?"
    assert HERMES.parse(text) == (Call(name, arguments),)


def test_tags_inside_a_string_are_only_text() -> None:
    call = Call("repeat", {"word": "</tool_call><tool_call>{}"})
    assert HERMES.parse(HERMES.render(call) * 2) == (call, call)


GOOD = '<tool_call>\n{"name": "repeat", "arguments": {"word": "a"}}\n</tool_call>'


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("no call at all", []),
        ("</tool_call>", []),
        (GOOD, [Call]),
        (GOOD + GOOD, [Call, Call]),
        ('<tool_call>{"name": "repeat"}</tool_call>', [Call]),
        ("<tool_call>", [BadCall]),
        ("<tool_call></tool_call>", [BadCall]),
        (GOOD[:-1], [BadCall]),
        (GOOD.removesuffix("</tool_call>"), [BadCall]),
        (GOOD.removesuffix("}\n</tool_call>"), [BadCall]),
        ("<tool_call>{broken}</tool_call>" + GOOD, [BadCall, Call]),
        (GOOD.removesuffix("</tool_call>") + GOOD, [BadCall, Call]),
        ("<tool_call>[1]</tool_call>", [BadCall]),
        ('<tool_call>{"name": 3, "arguments": {}}</tool_call>', [BadCall]),
        ('<tool_call>{"name": "repeat", "arguments": "a"}</tool_call>', [BadCall]),
        ('<tool_call>{"name": "repeat", "arguments": {}, "id": 1}</tool_call>', [BadCall]),
        ('<tool_call>{"name": "a", "arguments": {"x": NaN}}</tool_call>', [BadCall]),
        ('<tool_call>{"name": "a", "arguments": {"x": ' + "9" * 5000 + "}}</tool_call>", [BadCall]),
        ("<tool_call>" + '{"name":' * 50_000 + "</tool_call>", [BadCall]),
        ('<tool_call>{"name": "a"}{"name": "b"}</tool_call>', [BadCall]),
    ],
)
def test_calls_are_read_or_told_to_be_bad(text: str, kinds: list[type]) -> None:
    assert [type(call) for call in HERMES.parse(text)] == kinds


def test_no_more_calls_are_read_than_asked_for() -> None:
    assert len(HERMES.parse(GOOD * 100, limit=3)) == 3


PIECES = st.text() | st.sampled_from(["<tool_call>", "</tool_call>", '{"name": ', '"a"', "}"])


@given(st.lists(PIECES, max_size=8).map("".join))
def test_no_text_makes_parse_raise(text: str) -> None:
    HERMES.parse(text)


class EchoEnv(ToolEnv):
    """Ask the oracle for the word, then say it."""

    max_turns = 3
    system_prompt = "Say the word."

    def __init__(self, **kwargs: Any) -> None:
        self.asked: list[str] = []
        task = Task("one", "Which word?", "swordfish")
        super().__init__(tasks=ListTasks([task]), tools=[repeat], max_output=60, **kwargs)

    @tool
    def oracle(self, question: str) -> str:
        """Tell the word."""
        self.asked.append(question)
        if question == "fail":
            raise RuntimeError("the oracle is tired")
        return "swordfish"

    def grade(self, task: Task, action: str) -> Score:
        return Score(float(action == task.answer), action == task.answer)

    def solution(self, task: Task) -> tuple[str, ...]:
        return HERMES.render(Call("oracle", {"question": "?"})), task.answer


class TestEchoEnvKeepsTheContract(EnvContract):
    def make(self) -> EchoEnv:
        return EchoEnv()


def calling(*calls: Call, **kwargs: Any) -> tuple[EchoEnv, list[str]]:
    env = EchoEnv(**kwargs)
    env.reset(seed=0)
    observation, _, terminated, _, _ = env.step("".join(HERMES.render(call) for call in calls))
    assert not terminated
    assert {message["role"] for message in observation} == {"tool"}
    return env, [message["content"] for message in observation]


def test_the_system_message_describes_the_tools() -> None:
    observation, _ = EchoEnv().reset(seed=0)
    system = observation[0]["content"]
    assert system.startswith("Say the word.\n")
    assert json.dumps(repeat.schema) in system
    assert '"name": "oracle"' in system


def test_several_calls_are_answered_in_order() -> None:
    env, texts = calling(Call("oracle", {"question": "a"}), Call("repeat", {"word": "b"}))
    assert texts == ["swordfish", "bb"]
    assert env.asked == ["a"]


def test_bad_calls_are_answered_beside_good_ones() -> None:
    env, texts = calling(
        Call("oracle", {"question": 3}), Call("orakle", {}), Call("oracle", {"question": "a"})
    )
    assert texts[0].startswith("Error: oracle: question")
    assert texts[1] == "Error: no tool of that name; there is oracle, repeat"
    assert texts[2] == "swordfish"
    assert env.asked == ["a"]


def test_a_call_that_was_cut_off_is_not_run() -> None:
    env = EchoEnv()
    env.reset(seed=0)
    whole = HERMES.render(Call("oracle", {"question": "a"}))
    for end in range(len("<tool_call>"), len(whole), 7):
        env.reset(seed=0)
        observation, _, terminated, _, _ = env.step(whole[:end])
        assert "not closed" in observation[0]["content"]
        assert not terminated
    assert env.asked == []


def test_what_a_tool_raises_is_told() -> None:
    _, texts = calling(Call("oracle", {"question": "fail"}))
    assert texts == ["Error: the oracle is tired"]


def test_long_output_is_cut() -> None:
    _, texts = calling(Call("repeat", {"word": "x", "times": 1000}))
    assert texts == ["x" * 60 + "... [940 more characters]"]


def test_the_budget_of_calls_holds_for_the_episode() -> None:
    call = Call("oracle", {"question": "a"})
    env, texts = calling(call, call, call, call, max_calls=2)
    assert [text.startswith("Error: no more than 2") for text in texts] == [False, False, True]
    env.step(HERMES.render(call))
    assert env.asked == ["a", "a"]
    env.reset(seed=0)
    env.step(HERMES.render(call))
    assert env.asked == ["a", "a", "a"]


def test_tools_need_different_names() -> None:
    class Twice(EchoEnv):
        @tool
        def repeat(self, word: str) -> str:
            return word

    with pytest.raises(UsageError, match="oracle, repeat, repeat"):
        Twice()


def test_tools_of_two_copies_are_bound_to_their_own() -> None:
    first, _ = calling(Call("oracle", {"question": "first"}))
    second, _ = calling(Call("oracle", {"question": "second"}))
    assert (first.asked, second.asked) == (["first"], ["second"])
