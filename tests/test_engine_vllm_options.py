"""What is said of vLLM's options, whether or not it is installed."""

import pytest

from grpo_gym.config import RolloutConfig, TrainConfig
from grpo_gym.engines import vllm_start
from grpo_gym.engines.vllm import VLLMEngine
from grpo_gym.errors import UsageError
from grpo_gym.jobs import _support_warning
from grpo_gym.playing import run_rollouts


def test_without_vllm_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_start.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'grpo-gym\[vllm\]'"):
        VLLMEngine("tiny")


@pytest.mark.parametrize("name", ["seed", "max_num_seqs", "tensor_parallel_size"])
def test_arguments_that_the_engine_sets_itself_are_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_start.importlib.util, "find_spec", lambda name: object())
    with pytest.raises(UsageError, match=f"engine argument {name}"):
        VLLMEngine("tiny", arguments={name: 2})


def test_options() -> None:
    with pytest.raises(UsageError, match="engine_arg of engine hf is dtype"):
        run_rollouts(RolloutConfig(engine_arg=("block_size=16",)))
    assert _support_warning(TrainConfig()) is None
    warning = _support_warning(TrainConfig(top_p=0.9, min_p=0.1))
    assert warning is not None
    assert "leaves tokens out (top_p, min_p)" in warning
