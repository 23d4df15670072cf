"""The scripted engine says its script, within the limits that any engine keeps."""

import math

import pytest

from grpo_gym.engines.base import Request, Sampling
from grpo_gym.engines.scripted import ScriptedEngine
from grpo_gym.errors import UsageError
from grpo_gym.rendering import Renderer
from tests.models import VOCABULARY, tiny_tokenizer

RENDERER = Renderer(tiny_tokenizer())
STOP = RENDERER.stop_token_ids[0]


def test_texts_are_said_in_the_order_of_submission_and_over_again():
    engine = ScriptedEngine(RENDERER, ["one", "22"])
    done = engine.generate([[5], [6], [7]], Sampling(), [0, 0, 0])
    assert [RENDERER.action(c.token_ids) for c in done] == ["one", "22", "one"]
    assert all(c.token_ids[-1] == STOP and c.finish_reason == "stop" for c in done)


def test_a_function_sees_prompt_and_request():
    engine = ScriptedEngine(RENDERER, lambda ids, request: f"{len(ids)} {request.seed}")
    (done,) = engine.generate([[5, 6]], Sampling(), [9])
    assert RENDERER.action(done.token_ids) == "2 9"


def test_logprobs_are_those_of_a_uniform_policy():
    engine = ScriptedEngine(RENDERER, ["123"])
    (done,) = engine.generate([[5]], Sampling(top_logprobs=2), [0])
    assert done.logprobs.tolist() == [-math.log(VOCABULARY)] * 4
    assert done.top_logprobs.tolist() == [[-math.log(VOCABULARY)] * 2] * 4
    assert engine.score([[1, 2, 3], [1], []])[0].tolist() == [-math.log(VOCABULARY)] * 2


def test_lanes_end_at_their_own_step_and_others_join():
    engine = ScriptedEngine(RENDERER, lambda ids, request: "1" * request.id)
    engine.submit([Request(i, (5,), Sampling(), 0) for i in (3, 1)])
    ended = {}
    for step in range(1, 5):
        if step == 2:
            engine.submit([Request(2, (5,), Sampling(), 0)])
        ended |= {name: step for name, _ in engine.step()}
    assert ended == {1: 2, 3: 4, 2: 4}
    assert not engine.busy


@pytest.mark.parametrize(
    ("sampling", "text", "reason"),
    [
        (Sampling(max_tokens=2), "12", "length"),
        (Sampling(stop=("3",)), "123", "stop"),
        (Sampling(stop_token_ids=tuple(RENDERER.tokenizer.encode("4"))), "1234", "stop"),
    ],
)
def test_limits_cut_the_script(sampling, text, reason):
    engine = ScriptedEngine(RENDERER, ["123456"])
    (done,) = engine.generate([[5]], sampling, [0])
    assert RENDERER.tokenizer.decode(done.token_ids) == text
    assert done.finish_reason == reason


def test_the_context_length_cuts_too():
    engine = ScriptedEngine(RENDERER, ["123456"], context_length=4)
    (done,) = engine.generate([[5]], Sampling(), [0])
    assert (len(done.token_ids), done.finish_reason) == (3, "length")


def test_load_takes_the_version_and_abort_drops():
    engine = ScriptedEngine(RENDERER, ["1"])
    engine.load({}, 7)
    (done,) = engine.generate([[5]], Sampling(), [0])
    assert done.version == 7
    engine.submit([Request(0, (5,), Sampling(), 0)])
    engine.abort()
    assert not engine.busy
    assert engine.step() == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1}, "temperature is -1"),
        ({"temperature": 1e-9}, "temperature is 1e-09"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_p": 0}, "top_p is 0"),
        ({"top_p": 1.5}, "top_p is 1.5"),
        ({"top_k": -1}, "top_k is -1"),
        ({"min_p": 2}, "min_p is 2"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"stop": ("",)}, "stop is"),
        ({"top_logprobs": -1}, "top_logprobs is -1"),
    ],
)
def test_settings_that_make_no_sense_are_named(options, message):
    engine = ScriptedEngine(RENDERER, ["1"])
    with pytest.raises(UsageError, match=message):
        engine.submit([Request(0, (5,), Sampling(**options), 0)])
    assert not engine.busy


def test_requests_that_cannot_be_served_are_refused():
    engine = ScriptedEngine(RENDERER, ["1"], context_length=4)
    with pytest.raises(UsageError, match="empty prompt"):
        engine.submit([Request(0, (), Sampling(), 0)])
    with pytest.raises(UsageError, match="no room"):
        engine.submit([Request(0, (5,) * 4, Sampling(), 0)])
    with pytest.raises(UsageError, match="in flight already"):
        engine.submit([Request(0, (5,), Sampling(), 0)] * 2)
    assert not engine.busy
    with pytest.raises(UsageError, match="empty"):
        ScriptedEngine(RENDERER, [])
