"""Spaces of text and of messages."""

import pytest
from gymnasium.vector import SyncVectorEnv
from hypothesis import given
from hypothesis import strategies as st

import grpo_gym
from grpo_gym.spaces import Messages, Text

ANY_TEXT = st.text(st.characters())  # lone surrogates included


@given(ANY_TEXT)
def test_text_holds_every_string(text: str) -> None:
    assert text in Text()


@pytest.mark.parametrize("other", [None, 3, b"bytes", ["list"], ("tuple",)])
def test_text_holds_nothing_else(other: object) -> None:
    assert other not in Text()


@given(st.lists(st.tuples(st.sampled_from(["user", "tool", "anything"]), ANY_TEXT)))
def test_messages_hold_tuples_of_messages(pairs: list[tuple[str, str]]) -> None:
    messages = tuple({"role": role, "content": content} for role, content in pairs)
    assert messages in Messages()
    assert list(messages) not in Messages()


def test_messages_may_carry_the_tool_fields() -> None:
    call = {"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}
    answer = {"role": "tool", "content": "29", "name": "calculator", "tool_call_id": "1"}
    assert (call, answer) in Messages()


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user"},
        {"content": "no role"},
        {"role": "user", "content": None},
        {"role": "user", "content": ["parts"]},
        {"role": 1, "content": "x"},
        {"role": "user", "content": "x", "extra": "key"},
        {"role": "user", "content": "x", "name": 3},
        "a string",
    ],
)
def test_messages_hold_nothing_else(message: object) -> None:
    assert (message,) not in Messages()


@pytest.mark.parametrize("space", [Text, Messages])
def test_samples_lie_in_the_space_and_follow_the_seed(space: type[Text] | type[Messages]) -> None:
    first, second = space(seed=7), space(seed=7)
    samples = [first.sample() for _ in range(50)]
    assert all(sample in first for sample in samples)
    assert samples == [second.sample() for _ in range(50)]
    assert len({repr(sample) for sample in samples}) > 10


def test_spaces_are_equal_by_kind() -> None:
    assert Text() == Text()
    assert Messages() == Messages()
    assert Text() != Messages()
    assert hash(Text()) == hash(Text())


def test_a_gymnasium_vector_env_can_hold_them() -> None:
    envs = SyncVectorEnv([lambda: grpo_gym.make("grpo_gym/Copy-v0")] * 3)
    observations, _ = envs.reset(seed=[5, 5, 5])
    assert observations[0] == observations[1] == observations[2]
    _, rewards, terminated, _, _ = envs.step(("red", "blue", "x"))
    assert terminated.all()
    assert rewards.sum() <= 1
    envs.close()
