"""Every text format of calls: what it writes it reads; what is broken is told and never run."""

import json
from typing import Annotated, Any, Literal

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_gym import registry
from grpo_gym.errors import UsageError
from grpo_gym.rewards import Score
from grpo_gym.tasks import ListTasks, Task
from grpo_gym.testing import EnvContract
from grpo_gym.tools import CODECS, BadCall, BlockCodec, Call, ToolEnv, make_codec, tool

TYPED = ("hermes", "openai", "python")


@tool
def add(a: int, b: Annotated[int, pydantic.Field(ge=0)] = 1) -> int:
    """Add two numbers."""
    return a + b


@tool
def python(code: str) -> str:
    """Echo the code."""
    return f"ran {code}"


def call_of(name: str) -> Call:
    if name == "code":
        return Call("python", {"code": "print(1)\nprint('```')"})
    return Call("add", {"a": 2, "b": 3}) if name != "xml" else Call("add", {"a": "2"}, True)


@pytest.fixture(params=list(CODECS))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_what_is_written_is_read_back(name: str) -> None:
    codec, call = make_codec(name), call_of(name)
    assert codec.parse(f"Let me see. {codec.render(call)} And then?", 9) == (call,)


def test_several_calls_in_one_turn_keep_their_order(name: str) -> None:
    codec, call = make_codec(name), call_of(name)
    text = "\n".join([codec.render(call)] * 5)
    assert codec.parse(text, 9) == (call,) * 5
    assert codec.parse(text, 3) == (call,) * 3


def test_a_call_cut_off_anywhere_is_never_run(name: str) -> None:
    codec = make_codec(name)
    whole = codec.render(call_of(name))
    for end in range(len(whole)):
        assert not [c for c in codec.parse(whole[:end], 9) if isinstance(c, Call)], whole[:end]


def test_a_message_without_a_call_has_none(name: str) -> None:
    codec = make_codec(name)
    for text in (
        "",
        "The answer is \\boxed{5}.",
        "```\nadd(a=1)\n```",
        "a < b > c {}",
        "</function>",
    ):
        assert codec.parse(text, 9) == ()


def test_the_instructions_name_the_tools_and_the_form(name: str) -> None:
    codec = make_codec(name)
    text = codec.instructions([add, python])
    assert "python" in text
    assert name == "code" or "add" in text
    marks = {"hermes": "<tool_call>", "openai": "tool_calls", "xml": "<function=NAME>"}
    assert marks.get(name, "```python\n") in text


PIECES = st.text(max_size=5) | st.sampled_from(
    [
        "<tool_call>",
        '{"tool_calls": [',
        '{"function": {"name": "add", "arguments": ',
        '{"a": 1}',
        "}}",
        "]}",
        "```python\n",
        "\n```",
        "add(a=1)",
        "<function=add>",
        "<parameter=a>",
        "</parameter>",
        "</function>",
    ]
)


@given(text=st.lists(PIECES, max_size=10).map("".join))
def test_no_text_makes_parse_raise(text: str) -> None:
    for each in CODECS:
        for call in make_codec(each).parse(text, 4):
            assert isinstance(call, Call | BadCall)


HUGE = (
    "[" * 50_000,
    "(" * 50_000,
    "-" * 15_000 + "1",
    "9" * 5_000,
    "\x00",
    "\ud800",
    "'\\d'",
    "1+" * 9_000,
)


@pytest.mark.parametrize("inside", HUGE)
def test_monstrous_calls_are_bad_calls(inside: str) -> None:
    for text in (
        f'{{"tool_calls": [{{"function": {{"name": "add", "arguments": {inside}',
        f'{{"tool_calls": {inside}',
        f"```python\nadd(a={inside})\n```",
        f"```python\n{inside}\n```",
        f"<function=add>{inside}</function>",
    ):
        for each in ("openai", "python", "xml"):
            assert not [c for c in make_codec(each).parse(text, 4) if isinstance(c, Call)] or (
                inside in ("\ud800", "'\\d'")
            )


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.from_regex(r"\A[a-z]{2,5}_\Z"), JSON, max_size=3))
def test_any_json_arguments_survive_the_typed_formats(arguments: dict[str, Any]) -> None:
    call = Call("add", arguments)
    for each in TYPED:
        codec = make_codec(each)
        assert codec.parse(codec.render(call), 2) == (call,)


@given(st.dictionaries(st.from_regex(r"\A[a-z]{1,5}\Z"), st.text(), max_size=3))
def test_any_text_survives_the_tags(arguments: dict[str, str]) -> None:
    codec, call = make_codec("xml"), Call("add", arguments, untyped=True)
    if not any("</parameter>" in text for text in arguments.values()):
        assert codec.parse(codec.render(call), 2) == (call,)


OPENAI = '{"tool_calls": [{"id": "1", "type": "function", "function": {"name": "add", "arguments": %s}}]}'


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        (OPENAI % '"{\\"a\\": 1}"', [Call("add", {"a": 1})]),
        (OPENAI % '{"a": 1}', [Call("add", {"a": 1})]),
        (OPENAI % '"{\\"a\\": 1} and more"', [BadCall]),
        (OPENAI % '"{\\"a\\": NaN}"', [BadCall]),
        (OPENAI % '{"a": 1, "a": 2}', [BadCall]),
        (OPENAI % "[1]", [BadCall]),
        (OPENAI % '"3"', [BadCall]),
        ('{"tool_calls": []}', [BadCall]),
        ('{"tool_calls": "add"}', [BadCall]),
        ('{"tool_calls": [1, null]}', [BadCall, BadCall]),
        ('{"tool_calls": [{"function": {"name": 3}}]}', [BadCall]),
        ('{"tool_calls": [{"function": {"name": "add", "extra": 1}}]}', [BadCall]),
        ('{"tool_calls": [{"type": "search", "function": {"name": "add"}}]}', [BadCall]),
        ('{"tool_calls": [{"type": "function", "name": "add"}]}', [BadCall]),
        ('{"tool_calls": [' + OPENAI % "{}", [BadCall]),
        ('{"tools": []}', []),
    ],
)
def test_openai(text: str, calls: list[Any]) -> None:
    found = make_codec("openai").parse(text, 9)
    assert [call if isinstance(call, Call) else type(call) for call in found] == calls


@pytest.mark.parametrize(
    ("code", "calls"),
    [
        (
            "add(a=1)\n\nadd(a=-2.5, b=[1, 'x', None, True])",
            [{"a": 1}, {"a": -2.5, "b": [1, "x", None, True]}],
        ),
        ("add(a={'x': (1, 2)})", [{"a": {"x": [1, 2]}}]),
        ("add()  # nothing", [{}]),
        ("add(1)", None),
        ("add(a=1, **{'b': 2})", None),
        ("add(a=1, a=2)", None),
        ("x = add(a=1)", None),
        ("add(a=1)\nimport os", None),
        ("os.system('ls')", None),
        ("add(a=__import__('os'))", None),
        ("add(a=f'{1}')", None),
        ("add(a=1e999)", None),
        ("add(a=1j)", None),
        ("add(a=b'x')", None),
        ("add(a={1: 2})", None),
        ("add(a={'x': 1, 'x': 2})", None),
        ("add(a={**{}})", None),
        ("add(a={1, 2})", None),
        ("add(a=...)", None),
        ("add(a=-True)", None),
        ("", None),
        ("# only a comment", None),
        ("add(a=1", None),
    ],
)
def test_python_calls(code: str, calls: list[dict[str, Any]] | None) -> None:
    found = make_codec("python").parse(f"```python\n{code}\n```", 9)
    if calls is None:
        assert [type(call) for call in found] == [BadCall]
    else:
        assert found == tuple(Call("add", arguments) for arguments in calls)


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        (
            "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
            [{"a": "1"}],
        ),
        ("<function=add></function>", [{}]),
        ("<function=add><parameter=a> 1\n\n</parameter></function>", [{"a": " 1\n"}]),
        ("<function=add><parameter=a>1</parameter><parameter=a>2</parameter></function>", None),
        ("<function=add>1</function>", None),
        ("<function=>1</function>", None),
        ("<function=a b></function>", None),
        ("<function=add><parameter=>1</parameter></function>", None),
        ("<function=add><parameter=a>1</function>", None),
        ("<function=add><parameter=a>1</parameter>", None),
    ],
)
def test_tags(text: str, calls: list[dict[str, str]] | None) -> None:
    found = make_codec("xml").parse(text, 9)
    if calls is None:
        assert {type(call) for call in found} == {BadCall}
    else:
        assert found == tuple(Call("add", arguments, untyped=True) for arguments in calls)


def test_text_arguments_get_the_types_of_the_parameters() -> None:
    @tool
    def many(
        text: str, number: int, maybe: int | None, either: str | int, items: list[float]
    ) -> str:
        """All sorts."""
        return repr((text, number, maybe, either, items))

    values = {"text": "1", "number": "2", "maybe": "null", "either": "3", "items": "[1, 2.5]"}
    assert many.run(values, untyped=True) == ("('1', 2, None, '3', [1.0, 2.5])", True)
    for wrong in ("two", "2.5", "", "NaN", "[" * 9999):
        text, well = many.run(values | {"number": wrong}, untyped=True)
        assert not well
        assert "number: " in text


def test_choices_and_models_are_read_too() -> None:
    class Point(pydantic.BaseModel):
        x: int

    @tool
    def place(point: Point, colour: Literal["red", "blue"], size: Literal[1, 2]) -> str:
        """Place a point."""
        return f"{point.x} {colour} {size}"

    values = {"point": '{"x": 1}', "colour": "red", "size": "2"}
    assert place.run(values, untyped=True) == ("1 red 2", True)
    assert not place.run(values | {"colour": "green"}, untyped=True)[1]


def test_a_block_may_be_a_search() -> None:
    codec = BlockCodec("search", "query", "<search>", "</search>")
    assert codec.parse("I look. <search>cats</search>", 4) == (Call("search", {"query": "cats"}),)
    assert codec.render(Call("search", {"query": "cats"})) == "<search>cats</search>"
    assert codec.parse("<search>cats", 4) == (BadCall("the block is not closed by </search>"),)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("code", Call("add", {"a": 1})),
        ("code", Call("python", {"code": 1})),
        ("code", Call("python", {"code": "x\n```\ny"})),
        ("python", Call("not a name", {})),
        ("python", Call("add", {"a b": 1})),
        ("xml", Call("add", {"a": "</parameter>"})),
        ("xml", Call("<>", {})),
    ],
)
def test_what_a_format_cannot_write_is_refused(name: str, call: Call) -> None:
    with pytest.raises(UsageError, match="not a call that"):
        make_codec(name).render(call)


def test_a_block_needs_its_tool() -> None:
    with pytest.raises(UsageError, match="the tool 'python'"):
        make_codec("code").instructions([add])


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(UsageError, match="no codec 'hermes2'; nearest: hermes"):
        make_codec("hermes2")


class SumEnv(ToolEnv):
    """Add with a tool, then answer."""

    max_turns = 3

    def default_tasks(self) -> ListTasks:
        return ListTasks([Task("one", "What is 2 + 3?", "5")])

    @tool
    def add(self, a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    def grade(self, task: Task, action: str) -> Score:
        return Score(float(action == task.answer), action == task.answer)

    def solution(self, task: Task) -> tuple[str, ...]:
        return self.codec.render(Call("add", {"a": 2, "b": 3})), task.answer


@pytest.mark.parametrize("name", [*TYPED, "xml"])
def test_an_episode_in_each_format(name: str) -> None:
    env = SumEnv(codec=name)
    env.reset(seed=0)
    observation, *_ = env.step(make_codec(name).render(Call("add", {"a": 2, "b": 3})))
    assert observation == ({"role": "tool", "name": "add", "content": "5"},)


@pytest.mark.parametrize("name", [*TYPED, "xml"])
def test_a_registered_environment_takes_each_format(name: str) -> None:
    env: Any = registry.make("grpo_gym/Calculator-v0", codec=name, level=3)
    system = env.reset(seed=1)[0][0]["content"]
    call, answer = env.solution(env.task)
    assert env.codec.render(Call("calculator", {"expression": "1 + 2"})) in system
    assert env.step(call)[0][0]["content"] == env.task.answer
    assert env.step(answer)[4]["success"]


class TestAnotherFormatKeepsTheContract(EnvContract):
    seeds = range(2)

    def make(self) -> SumEnv:
        return SumEnv(codec="openai")


def test_the_schema_is_what_the_model_reads() -> None:
    system = SumEnv(codec="xml").reset(seed=0)[0][0]["content"]
    assert json.dumps(add.schema["function"]["name"]) in system


@pytest.mark.parametrize("codec", [3, [], {"name": "hermes"}])
def test_what_is_no_codec_is_told(codec: Any) -> None:
    with pytest.raises(UsageError, match="a codec is one of hermes, openai"):
        make_codec(codec)
