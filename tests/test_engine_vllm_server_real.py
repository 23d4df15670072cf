"""The real server of vLLM's CPU build, over loopback: the same contract as the engine in the process."""

import copy
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

import grpo_gym
from grpo_agents import grpo
from grpo_gym.cli import main
from grpo_gym.engines.base import EngineFailure, Request, Sampling
from grpo_gym.engines.hf import HFEngine
from grpo_gym.engines.http import ServerError
from grpo_gym.engines.vllm_server import VLLMServerEngine
from grpo_gym.errors import UsageError
from grpo_gym.learner import Learner, OptimiserOptions
from grpo_gym.monitor import read_metrics
from grpo_gym.policy import Policy, load_policy
from grpo_gym.sync import SyncError, verify_sync
from grpo_gym.types import Completion
from tests.commands import ended
from tests.sampled import sampled
from tests.vllm_serving import KEY, Server, running

PROMPTS = [[1, 2, 3]] * 3 + [[5, 6, 7, 8, 9, 10, 11, 12]] * 2 + [[9]]
# Longer than two blocks of the cache.
LONG = np.random.default_rng(0).integers(3, 380, 70).tolist()

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
]


@pytest.fixture
def url(vllm_server: Server) -> str:
    return vllm_server.url


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", KEY)


@pytest.fixture
def policy() -> Policy:
    return load_policy("tiny")


@pytest.fixture
def engine(url: str, key: None, policy: Policy) -> Iterator[VLLMServerEngine]:
    engine = VLLMServerEngine(url, policy.model.config, dtype="float32", timeout_s=120)
    engine.load(policy.model.state_dict(), 0)
    yield engine
    engine.close()


@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(temperature=0.6), Sampling(temperature=1.7)], ids=str
)
def test_sampled_logprobs_are_those_of_transformers(
    engine: VLLMServerEngine, policy: Policy, sampling: Sampling
) -> None:
    sampling = Sampling(**{**sampling.__dict__, "max_tokens": 12})
    done = engine.generate(PROMPTS, sampling, range(6))
    for prompt, completion in zip(PROMPTS, done, strict=True):
        expected = scored(policy.model, prompt, completion, sampling.temperature)
        np.testing.assert_allclose(completion.logprobs, expected, atol=1e-4)
    again = engine.generate(PROMPTS, sampling, range(6))
    assert [c.token_ids.tolist() for c in again] == [c.token_ids.tolist() for c in done]


def test_greedy_and_top_logprobs_are_what_transformers_says(
    engine: VLLMServerEngine, policy: Policy
) -> None:
    sampling = Sampling(temperature=0, max_tokens=6, top_logprobs=30)
    (ours,) = engine.generate([LONG], sampling, [0])
    (theirs,) = HFEngine(policy.model).generate([LONG], sampling, [0])
    assert ours.token_ids.tolist() == theirs.token_ids.tolist()
    assert ours.top_ids is not None
    assert theirs.top_logprobs is not None
    assert ours.top_ids.shape == (6, 30)
    np.testing.assert_allclose(ours.top_logprobs, theirs.top_logprobs, atol=1e-4)  # type: ignore[arg-type]
    sampled_one = engine.generate([LONG], Sampling(max_tokens=20, top_logprobs=3), [1])[0]
    assert sampled_one.top_logprobs is not None
    assert (np.diff(sampled_one.top_logprobs) <= 0).all()


@pytest.mark.parametrize(
    "sampling", [Sampling(top_k=5), Sampling(top_p=0.6), Sampling(min_p=0.05)], ids=str
)
def test_with_less_support_logprobs_are_of_what_is_left(
    engine: VLLMServerEngine, policy: Policy, sampling: Sampling
) -> None:
    done = engine.generate(
        [LONG] * 6, Sampling(**{**sampling.__dict__, "max_tokens": 12}), range(6)
    )
    higher = np.concatenate([c.logprobs - scored(policy.model, LONG, c) for c in done])
    assert higher.min() > -1e-4
    assert higher.max() > 0.01


def test_ends(engine: VLLMServerEngine, policy: Policy) -> None:
    (free,) = engine.generate([LONG], Sampling(max_tokens=12), [3])
    assert (free.finish_reason, len(free.token_ids)) == ("length", 12)
    ids = free.token_ids.tolist()
    (cut,) = engine.generate([LONG], Sampling(max_tokens=12, stop_token_ids=(ids[0],)), [3])
    assert (cut.finish_reason, cut.token_ids.tolist()) == ("stop", ids[:1])
    text = policy.tokenizer.decode(ids[:1])
    (cut,) = engine.generate([LONG], Sampling(max_tokens=12, stop=(str(text),)), [3])
    assert (cut.finish_reason, cut.token_ids.tolist()) == ("stop", ids[:1])
    room = engine.context_length - 2
    (full,) = engine.generate([[3] * room], Sampling(max_tokens=12), [3])
    assert (full.finish_reason, len(full.token_ids)) == ("length", 2)


@pytest.mark.parametrize("temperature", [1.0, 0.5, 0])
def test_scores_are_those_of_transformers(
    engine: VLLMServerEngine, policy: Policy, temperature: float
) -> None:
    full = np.random.default_rng(1).integers(3, 380, engine.context_length).tolist()
    sequences = [LONG, [7], [5, 6], [5, 0], [0, 1], full]
    ours, theirs = (e.score(sequences, temperature) for e in (engine, HFEngine(policy.model)))
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, atol=5e-4)


def test_weights_follow_a_learner_and_a_stale_server_is_found_out(
    engine: VLLMServerEngine, policy: Policy
) -> None:
    learner = Learner(policy.model, grpo(), OptimiserOptions(learning_rate=1e-2))
    batch = sampled(engine, LONG)
    assert verify_sync(engine, learner, batch, 1.0, "fp32") < 1e-4
    metrics = learner.update(batch, learner.prepare(batch))
    assert metrics["behaviour_gap_max"] < 1e-4
    with pytest.raises(SyncError):
        verify_sync(engine, learner, batch, 1.0, "fp32")
    engine.load(learner.state(), learner.version)
    assert verify_sync(engine, learner, batch, 0.7, "fp32") < 1e-4
    after = sampled(engine, LONG).rollouts[0]
    assert after.versions.tolist() == [1] * len(after.versions)


@pytest.mark.parametrize("cache", ["dropped", "kept"])
def test_after_a_load_nothing_of_the_old_weights_is_left(
    engine: VLLMServerEngine, policy: Policy, cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second case shows that the first one can fail."""
    if cache == "kept":
        post = engine._control._post

        def kept(path: str, body: Any = None, *more: float) -> Any:
            if path.startswith("/reset_prefix_cache"):
                return {"success": True}
            return post(path.replace("mode=wait", "mode=wait&clear_cache=false"), body, *more)

        monkeypatch.setattr(engine._control, "_post", kept)
    engine.generate([LONG] * 2, Sampling(max_tokens=4), [0, 1])
    shaken(policy.model, 0)
    engine.load(policy.model.state_dict(), 5)
    done = engine.generate([LONG] * 2, Sampling(max_tokens=4), [0, 1])
    gaps = [np.abs(c.logprobs - scored(policy.model, LONG, c)).max() for c in done]
    assert [c.version for c in done] == [5, 5]
    assert (max(gaps) < 1e-4) == (cache == "dropped"), gaps


def test_lanes_join_while_others_are_in_flight(engine: VLLMServerEngine) -> None:
    alone = [
        engine.generate([PROMPTS[i % 6]], Sampling(max_tokens=4 + 20 * i), [i])[0] for i in range(8)
    ]
    done = {}
    for i in reversed(range(8)):
        engine.submit([Request(i, tuple(PROMPTS[i % 6]), Sampling(max_tokens=4 + 20 * i), i)])
        done |= dict(engine.step())
    while engine.busy:
        done |= dict(engine.step())
    for i in range(8):
        assert done[i].token_ids.tolist() == alone[i].token_ids.tolist()


def test_weights_that_come_under_requests_in_flight(
    engine: VLLMServerEngine, url: str, policy: Policy
) -> None:
    """Each token has the version that sampled it, and the log-prob of that policy."""
    with torch.no_grad():  # a policy that is never sure
        policy.model.get_parameter("model.norm.weight").mul_(0.2)
    requests = [
        Request(i, tuple(LONG[: 5 + 9 * i]), Sampling(max_tokens=200 + i), i) for i in range(6)
    ]
    for first, pause in zip((0, 3, 6, 9), (0.2, 0.1, 0.05, 0.0), strict=True):
        versions = (first, first + 1, first + 2)
        judges = {}
        for version in versions:
            if version > first:
                time.sleep(pause)
                shaken(policy.model, version)
            engine.load(policy.model.state_dict(), version)
            judges[version] = copy.deepcopy(policy.model)
            if version == first:
                engine.submit(requests)
                wait_for(lambda: running(url) > 0 or engine_has_answers(engine))
        seen = {
            check_versions(request, completion, judges)
            for request, completion in rest(engine, requests)
        }
        if versions in seen:
            return
    pytest.fail("no request was in flight long enough to see two updates")


def engine_has_answers(engine: VLLMServerEngine) -> bool:
    """Whether a request ended before it was seen to run."""
    return any(flight.answer.done() for flight in engine._flying.values())


def rest(engine: VLLMServerEngine, requests: list[Request]) -> list[tuple[Request, Completion]]:
    """What is still to come, beside what it answers."""
    done: dict[int, Completion] = {}
    while engine.busy:
        done |= dict(engine.step())
    return [(request, done[request.id]) for request in requests]


def check_versions(
    request: Request, completion: Completion, judges: dict[int, Any]
) -> tuple[int, ...]:
    """Every token's log-prob is that of its version's policy, and of no other; returns the versions."""
    versions = completion.token_versions
    assert np.all(np.diff(versions) >= 0)
    assert completion.version == versions[-1]
    for version in np.unique(versions):
        expected = scored(judges[int(version)], list(request.prompt_ids), completion)
        ours, its = completion.logprobs, versions == version
        np.testing.assert_allclose(ours[its], expected[its], atol=1e-4)
        assert its.all() or np.abs(ours - expected)[~its].max() > 0.01, "the check can fail"
    return tuple(np.unique(versions).tolist())


def test_dropped_requests_leave_the_server_too(
    engine: VLLMServerEngine, url: str, policy: Policy
) -> None:
    engine.submit([Request(i, (1, 2, 3), Sampling(max_tokens=900), i) for i in range(8)])
    engine.step()
    wait_for(lambda: running(url) == 8)
    with pytest.raises(UsageError, match="8 requests are in flight"):
        engine.score([[1, 2]])
    engine.abort()
    wait_for(lambda: running(url) == 0)
    engine.load(policy.model.state_dict(), 1)
    assert engine.generate([[3]], Sampling(max_tokens=2), [0])[0].version == 1


def test_a_second_learner_on_one_server_is_found_out(
    engine: VLLMServerEngine, url: str, policy: Policy
) -> None:
    other = VLLMServerEngine(url, policy.model.config)
    other.load(policy.model.state_dict(), 0)
    with pytest.raises(EngineFailure, match="somebody else loads weights"):
        engine.generate([[3]], Sampling(max_tokens=2), [0])
    other.close()


def test_what_the_server_rejects_stops_the_run_with_its_reason(engine: VLLMServerEngine) -> None:
    with pytest.raises(ServerError, match=r"answers 400: temperature must be in \[0, 2\]"):
        engine.generate([[3]], Sampling(temperature=2.5), [0])


def test_without_the_key_nothing_is_sampled(
    engine: VLLMServerEngine, url: str, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    for value in (None, "another"):
        if value is None:
            monkeypatch.delenv("VLLM_API_KEY")
        else:
            monkeypatch.setenv("VLLM_API_KEY", value)
        stranger = VLLMServerEngine(url, policy.model.config)
        with pytest.raises(ServerError, match=r"401.*" if value else "401.*set VLLM_API_KEY"):
            stranger.generate([[3]], Sampling(max_tokens=2), [0])
        stranger.close()


@pytest.mark.parametrize("env", ["Arithmetic", "Calculator"])
def test_a_run(url: str, key: None, env: str, tmp_path: Path) -> None:
    words = f"train --env grpo_gym/{env}-v0 --steps 3 --groups-per-step 4 --group-size 4"
    words += f" --max-tokens 24 --engine {url} --run-dir {tmp_path / 'run'}"
    assert main(words.split()) == 0
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert len(rows) == 3
    for row in rows:
        assert 0 < row["sync_gap"] < 1e-4
        assert row["behaviour_gap_max"] < 1e-4
        assert row["effective_samples"] == pytest.approx(1)
    # The server has the weights of step 3 now; another run begins with its own.
    words = f"eval --env grpo_gym/{env}-v0 --tasks 4 --n 2 --k 1 --max-tokens 24 --engine {url}"
    assert main(words.split()) == 0


def test_learning(url: str, key: None, tmp_path: Path) -> None:
    """The quickstart's task; by chance alone, 50 tasks would differ by 0.06."""
    run = grpo_gym.train(
        engine=url,
        steps=16,
        max_tokens=24,
        eval_tasks=50,
        eval_n=4,
        eval_k=(1,),
        run_dir=tmp_path / "run",
    )
    assert max(row["sync_gap"] for row in read_metrics(run.metrics_path)) < 1e-3
    first, last = (run.evaluations[step].pass_at[1].mean for step in (0, 16))
    assert last > first + 0.2, (first, last)


def test_a_server_that_is_killed_stops_the_run(vllm_server: Server, tmp_path: Path) -> None:
    """With its reason, and the last whole step saved. The last test: another would start a server."""
    run = tmp_path / "run"
    words = f"train --steps 1000 --save-every 0 --max-tokens 24 --engine {vllm_server.url} --run-dir {run}"
    training = subprocess.Popen(
        [sys.executable, "-m", "grpo_gym.cli", *words.split()],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=os.environ | {"VLLM_API_KEY": KEY},
        text=True,
    )
    metrics = run / "metrics.jsonl"
    wait_for(lambda: metrics.exists() and len(read_metrics(metrics)) >= 2)
    vllm_server.kill()
    _, err = ended(training, 120)
    (line,) = err.splitlines()
    assert training.returncode == 1
    assert "broke off" in line or "cannot be reached" in line
    steps = len(read_metrics(metrics))
    assert (run / "checkpoints" / f"step-{steps:06d}").is_dir()


def scored(
    model: PreTrainedModel, prompt: list[int], completion: Any, temperature: float = 1.0
) -> Any:
    """Log-probs of a completion by transformers."""
    sequence = [*prompt, *completion.token_ids.tolist()]
    return HFEngine(model).score([sequence], temperature)[0][len(prompt) - 1 :]


def shaken(model: PreTrainedModel, seed: int) -> None:
    """Change all weights visibly."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 + 0.2 * torch.randn(parameter.shape, generator=generator))


def wait_for(condition: Any) -> None:
    until = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)
