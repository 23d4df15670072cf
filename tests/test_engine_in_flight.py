"""Weights that come while requests are in flight; tests/test_engine_vllm.py has the same of vLLM."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from grpo_gym.engines.base import Request, Sampling
from grpo_gym.engines.hf import HFEngine
from grpo_gym.engines.scripted import ScriptedEngine
from grpo_gym.errors import UsageError
from grpo_gym.rendering import Renderer
from grpo_gym.types import Completion
from tests.in_flight import check_sync_in_flight, synced
from tests.models import tiny_model, tiny_tokenizer

PROMPTS = [[1, 2, 3]] * 3 + [[5, 6, 7, 8, 9, 10, 11, 12]] * 2 + [[9]]
KINDS: dict[str, dict[str, Any]] = {
    "qwen2": {},
    "gemma3_text": {
        "sliding_window": 6,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "bloom": {"n_layer": 2, "n_head": 4},
}


@pytest.mark.parametrize("max_lanes", [256, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_a_sync_under_lanes_in_flight(kind: str, max_lanes: int) -> None:
    def model(seed: int) -> Any:
        return tiny_model(seed, kind, **KINDS[kind])

    check_sync_in_flight(HFEngine(model(0), max_lanes=max_lanes, context_length=64), model, PROMPTS)


def test_the_same_weights_again_change_no_lane() -> None:
    engine = HFEngine(tiny_model())
    alone = synced(engine, PROMPTS, 12, {})
    again = synced(engine, PROMPTS, 12, {4: (tiny_model().state_dict(), 0)})
    for a, b in zip(alone, again, strict=True):
        assert a.token_ids.tolist() == b.token_ids.tolist()
        np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-5)


def test_a_module_that_is_trained_between_two_steps() -> None:
    """The engine may share the learner's very module: then `load` copies nothing, and still counts."""
    model = tiny_model()
    engine = HFEngine(model)
    engine.submit([Request(0, (5, 6), Sampling(max_tokens=6), 0)])
    engine.step()
    with torch.no_grad():
        for parameter, other in zip(model.parameters(), tiny_model(1).parameters(), strict=True):
            parameter.copy_(other)
    engine.load(model.state_dict(), 1)
    done: list[tuple[int, Completion]] = []
    while engine.busy:
        done += engine.step()
    ((_, completion),) = done
    assert completion.token_versions.tolist() == [0, 1, 1, 1, 1, 1]
    (scores,) = HFEngine(tiny_model(1)).score([[5, 6, *completion.token_ids.tolist()]])
    np.testing.assert_allclose(completion.logprobs[1:], scores[2:], atol=1e-5)


def test_weights_that_do_not_fit_leave_the_lanes_as_they_were() -> None:
    engine = HFEngine(tiny_model())
    alone = synced(engine, PROMPTS, 5, {})
    engine.submit([Request(0, (1, 2, 3), Sampling(max_tokens=5), 0)])
    engine.step()
    with pytest.raises(UsageError, match="lack"):
        engine.load({}, 1)
    done: list[tuple[int, Completion]] = []
    while engine.busy:
        done += engine.step()
    assert done[0][1].token_ids.tolist() == alone[0].token_ids.tolist()
    assert done[0][1].token_versions.tolist() == [0] * 5


def test_a_scripted_policy_says_which_version_spoke() -> None:
    engine = ScriptedEngine(Renderer(tiny_tokenizer()), ["one two three"])
    engine.submit([Request(0, (1,), Sampling(), 0)])
    engine.step()
    engine.load({}, 3)
    done: list[tuple[int, Completion]] = []
    while engine.busy:
        done += engine.step()
    versions = done[0][1].token_versions.tolist()
    assert versions == [0] + [3] * (len(versions) - 1)


def test_versions_come_one_for_each_token() -> None:
    make = partial(Completion, np.array([1, 2]), np.array([-1.0, -2.0]), "stop", 3)
    assert make().token_versions.tolist() == [3, 3]
    assert make(versions=np.array([2, 3])).token_versions.tolist() == [2, 3]
    with pytest.raises(ValueError, match="2 tokens has 1 versions"):
        make(versions=np.array([3]))
