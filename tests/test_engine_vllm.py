"""vLLM in the process: the same contract as the other engines, and weights that follow the learner."""

import importlib.util
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from grpo_agents import grpo
from grpo_gym.engines.base import Request, Sampling
from grpo_gym.engines.hf import HFEngine
from grpo_gym.engines.vllm import VLLMEngine
from grpo_gym.engines.vllm_start import start
from grpo_gym.errors import UsageError
from grpo_gym.learner import Learner, OptimiserOptions
from grpo_gym.sync import SyncError, verify_sync
from tests.in_flight import check_sync_in_flight, synced
from tests.models import VOCABULARY, tiny_model, tiny_tokenizer
from tests.sampled import sampled

# The CPU build has attention for heads of 32 and more.
SIZES = {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}
PROMPTS = [[1, 2, 3]] * 3 + [[5, 6, 7, 8, 9, 10, 11, 12]] * 2 + [[9]]
# Longer than two blocks of the cache.
LONG = np.random.default_rng(0).integers(3, VOCABULARY, 70).tolist()

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(400),
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
]


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VLLMEngine]:
    """One engine for all, as it takes seconds to start."""
    folder = tmp_path_factory.mktemp("model")
    model(0).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    before = process()
    engine = VLLMEngine(str(folder), max_lanes=8)
    assert process() == before, "starting vLLM changes nothing else"
    yield engine
    engine.close()


@pytest.fixture
def engine(started: VLLMEngine) -> Iterator[VLLMEngine]:
    """Idle, with the weights of `model(0)`, before and after every test."""
    yield started
    assert not started.busy
    if started.version:
        started.load(model(0).state_dict(), 0)


@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(temperature=0.6), Sampling(temperature=1.7)], ids=str
)
def test_sampled_logprobs_are_those_of_a_plain_forward_pass(
    engine: VLLMEngine, sampling: Sampling
) -> None:
    done = engine.generate(PROMPTS, replaced(sampling, max_tokens=12), range(6))
    assert len({tuple(c.token_ids) for c in done}) == 6, "every seed is another draw"
    for prompt, completion in zip(PROMPTS, done, strict=True):
        expected = plain(0, prompt, completion.token_ids, sampling.temperature)
        np.testing.assert_allclose(completion.logprobs, expected, atol=1e-4)


@pytest.mark.parametrize(
    "sampling", [Sampling(top_k=5), Sampling(top_p=0.6), Sampling(min_p=0.05)], ids=str
)
def test_with_less_support_logprobs_are_of_what_is_left(
    engine: VLLMEngine, sampling: Sampling
) -> None:
    done = engine.generate(PROMPTS, replaced(sampling, max_tokens=12), range(6))
    higher = []
    for prompt, completion in zip(PROMPTS, done, strict=True):
        higher.append(completion.logprobs - plain(0, prompt, completion.token_ids))
    assert np.concatenate(higher).min() > -1e-4
    assert np.concatenate(higher).max() > 0.1


def test_greedy_is_what_transformers_says(engine: VLLMEngine) -> None:
    sampling = Sampling(temperature=0, max_tokens=10)
    ours = engine.generate(PROMPTS, sampling, range(6))
    theirs = HFEngine(model(0)).generate(PROMPTS, sampling, range(6))
    for a, b in zip(ours, theirs, strict=True):
        assert a.token_ids.tolist() == b.token_ids.tolist()
        np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-4)


def test_top_logprobs_are_those_of_transformers(engine: VLLMEngine) -> None:
    sampling = Sampling(temperature=0, max_tokens=6, top_logprobs=30)
    (ours,) = engine.generate([LONG], sampling, [0])
    (theirs,) = HFEngine(model(0)).generate([LONG], sampling, [0])
    assert ours.top_ids is not None
    assert ours.top_logprobs is not None
    assert ours.top_ids.tolist() == theirs.top_ids.tolist()  # type: ignore[union-attr]
    np.testing.assert_allclose(ours.top_logprobs, theirs.top_logprobs, atol=1e-4)  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [VOCABULARY, VOCABULARY + 1, 10**6])
def test_there_are_no_more_top_logprobs_than_tokens(engine: VLLMEngine, count: int) -> None:
    sampling = Sampling(max_tokens=2, top_logprobs=count)
    (done,) = engine.generate([LONG], sampling, [0])
    assert done.top_ids is not None
    assert done.top_logprobs is not None
    assert np.sort(done.top_ids).tolist() == [list(range(VOCABULARY))] * 2
    np.testing.assert_allclose(np.exp(done.top_logprobs).sum(1), 1, atol=1e-4)


def test_lanes_join_one_by_one_and_draw_by_their_seed_alone(engine: VLLMEngine) -> None:
    alone = [
        engine.generate([PROMPTS[i % 6]], Sampling(max_tokens=4 + i), [2**63 + i])[0]
        for i in range(12)
    ]
    done, last = {}, {}
    for i in range(12):
        engine.submit([Request(i, tuple(PROMPTS[i % 6]), Sampling(max_tokens=4 + i), 2**63 + i)])
        for name, completion in engine.step():
            done[name], last[name] = completion, i
    assert last[0] < 11, "the first lane is done before the last has joined"
    while engine.busy:
        done |= dict(engine.step())
    for i in range(12):
        assert done[i].token_ids.tolist() == alone[i].token_ids.tolist()


def test_ends(engine: VLLMEngine) -> None:
    (free,) = engine.generate([LONG], Sampling(max_tokens=12), [3])
    assert (free.finish_reason, len(free.token_ids)) == ("length", 12)
    ids = free.token_ids.tolist()
    (cut,) = engine.generate([LONG], Sampling(max_tokens=12, stop_token_ids=(ids[5],)), [3])
    end = ids.index(ids[5]) + 1
    assert (cut.finish_reason, cut.token_ids.tolist()) == ("stop", ids[:end])
    tokenizer = tiny_tokenizer()
    text = tokenizer.decode(ids[6:8])
    (cut,) = engine.generate([LONG], Sampling(max_tokens=12, stop=(text,)), [3])
    assert cut.finish_reason == "stop"
    kept = cut.token_ids.tolist()
    assert kept == ids[: len(kept)]
    assert text in tokenizer.decode(kept)
    assert text not in tokenizer.decode(kept[:-1])
    (full,) = engine.generate([[3] * 510], Sampling(max_tokens=12), [3])
    assert (full.finish_reason, len(full.token_ids)) == ("length", 2)
    (eos,) = engine.generate([LONG], Sampling(temperature=0, max_tokens=40), [0])
    assert len(eos.token_ids) == 40, "no token ends a turn unless the request says so"


@pytest.mark.parametrize("temperature", [1.0, 0.5, 0])
def test_scores_are_those_of_transformers(engine: VLLMEngine, temperature: float) -> None:
    full = np.random.default_rng(1).integers(3, VOCABULARY, 512).tolist()
    sequences = [LONG, [7], [5, 6], full, LONG[:33]]
    ours = engine.score(sequences, temperature)
    theirs = HFEngine(model(0)).score(sequences, temperature)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, atol=5e-4)
    assert engine.score([LONG])[0] == pytest.approx(engine.score([LONG])[0])


def test_weights_follow_a_learner_and_a_stale_engine_is_found_out(engine: VLLMEngine) -> None:
    learner = Learner(model(0), grpo(), OptimiserOptions(learning_rate=1e-2))
    batch = sampled(engine, LONG)
    assert verify_sync(engine, learner, batch, 1.0, "fp32") < 1e-4
    metrics = learner.update(batch, learner.prepare(batch))
    assert metrics["behaviour_gap_max"] < 1e-4
    assert metrics["effective_samples"] == pytest.approx(1)
    with pytest.raises(SyncError):
        verify_sync(engine, learner, batch, 1.0, "fp32")
    engine.load(learner.state(), learner.version)
    assert verify_sync(engine, learner, batch, 1.0, "fp32") < 1e-4
    assert sampled(engine, LONG).rollouts[0].versions.tolist()[0] == 1


@pytest.mark.parametrize("broken", ["nothing", "tied head", "prefix cache"])
def test_after_a_load_nothing_of_the_old_weights_is_left(
    engine: VLLMEngine, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second and the third case show that the first one can fail."""
    if broken == "tied head":
        monkeypatch.setattr("grpo_gym.engines.vllm_weights.mend_tied_head", lambda model: None)
    if broken == "prefix cache":
        monkeypatch.setattr(engine._engine, "reset_prefix_cache", lambda **_: True)
    prompts = [LONG, LONG]
    engine.generate(prompts, Sampling(max_tokens=4), [0, 1])
    engine.load(dict(model(1).named_parameters()), 1)  # a tied matrix has one name here
    done = engine.generate(prompts, Sampling(max_tokens=4), [0, 1])
    gaps = [
        np.abs(completion.logprobs - plain(1, LONG, completion.token_ids)).max()
        for completion in done
    ]
    assert [completion.version for completion in done] == [1, 1]
    assert (max(gaps) < 1e-4) == (broken == "nothing"), gaps


def test_a_sync_under_lanes_in_flight(engine: VLLMEngine) -> None:
    """More lanes than run at once; prompts that share blocks of the cache with others."""
    check_sync_in_flight(engine, model, [*PROMPTS, LONG, LONG, LONG[:40], [7]])


def test_the_same_weights_again_change_no_lane(engine: VLLMEngine) -> None:
    """A lane that is encoded anew goes on with the draws of its seed."""
    prompts = [*PROMPTS, LONG]
    alone = synced(engine, prompts, 12, {})
    again = synced(engine, prompts, 12, {4: (model(0).state_dict(), 0)})
    for a, b in zip(alone, again, strict=True):
        assert a.token_ids.tolist() == b.token_ids.tolist()
        np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-5)


def test_scores_wait_for_lanes_in_flight(engine: VLLMEngine) -> None:
    engine.submit([Request(0, tuple(LONG), Sampling(max_tokens=50), 0)])
    engine.step()
    with pytest.raises(UsageError, match="1 requests are in flight"):
        engine.score([[1, 2]])
    engine.abort()
    assert engine.step() == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lm_head.weight": None, "model.norm.weight": None}, "lack model.norm.weight"),
        ({"more": torch.zeros(2)}, "have unknown more"),
        ({"model.norm.weight": torch.zeros(2)}, r"differ in model.norm.weight \(2,\)"),
    ],
)
def test_weights_of_another_model_are_refused(
    engine: VLLMEngine, change: dict[str, Any], message: str
) -> None:
    state = {**model(1).state_dict(), **change}
    state = {name: value for name, value in state.items() if value is not None}
    before = engine.score([LONG])[0]
    with pytest.raises(UsageError, match=message):
        engine.load(state, 1)
    np.testing.assert_array_equal(engine.score([LONG])[0], before)


@pytest.mark.parametrize(
    ("prompt", "sampling", "message"),
    [
        ([], Sampling(), "empty prompt"),
        ([3] * 512, Sampling(), "leaves no room"),
        ([VOCABULARY], Sampling(), "vocabulary"),
        ([3], Sampling(temperature=0.001), "at least 0.01"),
        ([3], Sampling(temperature=2.5), "vLLM rejects a request: temperature"),
    ],
)
def test_what_cannot_be_sampled_is_refused_and_nothing_is_in_flight(
    engine: VLLMEngine, prompt: list[int], sampling: Sampling, message: str
) -> None:
    good = Request(0, (1, 2, 3), Sampling(max_tokens=3), 0)
    with pytest.raises(UsageError, match=message):
        engine.submit([good, Request(1, tuple(prompt), sampling, 0)])
    assert not engine.busy
    engine.submit([good])
    with pytest.raises(UsageError, match="id 0 is in flight"):
        engine.submit([good])
    while engine.busy:
        engine.step()


def test_what_vllm_raises_reaches_the_caller_and_drops_the_lanes(
    engine: VLLMEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("the device is gone")

    engine.submit([Request(0, (1, 2, 3), Sampling(), 0)])
    with monkeypatch.context() as patch:
        patch.setattr(engine._engine.engine_core, "get_output", fail)
        with pytest.raises(RuntimeError, match="the device is gone"):
            engine.step()
    assert not engine.busy
    engine.submit([Request(0, (1, 2, 3), Sampling(), 0)])
    engine._engine.abort_request(["0"])
    with pytest.raises(RuntimeError, match="lost 1 requests"):
        engine.step()


def test_the_process_is_left_alone(started: VLLMEngine, tmp_path: Path) -> None:
    states = process()
    started.generate(PROMPTS, Sampling(max_tokens=3), range(6))
    assert process() == states
    with pytest.raises(UsageError, match="vLLM does not start"):
        start(str(tmp_path), dtype="float32", context_length=None, max_lanes=8, arguments={})
    assert process() == states


def test_there_is_one_at_a_time(started: VLLMEngine) -> None:
    """vLLM ends with an engine what another would need."""
    with pytest.raises(UsageError, match=r"has a vLLM engine already.* grpo-gym serve"):
        VLLMEngine("any model")
    assert started.generate([[1]], Sampling(max_tokens=3), [0])


def model(seed: int) -> PreTrainedModel:
    return tiny_model(seed, **SIZES)


def plain(seed: int, prompt: list[int], completion: Any, temperature: float = 1.0) -> Any:
    """Log-probs of a completion by one forward pass."""
    ids = torch.tensor([[*prompt, *map(int, completion)]])
    with torch.no_grad():
        logits = model(seed)(ids, use_cache=False).logits[0].double() / temperature
    logprobs = logits.log_softmax(-1)[:-1].gather(1, ids[0, 1:, None])[:, 0]
    return logprobs[len(prompt) - 1 :].numpy()


def replaced(sampling: Sampling, **changes: Any) -> Sampling:
    return Sampling(**{**sampling.__dict__, **changes})


def process() -> tuple[Any, ...]:
    """What vLLM likes to change in the process it runs in."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("VLLM_")}
    own = (
        torch.set_num_threads,
        sys.excepthook,
        torch.get_num_threads(),
        torch.get_default_dtype(),
    )
    return environment, own, generators()


def generators() -> tuple[Any, ...]:
    legacy = np.random.get_state()  # noqa: NPY002
    return random.getstate(), legacy[1].tolist(), torch.random.get_rng_state().tolist()  # type: ignore[union-attr]
