"""What vLLM is told on a GPU, in order. The CPU build does not sleep, so this is a recording of the calls."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from grpo_gym.engines import vllm as module
from grpo_gym.engines import vllm_weights
from grpo_gym.engines.base import Request, Sampling
from grpo_gym.engines.vllm import VLLMEngine
from grpo_gym.errors import UsageError
from tests.models import tiny_model


class Recorder:
    """In the place of vLLM's engine, by the names of its `LLMEngine`."""

    def __init__(self, sleeps: bool) -> None:
        self.told: list[Any] = []
        self.weights: dict[str, torch.Tensor] = {}
        self.label = "default"
        self.model_config = SimpleNamespace(
            max_model_len=512,
            hf_config=tiny_model().config,
            get_vocab_size=lambda: 400,
            enable_sleep_mode=sleeps,
        )

    def get_weight_version(self) -> str:
        return self.label

    def set_weight_version(self, label: str) -> None:
        self.label = label
        self.told.append(f"version {label}")

    def sleep(self, level: int) -> None:
        self.told.append(f"sleep {level}")

    def wake_up(self, tags: list[str]) -> None:
        self.told.append(f"wake {tags}")

    def collective_rpc(self, method: Any, args: tuple[Any, ...]) -> None:
        assert method is vllm_weights.take_weights
        (weights,) = args
        self.weights = dict(weights)
        self.told.append("weights")

    def reset_prefix_cache(self, reset_running_requests: bool) -> bool:
        self.told.append(f"drop the cache, running={reset_running_requests}")
        return True

    def apply_model(self, function: Any) -> None:
        raise AssertionError("nothing is computed in the sleep")

    add_request = apply_model


def start(monkeypatch: pytest.MonkeyPatch, sleeps: bool) -> tuple[VLLMEngine, Recorder]:
    recorder = Recorder(sleeps)
    monkeypatch.setattr(module, "start", lambda *_, **__: recorder)
    engine = VLLMEngine("some model")
    assert engine.version == 0
    recorder.told.clear()
    return engine, recorder


LOADED = ["weights", "drop the cache, running=True", "version 3"]


def test_it_sleeps_until_weights_come(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, vllm = start(monkeypatch, sleeps=True)
    emptied: list[int] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(len(vllm.told)))
    state = tiny_model(1).state_dict()
    engine.sleep()
    engine.sleep()
    assert vllm.told == ["sleep 2"]
    engine.load(state, 3)
    woken = ["wake ['weights']", "weights", "wake ['kv_cache']", *LOADED[1:]]
    assert vllm.told[1:] == woken
    assert emptied == [1, 3], "torch lets go of its memory before vLLM takes any"
    engine.load(state, 4)
    assert vllm.told[1 + len(woken) :] == [*LOADED[:2], "version 4"], "awake, it is not woken"


def test_the_learners_own_tensors_are_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """No copy on the way, and none on the disk."""
    engine, vllm = start(monkeypatch, sleeps=True)
    state = tiny_model(1).state_dict()
    engine.load(state, 3)
    assert vllm.weights
    for name, tensor in vllm.weights.items():
        assert tensor.data_ptr() == state[name].data_ptr()


def test_asleep_it_has_no_weights_to_use(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, vllm = start(monkeypatch, sleeps=True)
    engine.sleep()
    with pytest.raises(RuntimeError, match="load some"):
        engine.submit([Request(0, (1, 2), Sampling(), 0)])
    with pytest.raises(RuntimeError, match="load some"):
        engine.score([[1, 2]])
    with pytest.raises(UsageError, match="lack"):
        engine.load({}, 1)
    assert vllm.told == ["sleep 2"], "what does not fit wakes nobody"


def test_without_sleep_mode_it_stays_awake(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, vllm = start(monkeypatch, sleeps=False)
    engine.sleep()
    engine.load(tiny_model(1).state_dict(), 3)
    assert vllm.told == LOADED
