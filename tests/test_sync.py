"""The engine is shown to sample from the learner's policy, or it is said that it does not."""

from typing import Any

import numpy as np
import pytest
import torch

from grpo_agents import grpo
from grpo_gym.engines.hf import HFEngine
from grpo_gym.learner import Learner, OptimiserOptions
from grpo_gym.sync import SyncError, verify_sync
from grpo_gym.types import Batch, Group, Rollout
from tests.models import tiny_model

VERSION = 1


def rollout(prompt: int, sampled: int) -> Rollout:
    return Rollout(
        task_id="t",
        prompt_ids=np.arange(3, 3 + prompt),
        token_ids=np.arange(50, 50 + sampled),
        mask=np.ones(sampled, dtype=np.bool_),
        logprobs=np.full(sampled, -1.0),
        versions=np.zeros(sampled, dtype=np.int64),
    )


def batch(*lengths: tuple[int, int]) -> Batch:
    return Batch(tuple(Group("t", (rollout(*pair),)) for pair in lengths))


@pytest.fixture(scope="module")
def learner() -> Learner:
    return Learner(tiny_model(), grpo(), OptimiserOptions(learning_rate=1e-3))


def engine(seed: int = 0, **config: Any) -> HFEngine:
    return HFEngine(tiny_model(seed, **config))


def test_equal_weights_pass_at_any_temperature(learner: Learner) -> None:
    for temperature in (0.5, 1.0):
        gap = verify_sync(engine(), learner, batch((5, 7), (9, 3)), temperature, "fp32")
        assert 0 <= gap < 1e-4


def test_an_engine_with_the_weights_of_before_is_found_out(learner: Learner) -> None:
    stale = engine()
    other = Learner(tiny_model(1), grpo(), OptimiserOptions(learning_rate=1e-3))
    with pytest.raises(SyncError, match="does not have the learner's weights"):
        verify_sync(stale, other, batch((5, 7)), 1.0, "fp32")
    stale.load(other.state(), VERSION)
    assert verify_sync(stale, other, batch((5, 7)), 1.0, "fp32") < 1e-4


@pytest.mark.parametrize("name", ["lm_head.weight", "model.norm.weight"])
def test_one_stale_tensor_is_enough(name: str) -> None:
    model = tiny_model(tie_word_embeddings=False)
    learner = Learner(model, grpo(), OptimiserOptions(learning_rate=1e-3))
    stale = engine(tie_word_embeddings=False)
    state = {key: value.clone() for key, value in learner.state().items()}
    noise = torch.randn(state[name].shape, generator=torch.Generator().manual_seed(0))
    state[name] += 0.1 * noise
    stale.load(state, VERSION)
    with pytest.raises(SyncError):
        verify_sync(stale, learner, batch((5, 7)), 1.0, "fp32")


def test_weights_that_are_not_numbers_are_found_out(learner: Learner) -> None:
    broken = engine()
    with torch.no_grad():
        broken.model.get_output_embeddings().weight.fill_(torch.nan)
    with pytest.raises(SyncError, match="nan"):
        verify_sync(broken, learner, batch((5, 7)), 1.0, "fp32")


@pytest.mark.parametrize("place", [0, 1, 2])
def test_rollouts_without_tokens_do_not_hide_a_difference(learner: Learner, place: int) -> None:
    lengths = [(1, 0), (1, 0), (1, 0)]
    lengths[place] = (5, 7)
    assert verify_sync(engine(), learner, batch(*lengths), 1.0, "fp32") < 1e-4
    with pytest.raises(SyncError):
        verify_sync(engine(1), learner, batch(*lengths), 1.0, "fp32")


def test_nothing_to_compare_is_no_proof(learner: Learner) -> None:
    with pytest.raises(SyncError, match="nan"):
        verify_sync(engine(), learner, batch((1, 0)), 1.0, "fp32")


def test_the_probe_is_no_longer_than_the_context() -> None:
    model = tiny_model(model_type="gpt2", n_positions=16)
    learner = Learner(model, grpo(), OptimiserOptions(learning_rate=1e-3))
    short = HFEngine(tiny_model(model_type="gpt2", n_positions=16))
    assert verify_sync(short, learner, batch((40, 0), (5, 7)), 1.0, "fp32") < 1e-4


def test_an_engine_that_another_process_compares_is_asked_for_nothing(learner: Learner) -> None:
    follower = engine(1)
    follower.leads = False
    assert verify_sync(follower, learner, batch((5, 7)), 1.0, "fp32") == 0.0


class Rounding(HFEngine):
    """An engine one of whose log-probs is off by `far`, and all others by `near`."""

    far, near = 0.0, 0.0

    def score(self, sequences: Any, temperature: float = 1.0) -> Any:
        scores = [s + self.near for s in super().score(sequences, temperature)]
        scores[0][-1] += self.far
        return scores


def test_half_precision_is_judged_by_the_average(learner: Learner) -> None:
    rounding = Rounding(tiny_model())
    rounding.far = 0.9
    gap = verify_sync(rounding, learner, batch((5, 7), (9, 3)), 1.0, "bf16")
    assert gap == pytest.approx(0.9, abs=1e-3)
    with pytest.raises(SyncError, match=r"up to 0\.9"):
        verify_sync(rounding, learner, batch((5, 7), (9, 3)), 1.0, "fp32")
    rounding.far, rounding.near = 0.0, 0.11
    with pytest.raises(SyncError, match=r"0\.11 on average"):
        verify_sync(rounding, learner, batch((5, 7), (9, 3)), 1.0, "bf16")
