"""Evaluation and rollouts with an endpoint: what is asked, what is recorded, what it may not do."""

import itertools
import json
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import grpo_gym
from grpo_gym import UsageError
from grpo_gym.engines.base import Sampling
from grpo_gym.types import Batch, Group, Rollout
from tests.chat_endpoint import (
    endpoint,
    question,
    said,
    solve,
    solve_with_native_calls,
    solve_with_text_calls,
    talking,
)
from tests.commands import environment, refused, run
from tests.playing import END, Fake, goes_on, specs, turns

ARITHMETIC, CALCULATOR = "grpo_gym/Arithmetic-v0", "grpo_gym/Calculator-v0"


def play(policy: Any, make: Any = Fake, tasks: int = 1, **options: Any) -> list[Rollout]:
    with talking(policy, make, **options) as (_, collector):
        groups = collector.collect(specs(tasks), 0).groups
    return [rollout for group in groups for rollout in group.rollouts]


# Evaluation.


def test_pass_at_k_of_a_policy_that_knows_half_of_the_tasks() -> None:
    def policy(body: dict[str, Any]) -> str:
        return solve(body) if eval(question(body)) % 2 else "I do not know."

    with endpoint(policy) as here:
        result = grpo_gym.evaluate(
            env=ARITHMETIC, model="m", engine=here.url, n=4, k=(1, 4), tasks=16
        )
    solved = sum(count == 4 for count, _ in result.successes.values())
    assert 0 < solved < 16
    assert {count for count, _ in result.successes.values()} == {0, 4}
    assert result.pass_at[1].mean == result.pass_at[4].mean == solved / 16
    assert (result.tokens, result.failures, result.stopped) == (5.0, 0, None)
    assert len(here.asked) == 64


@pytest.mark.parametrize("policy", [solve_with_native_calls, solve_with_text_calls])
def test_tools_are_called_natively_or_in_text(policy: Any) -> None:
    with endpoint(policy) as here:
        result = grpo_gym.evaluate(env=CALCULATOR, model="m", engine=here.url, n=2, k=(1,), tasks=8)
    assert result.pass_at[1].mean == 1
    assert len(here.asked) == 32
    assert result.tokens == 10.0
    names = {tool["function"]["name"] for body in here.bodies for tool in body["tools"]}
    assert names == {"calculator"}


def test_tools_can_be_left_to_the_prompt() -> None:
    """The server's template then has the word on how a result is shown."""

    def policy(body: dict[str, Any]) -> Any:
        last = body["messages"][-1]
        if last["role"] == "tool":
            assert last == {"role": "tool", "name": "calculator", "content": last["content"]}
            return f"\\boxed{{{last['content']}}}"
        return solve_with_text_calls(body)

    with endpoint(policy) as here:
        result = grpo_gym.evaluate(
            env=CALCULATOR,
            model="m",
            engine=here.url,
            engine_arg=("tools=text",),
            n=1,
            k=(1,),
            tasks=2,
        )
    assert result.pass_at[1].mean == 1
    assert not any("tools" in body for body in here.bodies)


# Commands.


def test_eval_writes_and_prints_what_it_cost(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    files = ["--out", str(tmp_path / "out.json"), "--rollouts", str(tmp_path / "rollouts.jsonl")]
    words = ["--tasks", "3", "--n", "2", "--k", "1,2", "--model", "m", "--env", CALCULATOR]
    with endpoint(solve_with_native_calls) as here:
        assert run("eval", "--engine", here.url, *words, *files) == 0
    out = capsys.readouterr().out
    assert "180 tokens used (120 of prompts, 60 sampled) in 12 answers" in out
    assert "pass@2" in out
    assert json.loads((tmp_path / "out.json").read_text())["pass_at"]["1"]["mean"] == 1
    rows = [json.loads(line) for line in (tmp_path / "rollouts.jsonl").read_text().splitlines()]
    assert len(rows) == 6
    assert [message["role"] for message in rows[0]["messages"]] == [
        *("system", "user", "assistant", "tool", "assistant")
    ]
    assert (rows[0]["token_ids"], rows[0]["counted_tokens"]) == ([], 10)


def test_rollout_shows_conversations(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--episodes", "2", "--model", "m", "--env", ARITHMETIC]
    with endpoint(solve) as here:
        assert run("rollout", "--engine", here.url, *words) == 0
    out = capsys.readouterr().out
    assert out.count("terminated, solved, reward 1, 5 tokens sampled") == 2


def test_no_weights_are_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("grpo_gym.playing.load_policy")
    with endpoint(solve) as here:
        words = ["--episodes", "1", "--model", "m", "--env", ARITHMETIC]
        assert run("rollout", "--engine", here.url, *words) == 0


def test_training_is_refused_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(capsys, "train", "--engine", "https://host.invalid/v1", "--model", "m")
    assert "gives text, and training needs token ids" in line
    with pytest.raises(UsageError, match="gives text"):
        grpo_gym.train(engine="https://host.invalid/v1", model="m")


def test_the_model_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    with endpoint(solve) as here:
        line = refused(capsys, "eval", "--engine", here.url)
        assert line.endswith(
            "--model must name a model of the endpoint; it offers the models m, another"
        )
    assert not here.asked
    with endpoint(solve, models=("tiny",)) as here:
        assert run("eval", "--engine", here.url, "--tasks", "1", "--n", "1", "--k", "1") == 0


@pytest.mark.parametrize(
    ("argument", "what"),
    [
        ("concurency=3", "no option 'concurency'; nearest: concurrency"),
        ("concurrency=0", "concurrency is 0, but must be at least 1"),
        ("concurrency=many", "concurrency is 'many', but must be a valid integer"),
        ("token_budget=0", "token_budget is 0, but must be at least 1"),
        ("retries=-1", "retries is -1, but must be at least 0"),
        ("timeout_s=0", "timeout_s is 0"),
        ("timeout_s=inf", "timeout_s is inf"),
        ("tools=maybe", "tools is 'maybe', but must be 'native' or 'text'"),
        ("key_env=NOT_SET_ANYWHERE", "key_env names an environment variable that is not set"),
        ("body={model='x', seed=3}", "body cannot set model, seed: the run's own options do"),
        ("body={x=nan}", "body holds a number that JSON does not have"),
        ("body=3", "body is 3, but must be a valid dict"),
    ],
)
def test_arguments_are_checked(
    capsys: pytest.CaptureFixture[str], argument: str, what: str
) -> None:
    words = ["--engine", "http://127.0.0.1:9/v1", "--model", "m", "--engine-arg", argument]
    assert what in refused(capsys, "eval", *words)


def test_a_chat_template_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--engine", "http://127.0.0.1:9/v1", "--model", "m", "--chat-template", "plain"]
    assert "chat_template is not for engine" in refused(capsys, "eval", *words)


@pytest.mark.parametrize("end", ["", "/", "/chat/completions"])
def test_the_address_may_end_in_several_ways(end: str) -> None:
    with endpoint(solve) as here:
        result = grpo_gym.evaluate(
            env=ARITHMETIC, model="m", engine=here.url + end, n=1, k=(1,), tasks=1
        )
    assert result.pass_at[1].mean == 1


def test_no_heavy_library_is_needed_to_import_it() -> None:
    code = (
        "import sys, grpo_gym.chat; print({'torch', 'transformers', 'httpx2'} & set(sys.modules))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=100)
    assert done.stdout.strip() == "set()", done.stderr


# What is asked.


def test_a_request_says_how_to_sample() -> None:
    sampling = Sampling(
        temperature=0.5, top_p=0.9, top_k=7, min_p=0.1, max_tokens=32, stop=("END", "\n")
    )
    options = {"copies": 2, "sampling": sampling, "body": {"reasoning_effort": "low"}}
    with talking(lambda body: "x", **options) as (here, collector):
        collector.collect(specs(2), 3)
    body = here.bodies[0]
    assert {name: value for name, value in body.items() if name != "seed"} == {
        "model": "m",
        "messages": [{"role": "user", "content": "question"}],
        "max_tokens": 32,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.1,
        "stop": ["END", "\n"],
        "reasoning_effort": "low",
    }
    seeds = {body["seed"] for body in here.bodies}
    assert len(seeds) == 4
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_what_is_not_asked_for_is_left_to_the_endpoint() -> None:
    with talking(lambda body: "x") as (here, collector):
        collector.collect(specs(1), 0)
    assert set(here.bodies[0]) == {
        "model",
        "messages",
        "max_tokens",
        "temperature",
        "top_p",
        "seed",
    }


def test_the_same_seed_asks_the_same() -> None:
    def bodies(seed: int) -> list[str]:
        make = lambda: Fake(turns(2))  # noqa: E731
        with talking(lambda body: "x", make, copies=2) as (here, collector):
            collector.collect(specs(2), seed)
        return sorted(json.dumps(body, sort_keys=True) for body in here.bodies)

    assert bodies(1) == bodies(1)
    assert bodies(1) != bodies(2)


def test_the_conversation_is_appended_to() -> None:
    def policy(body: dict[str, Any]) -> str:
        return f"turn {len(body['messages'])}"

    with talking(policy, lambda: Fake(turns(3, "go on"))) as (here, collector):
        collector.collect(specs(1), 0)
    first, second, third = (body["messages"] for body in here.bodies)
    assert second == [
        *first,
        {"role": "assistant", "content": "turn 1"},
        {"role": "user", "content": "go on"},
    ]
    assert third[: len(second)] == second
    assert len(third) == 5


def test_no_more_requests_are_in_flight_than_allowed() -> None:
    def policy(body: dict[str, Any]) -> str:
        time.sleep(0.03)
        return "x"

    with talking(policy, copies=4, concurrency=3) as (here, collector):
        assert collector.collect(specs(6), 0).failures == 0
    assert len(here.asked) == 24
    assert here.most == 3


def test_a_lane_that_waits_for_its_environment_holds_nobody_up() -> None:
    others_ended = threading.Event()

    def step(env: Fake, action: str) -> Any:
        if env.seed == 100 and len(env.seen) == 1:
            assert others_ended.wait(20)
        return turns(3)(env, action)

    def progress(ended: int, total: int) -> None:
        if ended == total - 1:
            others_ended.set()

    with talking(lambda body: "x", lambda: Fake(step)) as (_, collector):
        assert collector.collect(specs(4), 0, progress).failures == 0


def test_copies_that_differ_are_found_here_too() -> None:
    texts = iter("abcdef")
    make = lambda: Fake(start=lambda env: (next(texts), {}))  # noqa: E731
    with talking(lambda body: "x", make, copies=2) as (_, collector):
        assert "copies of one task differ" in str(collector.collect(specs(1), 0).stopped)


# What is recorded.


def test_a_rollout_holds_text_and_the_number_of_tokens() -> None:
    (rollout,) = play(lambda body: said("hello", completion_tokens=7), lambda: Fake(turns(2)))
    assert [turn.action for turn in rollout.turns] == ["hello", "hello"]
    assert (rollout.sampled_tokens, rollout.counted_tokens) == (14, 14)
    assert rollout.token_ids.size == rollout.prompt_ids.size == 0
    assert [turn.completion.counted_tokens for turn in rollout.turns] == [7, 7]
    assert (rollout.reward, rollout.success, rollout.terminated) == (1.0, True, True)


def test_what_was_only_counted_is_never_trained_on() -> None:
    rollouts = play(lambda body: "x", copies=2)
    with pytest.raises(ValueError, match="text and no token ids"):
        Batch((Group("seed-100", tuple(rollouts)),))
    with pytest.raises(ValueError, match="counted or known"):
        replace(rollouts[0], prompt_ids=[1])


def test_a_turn_that_is_cut_makes_the_end_a_truncation() -> None:
    def policy(body: dict[str, Any]) -> Any:
        return said("cut", finish="length", completion_tokens=64)

    (rollout,) = play(policy)
    assert (rollout.terminated, rollout.truncation, rollout.reward) == (False, "turn_tokens", 1.0)


def test_a_rollout_has_a_length_as_the_endpoint_counts() -> None:
    """Turn 1 takes 5 tokens; the answer to it 7, as turn 2's prompt shows; turn 2 takes 5 more."""

    def policy(body: dict[str, Any]) -> Any:
        turn = len(body["messages"]) // 2
        return said("x", prompt_tokens=10 + 12 * turn, completion_tokens=5)

    with talking(policy, lambda: Fake(turns(9)), rollout_tokens=18) as (here, collector):
        ((rollout,),) = [g.rollouts for g in collector.collect(specs(1), 0).groups]
    assert [body["max_tokens"] for body in here.bodies] == [18, 13, 1]
    assert (rollout.truncation, rollout.sampled_tokens) == ("rollout_tokens", 15)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, ""),
        ("", ""),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "ab"),
        (
            [
                {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
                {"type": "text", "text": "a"},
            ],
            "a",
        ),
        ([{"type": "reasoning", "text": "hm"}], ""),
        ("\ud800 \u0000 é", "? \u0000 é"),
    ],
)
def test_content_of_every_form_is_text(content: Any, text: str) -> None:
    (rollout,) = play(lambda body: said(content))
    assert rollout.turns[0].action == text


def test_a_refusal_is_what_the_model_said() -> None:
    body = said(None)
    body["choices"][0]["message"]["refusal"] = "I will not."
    (rollout,) = play(lambda _: body)
    assert rollout.turns[0].action == "I will not."


def test_any_gymnasium_environment_of_text_can_be_played() -> None:
    """Without tools of ours nothing is offered to be called."""

    def step(env: Fake, action: str) -> Any:
        return END if action == "hello hello" else goes_on("no")

    def policy(body: dict[str, Any]) -> str:
        return " ".join(["hello"] * (len(body["messages"]) // 2 + 1))

    with talking(policy, lambda: Fake(step)) as (here, collector):
        ((rollout,),) = [g.rollouts for g in collector.collect(specs(1), 0).groups]
    assert (len(rollout.turns), rollout.success) == (2, True)
    assert not any("tools" in body for body in here.bodies)


def test_a_message_that_no_request_can_hold_loses_its_rollout() -> None:
    calls = [{"id": "a", "arguments": float("inf")}]
    message = {"role": "assistant", "content": "", "tool_calls": calls}

    def start(env: Fake) -> Any:
        return (message,) if env.seed == 101 else "question", {}

    with talking(lambda body: "x", lambda: Fake(start=start)) as (_, collector):
        collection = collector.collect(specs(4), 0)
    (lost,) = [g.rollouts[0].error for g in collection.groups if g.rollouts[0].error]
    assert "the conversation cannot be sent" in lost


def test_copies_with_different_tools_differ() -> None:
    counts = itertools.count()

    def start(env: Fake) -> Any:
        return "question", {"tool_schemas": [{"function": {"name": f"f{next(counts)}"}}]}

    with talking(lambda body: "x", lambda: Fake(start=start), copies=2) as (_, collector):
        assert "gave the tools" in str(collector.collect(specs(1), 0).stopped)
