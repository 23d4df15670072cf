"""Endpoints that fail, lie, hang or cost too much: an error in a line, and what was paid for is kept."""

import itertools
import json
import logging
import signal
import socket
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import grpo_gym
from grpo_gym import UsageError
from grpo_gym.chat import ChatEngine, ChatOptions
from grpo_gym.chat.lane import ChatRequest
from grpo_gym.collector import Collection
from grpo_gym.engines import http
from grpo_gym.engines.base import EngineStopped, Sampling
from tests.chat_endpoint import call, endpoint, playing, said, solve, talking
from tests.commands import ended, refused, run, start
from tests.loopback import Reply
from tests.playing import Fake, specs, turns

ARITHMETIC = "grpo_gym/Arithmetic-v0"
KEY = "sk-secret-0123456789"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_FIRST_WAIT_S", 0.01)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def collect(
    policy: Any, tasks: int = 1, make: Callable[[], Any] = Fake, **options: Any
) -> Collection:
    with talking(policy, make, **options) as (_, collector):
        return collector.collect(specs(tasks), 0)


def refusal(status: int, message: str, **fields: Any) -> Reply:
    """An error in OpenAI's form."""
    return Reply({"error": {"message": message, **fields}}, status)


def after(good: int, then: Any) -> Callable[[Any], Any]:
    """A policy that answers so many times, and then does something else."""
    count = itertools.count()

    def policy(body: Any) -> Any:
        if next(count) < good:
            return "x"
        return then() if callable(then) else then

    return policy


# What passes.


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504, None])
def test_what_passes_is_asked_again(status: int | None) -> None:
    seen: set[int] = set()

    def policy(body: dict[str, Any]) -> Any:
        if body["seed"] in seen:
            return "x"
        seen.add(body["seed"])
        return None if status is None else Reply("busy", status)

    collection = collect(policy, tasks=4)
    assert (collection.failures, collection.stopped, len(collection.groups)) == (0, None, 4)


def test_retry_after_is_kept() -> None:
    count = itertools.count()

    def policy(body: Any) -> Any:
        return "x" if next(count) else Reply("slow down", 429, {"Retry-After": "1"})

    started = time.monotonic()
    assert collect(policy).stopped is None
    assert time.monotonic() - started > 0.9


# What does not.


def test_a_server_that_fails_for_ever_ends_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    with endpoint(lambda body: refusal(500, "out of order")) as here:
        words = ["--engine", here.url, "--model", "m", "--env", ARITHMETIC, "--tasks", "10"]
        line = refused(capsys, "eval", *words, "--engine-arg", "retries=1")
    assert "17 of 160 rollouts are lost to failing environments or requests" in line
    assert line.endswith("answers 500: out of order")
    assert len(here.asked) <= 2 * 36  # no more than fail in a row, and those in flight with them


def test_a_request_that_fails_loses_its_rollout_only() -> None:
    def policy(body: dict[str, Any]) -> Any:
        last = body["messages"][-1]["content"]
        return refusal(500, "this one crashes me") if last == "103" else "x"

    make = lambda: Fake(start=lambda env: (str(env.seed), {}))  # noqa: E731
    collection = collect(policy, 10, make, retries=0)
    lost = [g.rollouts[0].error for g in collection.groups if g.rollouts[0].error is not None]
    assert len(lost) == collection.failures == 1
    assert "answers 500: this one crashes me" in lost[0]
    assert collection.stopped is None


def test_too_many_lost_requests_end_the_run_and_the_rest_is_kept() -> None:
    collection = collect(after(12, refusal(500, "enough")), 20, retries=0, concurrency=1)
    assert "rollouts are lost to failing environments or requests" in str(collection.stopped)
    assert "answers 500: enough" in str(collection.stopped)
    assert sum(g.rollouts[0].error is None for g in collection.groups) == 12


def test_many_failures_in_a_row_end_the_run() -> None:
    policy = after(5, refusal(500, "gone for good"))
    collection = collect(policy, 300, retries=0, max_error_share=1.0)
    assert str(collection.stopped).startswith("http")
    assert "gone for good; 75 tokens used" in str(collection.stopped)
    assert collection.failures < 40


def test_a_server_that_dies_ends_the_run() -> None:
    with endpoint(lambda body: "x") as here:
        engine = ChatEngine(here.url, "m", ChatOptions(retries=1))
    engine.close()
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    with pytest.raises(UsageError, match="cannot be reached"):
        ChatEngine(url, "m")

    def stop() -> Any:
        here.url = ""
        return None

    with talking(after(3, stop), retries=1, concurrency=1) as (_, collector):
        collection = collector.collect(specs(20), 0)
    assert "broke off" in str(collection.stopped)


def test_a_server_that_never_answers_is_given_up_on() -> None:
    """A request is sent once more, as each may be paid for."""
    started = time.monotonic()
    policy = after(3, lambda: time.sleep(3))
    options = {"timeout_s": 0.3, "concurrency": 1, "max_error_share": 0.5}
    with talking(policy, **options) as (here, collector):
        collection = collector.collect(specs(4), 0)
    assert time.monotonic() - started < 2.5
    assert collection.failures == 1
    (lost,) = [g.rollouts[0].error for g in collection.groups if g.rollouts[0].error]
    assert "gave no answer in 0.3 s" in str(lost)
    assert len(here.asked) == 3 + 2


def test_an_answer_that_is_late_once_is_asked_for_again() -> None:
    count = itertools.count()

    def policy(body: Any) -> Any:
        if next(count) == 1:
            time.sleep(2)
        return "x"

    assert collect(policy, 3, timeout_s=0.5).failures == 0


def test_a_stop_is_heard_after_the_answers_that_came_with_it() -> None:
    """One request is answered and one refused in the same moment, and nothing else is to be done."""
    with endpoint(lambda body: "x") as here:
        engine = ChatEngine(here.url, "m")
        futures: list[Future[Any]] = [Future(), Future()]
        starts = iter(futures)
        engine._client.start = lambda *_, **__: next(starts)  # type: ignore[method-assign]
        request = ChatRequest(0, (), (), Sampling(), 0)
        engine.submit([request, replace(request, id=1)])
        futures[0].set_result(said("x"))
        futures[1].set_exception(http.ServerError("no more", 402))
        assert [number for number, _ in engine.step()] == [0]
        assert engine.busy
        with pytest.raises(EngineStopped, match="no more; 15 tokens used"):
            engine.step()
        engine.close()


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (b"<html>Gateway</html>", "something else than JSON"),
        (b"", "no usage"),
        ([], "no usage"),
        ({}, "no usage"),
        ({"usage": {"prompt_tokens": -1, "completion_tokens": 2}}, "no usage"),
        ({"usage": {"prompt_tokens": 1, "completion_tokens": 1e99}}, "no usage"),
        ({"usage": {"prompt_tokens": True, "completion_tokens": 2}}, "no usage"),
        ({**said("x"), "usage": None}, "no usage"),
        ({**said("x"), "choices": []}, "no choices with a message"),
        ({**said("x"), "choices": None}, "no choices with a message"),
        ({**said("x"), "choices": {"0": 1}}, "no choices with a message"),
        ({**said("x"), "choices": [{"message": "x"}]}, "no choices with a message"),
        (said({"a": 1}), "content is no text"),
        (said(7), "content is no text"),
        (said([{"type": "image"}]), "content is no text"),
        (said("x", finish="content_filter"), "content filter"),
        (said("x", finish="error"), "ended the answer with the reason 'error'"),
        (said("x", finish=["\x1b", KEY]), r"ended the answer with the reason "),
        ({"error": {"message": f"no room\nfor {KEY}"}}, "answers with an error: no room for ***"),
        ({**said("x"), "error": f"\x1b {KEY}"}, "answers with an error: "),
        (said("x", calls={"a": 1}), "tool_calls that are no list"),
        (said("x", calls=["a"]), "name no function"),
        (said("x", calls=[{"id": "a", "function": None}]), "name no function"),
        (said("x", calls=[{"function": {"name": "f", "arguments": 3}}]), "arguments are no text"),
        (b'{"a": ' * 50_000, "something else than JSON"),
        (b'"' + b"x" * (17 * 2**20) + b'"', "more than 16777216 bytes"),
    ],
)
def test_nonsense_loses_the_rollout(body: Any, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    nonsense = Reply(body) if isinstance(body, bytes) else body
    policy = after(3, Reply(nonsense) if isinstance(nonsense, list) else nonsense)
    collection = collect(policy, 4, concurrency=1, max_error_share=0.5)
    (lost,) = [g.rollouts[0].error for g in collection.groups if g.rollouts[0].error]
    assert what in lost
    assert lost.isprintable()
    assert KEY not in lost
    assert collection.stopped is None


def test_nonsense_alone_is_an_error_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with endpoint(lambda body: Reply(b"<html>")) as here:
        words = ["--engine", here.url, "--model", "m", "--env", ARITHMETIC, "--tasks", "2"]
        assert "something else than JSON" in refused(capsys, "eval", *words)


# What is wrong from the start.


def test_an_unknown_model_is_told_with_those_that_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def policy(body: dict[str, Any]) -> Any:
        return refusal(404, f"The model `{body['model']}` does not exist")

    with endpoint(policy, models=[f"model-{i}" for i in range(12)]) as here:
        words = ["--engine", here.url, "--model", "gpt-x", "--env", ARITHMETIC]
        line = refused(capsys, "eval", *words)
    assert "answers 404: The model `gpt-x` does not exist; it offers the models model-0, " in line
    assert "model-9 and 2 more" in line
    assert len(here.asked) <= 16


def test_a_request_that_is_wrong_for_all_is_told_at_once() -> None:
    collection = collect(lambda body: refusal(400, "temperature must be below 1"), 50)
    assert str(collection.stopped).endswith("answers 400: temperature must be below 1")
    assert collection.groups == ()


def test_tools_that_the_server_does_not_take_are_told_with_the_way_out() -> None:
    def policy(body: dict[str, Any]) -> Any:
        return refusal(400, '"auto" tool choice requires --enable-auto-tool-choice to be set')

    with endpoint(policy) as here, pytest.raises(UsageError, match="--engine-arg tools=text"):
        grpo_gym.evaluate(
            env="grpo_gym/Calculator-v0", model="m", engine=here.url, n=1, k=(1,), tasks=2
        )


def test_an_endpoint_without_a_list_of_models_can_be_played_with() -> None:
    with endpoint(lambda body: "x", models=None) as here, playing(here.url) as collector:
        assert collector.collect(specs(1), 0).stopped is None


@pytest.mark.parametrize("models", [{"a": 1}, [None, 3, {"b": 2}], ["\x1b[31m"], "abc"])
def test_a_list_of_models_may_be_nonsense(models: Any) -> None:
    def policy(body: dict[str, Any]) -> Any:
        return refusal(404, "no such model")

    with endpoint(policy, models=models) as here, playing(here.url) as collector:
        assert str(collector.collect(specs(1), 0).stopped).isprintable()


# Differences between endpoints.


def test_a_server_that_wants_max_completion_tokens_gets_it() -> None:
    message = (
        "Unsupported parameter: 'max_tokens' is not supported with this model. "
        "Use 'max_completion_tokens' instead."
    )

    def policy(body: dict[str, Any]) -> Any:
        return refusal(400, message) if "max_tokens" in body else "x"

    with talking(policy, copies=8) as (here, collector):
        collection = collector.collect(specs(2), 0)
    assert (collection.failures, collection.stopped) == (0, None)
    assert here.bodies[-1]["max_completion_tokens"] == 64
    assert len(here.asked) <= 16 + 16


def test_a_seed_that_is_not_taken_is_left_out_and_told() -> None:
    def policy(body: dict[str, Any]) -> Any:
        if "seed" in body:
            return refusal(422, "body.seed: Extra inputs are not permitted")
        return refusal(400, "top_p is not supported") if "top_p" in body else "x"

    with talking(policy, copies=4) as (here, collector):
        collection = collector.collect(specs(2), 0)
        assert (collection.failures, collection.stopped) == (0, None)
        assert "the endpoint takes no seed, top_p, which was left out" in str(collector.cost())
    assert not {"seed", "top_p"} & set(here.bodies[-1])


def test_what_changes_the_samples_is_never_left_out() -> None:
    def policy(body: dict[str, Any]) -> Any:
        return refusal(400, "Unsupported value: 'temperature' does not support 0.5")

    sampling = Sampling(temperature=0.5, max_tokens=8)
    with talking(policy, sampling=sampling) as (here, collector):
        assert "'temperature' does not support 0.5" in str(collector.collect(specs(1), 0).stopped)
    assert len(here.asked) == 1


# The context.


@pytest.mark.parametrize(
    "message",
    [
        "This model's maximum context length is 64 tokens. However, you requested 70 tokens",
        "the request exceeds the available context size. try increasing it",
        "prompt is too long: 300 tokens > 200 maximum",
    ],
)
def test_a_conversation_that_does_not_fit_is_truncated(message: str) -> None:
    def policy(body: dict[str, Any]) -> Any:
        return refusal(400, message, code="x") if len(body["messages"]) > 3 else "x"

    collection = collect(policy, 2, lambda: Fake(turns(5)))
    rollouts = [group.rollouts[0] for group in collection.groups]
    assert [rollout.truncation for rollout in rollouts] == ["context"] * 2
    assert [len(rollout.turns) for rollout in rollouts] == [2, 2]
    assert (collection.failures, collection.stopped) == (0, None)


def test_a_context_that_nothing_fits_is_an_error() -> None:
    policy = lambda body: refusal(400, "maximum context length is 16 tokens")  # noqa: E731
    with pytest.raises(UsageError, match=r"no conversation fits .* with --max-tokens 64"):
        collect(policy, 3)


# The key.


def test_the_key_comes_from_the_environment_and_goes_nowhere_else(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    caplog.set_level(logging.DEBUG)
    file = tmp_path / "rollouts.jsonl"

    def policy(body: dict[str, Any]) -> Any:
        return said(f"your key is {KEY}", [call(KEY, {"key": KEY}, KEY)])

    words = ["--model", "m", "--env", "grpo_gym/Calculator-v0", "--tasks", "2", "--n", "1"]
    with endpoint(policy) as here:
        options = ["--k", "1", "--rollouts", str(file), "--engine", here.url]
        assert run("eval", *words, *options) == 0
        assert run("rollout", "--model", "m", "--engine", here.url, "--episodes", "1") == 0
    assert {asked.headers["Authorization"] for asked in here.asked} == {f"Bearer {KEY}"}
    out, err = capsys.readouterr()
    assert "your key is ***" in file.read_text()
    assert KEY not in file.read_text() + out + err + caplog.text


def test_the_key_is_in_no_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    with endpoint(lambda body: refusal(401, f"Incorrect API key provided: {KEY}")) as here:
        words = ["--engine", here.url, "--model", "m", "--env", ARITHMETIC]
        line = refused(capsys, "eval", *words, "--engine-arg", "key_env=MY_KEY")
    assert "refuses the key in MY_KEY (401: Incorrect API key provided: ***)" in line
    assert {asked.headers["Authorization"] for asked in here.asked} == {f"Bearer {KEY}"}


def test_the_key_is_in_no_list_of_models(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with endpoint(solve, models=(f"for-{KEY}",)) as here:
        assert "the models for-***" in refused(capsys, "eval", "--engine", here.url)


def test_without_a_key_the_variable_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with endpoint(lambda body: refusal(401, "who are you?")) as here:
        words = ["--engine", here.url, "--model", "m", "--env", ARITHMETIC]
        assert "refuses no key (401: who are you?); set OPENAI_API_KEY" in refused(
            capsys, "eval", *words
        )
    assert not any("Authorization" in asked.headers for asked in here.asked)


# The budget.


def test_a_budget_ends_the_run_and_what_ended_is_kept() -> None:
    """A request takes at most 64 sampled tokens and about 13 of the prompt; it takes 15."""
    with talking(lambda body: "x", token_budget=200, concurrency=1) as (here, collector):
        collection = collector.collect(specs(50), 0)
    assert "the token budget of 200 is used up" in str(collection.stopped)
    assert f"{15 * len(here.asked)} tokens used" in str(collection.stopped)
    assert 200 - 100 < 15 * len(here.asked) <= 200
    assert len(collection.groups) == len(here.asked)


def test_a_budget_holds_for_requests_in_flight_together() -> None:
    with talking(
        lambda body: said("x", prompt_tokens=12, completion_tokens=64), token_budget=400
    ) as (here, collector):
        collector.collect(specs(50), 0)
    assert 76 * len(here.asked) <= 400
    assert len(here.asked) >= 4


def test_a_budget_counts_the_tools_that_are_sent_along() -> None:
    """The prompt has a few words, what the tool says of itself two thousand letters."""
    schema = {"type": "function", "function": {"name": "f", "description": "word " * 400}}
    make = lambda: Fake(start=lambda env: ("x", {"tool_schemas": [schema]}))  # noqa: E731
    with talking(lambda body: "x", make, token_budget=500) as (here, collector):
        collection = collector.collect(specs(1), 0)
    assert "the token budget of 500 is used up" in str(collection.stopped)
    assert here.asked == []


def test_an_episode_that_ends_with_the_last_answer_counts() -> None:
    """The environment is still at work when the budget is used up."""

    def step(env: Fake, action: str) -> Any:
        time.sleep(0.2)
        return turns(1)(env, action)

    collection = collect(lambda body: "x", 8, lambda: Fake(step), token_budget=100, concurrency=1)
    assert collection.stopped is not None
    assert [group.rollouts[0].terminated for group in collection.groups] == [True, True]


def test_eval_prints_what_the_budget_allowed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["--model", "m", "--env", ARITHMETIC, "--tasks", "50", "--n", "1", "--k", "1"]
    files = ["--rollouts", str(tmp_path / "r.jsonl"), "--out", str(tmp_path / "o.json")]
    budget = ["--engine-arg", "token_budget=500"]
    with endpoint(solve) as here:
        status = run("eval", "--engine", here.url, *words, *files, *budget, "--max-tokens", "32")
    out, err = capsys.readouterr()
    assert status == 1
    assert err.startswith("grpo-gym: error: the token budget of 500 is used up")
    assert err.count("\n") == 1
    assert "pass@1" in out
    ended = len((tmp_path / "r.jsonl").read_text().splitlines())
    assert 20 <= ended <= 33
    result = json.loads((tmp_path / "o.json").read_text())
    assert result["tasks"] == ended
    assert result["stopped"] in err


def test_a_budget_for_nothing_is_an_error_that_says_what_is_needed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with endpoint(solve) as here:
        words = ["--engine", here.url, "--model", "m", "--engine-arg", "token_budget=10"]
        line = refused(capsys, "eval", *words)
    assert "the token budget of 10 is used up: the next request may take 2" in line
    assert not here.asked


def test_from_python_a_run_that_stopped_early_warns() -> None:
    with endpoint(solve) as here, pytest.warns(UserWarning, match="token budget of 500"):
        result = grpo_gym.evaluate(
            env=ARITHMETIC,
            model="m",
            engine=here.url,
            engine_arg=("token_budget=500",),
            n=1,
            k=(1,),
            tasks=50,
            max_tokens=32,
        )
    assert result.stopped is not None
    assert str(result).endswith(f"stopped early: {result.stopped}")


# Ctrl-C.


def test_from_python_an_interrupt_stays_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What has ended is in the file that was asked for."""

    def policy(body: dict[str, Any]) -> Any:
        if next(count) >= 3:
            signal.raise_signal(signal.SIGINT)
        return solve(body)

    count = itertools.count()
    file = tmp_path / "rollouts.jsonl"
    with endpoint(policy) as here, pytest.raises(KeyboardInterrupt, match="interrupted; 45 tokens"):
        grpo_gym.evaluate(
            env=ARITHMETIC,
            model="m",
            engine=here.url,
            engine_arg=("concurrency=1",),
            n=1,
            k=(1,),
            tasks=9,
            rollouts=str(file),
        )
    assert len(file.read_text().splitlines()) == 3


def test_an_interrupted_evaluation_prints_what_has_ended(tmp_path: Path) -> None:
    count = itertools.count()

    def policy(body: dict[str, Any]) -> Any:
        if next(count) >= 10:
            time.sleep(60)
        return solve(body)

    with endpoint(policy) as here:
        words = ["--model", "m", "--env", ARITHMETIC, "--tasks", "40", "--n", "1", "--k", "1"]
        process = start(
            "eval", "--engine", here.url, *words, "--engine-arg", "concurrency=2", cwd=tmp_path
        )
        until = time.monotonic() + 60
        while len(here.asked) < 12 and time.monotonic() < until:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = ended(process, 30)
    assert process.returncode == 130, err
    assert err.startswith("grpo-gym: interrupted; 150 tokens used")
    assert err.count("\n") == 1
    assert "10 tasks x 1" in out
