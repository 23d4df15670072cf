"""A policy from a name: the tiny one, a folder, or the hub's cache."""

import re
from pathlib import Path

import pytest
import torch
from huggingface_hub import HfApi

from grpo_gym import UsageError
from grpo_gym.policy import load_policy
from tests.models import tiny_model, tiny_tokenizer


def save(folder: Path, seed: int = 1) -> Path:
    tiny_model(seed).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def test_a_folder_is_loaded_by_text_and_by_path(tmp_path: Path) -> None:
    folder = save(tmp_path / "model")
    for name in (folder, str(folder)):
        policy = load_policy(name)
        assert policy.name == str(folder)
        ids = torch.tensor([[5, 6, 7]])
        assert torch.equal(policy.model(ids).logits, tiny_model(1)(ids).logits)


def test_a_relative_folder_is_loaded_though_it_looks_like_a_hub_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "owner" / "model")
    assert load_policy("owner/model").model.num_parameters() == tiny_model().num_parameters()


def test_a_run_and_a_checkpoint_say_where_their_model_is(tmp_path: Path) -> None:
    for step in (1, 2):
        folder = tmp_path / "checkpoints" / f"step-00000{step}" / "model"
        folder.mkdir(parents=True)
        (folder / "adapter_config.json").write_text("{}")
    for place in (tmp_path, folder.parent):
        with pytest.raises(UsageError, match=re.escape(f"its model is {folder}")):
            load_policy(place)


def test_the_dtype_is_that_which_was_asked_for(tmp_path: Path) -> None:
    folder = save(tmp_path / "model")
    assert load_policy(folder).model.dtype == torch.float32
    assert load_policy(folder, dtype="bfloat16").model.dtype == torch.bfloat16


def test_loading_leaves_the_global_generator_alone(tmp_path: Path) -> None:
    folder = save(tmp_path / "model")
    before = torch.get_rng_state()
    load_policy(folder)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_turn_ends_where_the_model_says(tmp_path: Path) -> None:
    policy = load_policy(save(tmp_path / "model"))
    assert policy.renderer.stop_token_ids == (2,)


def test_a_hub_that_hangs_costs_seconds_and_not_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    def hang(self: HfApi, name: str, timeout: float) -> None:
        asked.append(timeout)
        raise TimeoutError("timed out")

    monkeypatch.setattr(HfApi, "model_info", hang)
    with pytest.raises(UsageError, match=r"hub cannot be reached \(timed out\), and its cache"):
        load_policy("nobody/nothing")
    assert len(asked) == 1
    assert asked[0] <= 10


def test_without_a_hub_its_cache_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = tmp_path / "hub" / "models--owner--name" / "snapshots" / ("0" * 40)
    save(snapshot)
    refs = snapshot.parents[1] / "refs"
    refs.mkdir()
    (refs / "main").write_text(snapshot.name)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    assert load_policy("owner/name").model.num_parameters() == tiny_model().num_parameters()
