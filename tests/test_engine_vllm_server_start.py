"""`grpo-gym serve` and what the server loads, without vLLM: commands, folders, files, options."""

import importlib.util
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from grpo_gym.cli import main
from grpo_gym.config import EvalConfig, TrainConfig
from grpo_gym.engines import vllm_server_start, vllm_start, vllm_weights
from grpo_gym.engines.base import Sampling
from grpo_gym.engines.vllm_server import VLLMServerEngine
from grpo_gym.engines.vllm_server_worker import WeightsExtension, weights_folder
from grpo_gym.errors import UsageError
from grpo_gym.lora import LoraOptions, add_adapter, save_adapter
from grpo_gym.policy import TINY_FOLDER, load_policy
from grpo_gym.sampler import make_engine
from tests.fake_vllm import FakeVLLM
from tests.loopback import serving
from tests.models import tiny_model

NAME = f"weights-{'0' * 32}.safetensors"


@pytest.fixture
def become(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the process would become."""
    became: list[Any] = []
    find = importlib.util.find_spec
    known = lambda name, *more: name if name == "vllm" else find(name, *more)  # noqa: E731
    monkeypatch.setattr(vllm_server_start.importlib.util, "find_spec", known)
    monkeypatch.setattr(os, "execve", lambda *words: became.extend(words) or sys.exit(0))
    return became


def test_serve_becomes_vllms_server_with_what_training_needs(become: list[Any]) -> None:
    assert main(["serve", "tiny", "--port=8123", "--dtype", "bfloat16"]) == 0
    program, words, environment = become
    assert program == words[0] == sys.executable
    assert f"--model={TINY_FOLDER}" in words
    for needed in (
        "--host=127.0.0.1",
        "--logprobs-mode=processed_logprobs",
        "--max-logprobs=-1",
        "--generation-config=vllm",
        "--enable-scale-out",
        "--worker-extension-cls=grpo_gym.engines.vllm_server_worker.WeightsExtension",
    ):
        assert needed in words
    assert words[-3:] == ["--port=8123", "--dtype", "bfloat16"], "the user's come last, and win"
    assert environment["VLLM_SERVER_DEV_MODE"] == "1"
    assert "PATH" in environment
    extension = next(word for word in words if "extension" in word).split("=")[1]
    module, _, name = extension.rpartition(".")
    assert getattr(importlib.import_module(module), name) is WeightsExtension


@pytest.mark.parametrize("of", [vllm_start.environment, vllm_server_start.serve_environment])
def test_on_a_gpu_float32_is_not_rounded_to_tf32(
    of: Callable[..., dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton would, in attention: log-probs then differ from the learner's by more than a sync may."""
    monkeypatch.delenv("TRITON_F32_DEFAULT", raising=False)
    assert of(gpu=True)["TRITON_F32_DEFAULT"] == "ieee"
    assert "TRITON_F32_DEFAULT" not in of(gpu=False)


def test_a_gpu_needs_none_of_the_cpus_settings() -> None:
    cpu, gpu = (vllm_server_start.serve_command("m", [], gpu=gpu) for gpu in (False, True))
    assert set(cpu) - set(gpu) == {
        "--enforce-eager",
        "--block-size=32",
        "--no-enable-chunked-prefill",
    }
    assert "VLLM_CPU_KVCACHE_SPACE" not in vllm_server_start.serve_environment(gpu=True)


def test_the_users_environment_goes_over_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "7")
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "0")
    environment = vllm_server_start.serve_environment(gpu=False)
    assert environment["VLLM_CPU_KVCACHE_SPACE"] == "7"
    assert environment["VLLM_SERVER_DEV_MODE"] == "1", "nothing works without it"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "say which model"),
        (["--port=1"], "say which model"),
        (["./no-such-folder"], "there is no model folder"),
    ],
)
def test_serve_says_what_is_wrong(
    words: list[str], message: str, become: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert become == []


def test_serve_takes_no_adapter(
    become: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = load_policy("tiny").model
    add_adapter(model, LoraOptions(rank=2), base="tiny")
    save_adapter(model, tmp_path)
    assert main(["serve", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "is an adapter: serve its base, tiny" in line
    assert become == []


def test_serve_needs_vllm_and_help_does_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(vllm_server_start.importlib.util, "find_spec", lambda name: None)
    assert main(["serve", "--help"]) == 0
    assert main(["serve", "tiny"]) == 2
    assert "pip install 'grpo-gym[vllm]'" in capsys.readouterr().err


@pytest.fixture
def worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[WeightsExtension, list[tuple[str, torch.Tensor]]]:
    """An extension, and the weights that it has taken."""
    taken: list[tuple[str, torch.Tensor]] = []
    monkeypatch.setenv("GRPO_GYM_WEIGHTS_DIR", str(tmp_path))
    monkeypatch.setattr(vllm_weights, "take_weights", lambda _, weights: taken.extend(weights))
    return WeightsExtension(), taken


def test_the_extension_takes_a_file_of_its_folder(worker: Any, tmp_path: Path) -> None:
    extension, taken = worker
    save_file({"a": torch.arange(3.0)}, tmp_path / NAME)
    assert extension.grpo_gym_load(NAME) == {"loaded": NAME}
    assert taken[0][1].tolist() == [0, 1, 2]


@pytest.mark.parametrize("name", ["../x.safetensors", "/etc/passwd", "", ".", "x", f"a/{NAME}"])
def test_the_extension_takes_no_other_file(worker: Any, name: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("")
    extension, taken = worker
    assert "error" in extension.grpo_gym_load(name)
    assert taken == []


def test_the_extension_reads_no_link_and_no_junk(worker: Any, tmp_path: Path) -> None:
    extension, taken = worker
    save_file({"a": torch.zeros(1)}, tmp_path / "elsewhere")
    (tmp_path / NAME).symlink_to(tmp_path / "elsewhere")
    assert "finds no file" in extension.grpo_gym_load(NAME)["error"]
    (tmp_path / NAME).unlink()
    (tmp_path / NAME).write_bytes(b"\x80\x04pickled")
    assert "cannot read" in extension.grpo_gym_load(NAME)["error"]
    assert taken == []


def test_the_extension_describes_its_server(worker: Any, tmp_path: Path) -> None:
    extension, _ = worker
    config = tiny_model().config
    extension.vllm_config = SimpleNamespace(
        model_config=SimpleNamespace(
            max_model_len=64,
            get_vocab_size=lambda: config.vocab_size,
            dtype=torch.bfloat16,
            head_dtype=torch.float32,
            logprobs_mode="raw_logprobs",
            hf_config=config,
        )
    )
    said = extension.grpo_gym_describe()
    assert said["folder"] == str(tmp_path)
    assert (said["dtype"], said["context_length"]) == ("bfloat16", 64)
    assert said["model"]["hidden_size"] == config.hidden_size


def test_the_folder_is_nobody_elses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("GRPO_GYM_WEIGHTS_DIR", raising=False)
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    folder = weights_folder()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert weights_folder() == folder
    folder.rmdir()
    folder.symlink_to(tmp_path / "theirs")
    (tmp_path / "theirs").mkdir()
    with pytest.raises(PermissionError, match="belongs to somebody else"):
        weights_folder()


def test_an_engine_by_its_address_has_the_policys_weights(tmp_path: Path) -> None:
    policy = load_policy("tiny")
    server = FakeVLLM(policy.model, tmp_path)
    server.said["dtype"] = "bfloat16"
    with serving(server) as url:
        engine = make_engine(EvalConfig(engine=url, engine_arg=("timeout_s=7",)), policy, 4)
        assert isinstance(engine, VLLMServerEngine)
        for name, value in server.loaded.items():
            assert torch.equal(value, policy.model.state_dict()[name])
        assert engine.generate([[1]], Sampling(max_tokens=2), [0])[0].version == 0
        engine.close()
        with pytest.raises(UsageError, match="learner's precision needs float32"):
            make_engine(TrainConfig(engine=url), policy, 4)
        make_engine(TrainConfig(engine=url), policy, 4, "bf16").close()
        server.said["head_dtype"] = "bfloat16"
        make_engine(TrainConfig(engine=url), policy, 4, "bf16").close()
        with pytest.raises(UsageError, match="fp32_lm_head needs float32"):
            make_engine(TrainConfig(engine=url, fp32_lm_head=True), policy, 4, "bf16")
        for arguments in (("timeout_s=x",), ("timeout_s=0",), ("gpu_memory_utilization=0.4",)):
            with pytest.raises(UsageError, match="is timeout_s"):
                make_engine(EvalConfig(engine=url, engine_arg=arguments), policy, 4)
        server.instead = {"/resume": None}
        with pytest.raises(Exception, match="broke off"):
            make_engine(EvalConfig(engine=url), policy, 4)


def test_training_without_a_server_ends_in_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("grpo_gym.engines.http._FIRST_WAIT_S", 0.01)
    monkeypatch.setenv("VLLM_API_KEY", "sk-not-to-be-seen")
    words = ["train", "--engine", "http://127.0.0.1:9", "--run-dir", str(tmp_path / "run")]
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "http://127.0.0.1:9/collective_rpc cannot be reached" in line
    assert "sk-" not in line
