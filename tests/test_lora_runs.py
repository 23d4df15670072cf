"""Runs that train an adapter: saved alone, resumed exactly, evaluated, merged, and gone on with."""

import math
import shutil
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from huggingface_hub import HfApi
from safetensors.torch import load_file

import grpo_gym
from grpo_gym import UsageError, checkpoint
from grpo_gym.adapting import merge_into_folder
from grpo_gym.monitor import read_metrics
from grpo_gym.policy import TINY_FOLDER, load_policy
from grpo_gym.runs import Run, saved_config
from tests.commands import ended, flags, refused, run, start
from tests.letters import Letters

SMALL: dict[str, Any] = {
    "model": "tiny",
    "groups_per_step": 4,
    "group_size": 4,
    "max_tokens": 10,
    "patience_s": math.inf,
    "learning_rate": 1e-2,
    "lora_rank": 4,
}
EVALUATION: dict[str, Any] = {
    "env": "grpo_gym/Arithmetic-v0",
    "tasks": 8,
    "n": 4,
    "k": (1, 4),
    "max_tokens": 10,
    "seed": 3,
}


def train(folder: Path, **options: Any) -> Run:
    return grpo_gym.train(**(SMALL | {"run_dir": folder} | options))


def metrics(folder: Path) -> list[dict[str, float]]:
    rows = read_metrics(folder / "metrics.jsonl")
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows]


def adapter(folder: Path) -> dict[str, list[float]]:
    """The adapter that a run has saved last; its numbers."""
    path = checkpoint.latest(folder)
    assert path is not None
    weights = load_file(path / "model" / "adapter_model.safetensors")
    return {name: value.flatten().tolist() for name, value in weights.items()}


@pytest.fixture(scope="module")
def arithmetic(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("run") / "run"
    return train(folder, env="grpo_gym/Arithmetic-v0", steps=3, learning_rate=2e-3)


CASES: dict[str, dict[str, Any]] = {
    "one turn": {"env": "grpo_gym/Arithmetic-v0"},
    "several turns": {"env": "grpo_gym/Calculator-v0", "max_tokens": 24},
    "some layers": {"env": Letters, "lora_targets": ("q_proj", "v_proj"), "lora_alpha": 8.0},
    "KL to the base": {"env": Letters, "kl": 0.1, "mini_batches": 2},
    "critic": {"env": Letters, "agent": "ppo"},
    "bf16": {"env": Letters, "precision": "bf16", "gradient_checkpointing": True},
    "decay": {"env": Letters, "weight_decay": 0.1, "schedule": "linear"},
}
FAST = ("one turn",)


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=[] if c in FAST else pytest.mark.slow) for c in CASES]
)
def test_a_resumed_run_goes_on_as_if_nothing_had_happened(case: str, tmp_path: Path) -> None:
    options = CASES[case] | {"save_every": 3}
    whole = train(tmp_path / "whole", steps=6, **options)
    killed = train(tmp_path / "killed", steps=6, **options)
    assert checkpoint.latest(killed.folder) == killed.model.parent
    shutil.rmtree(killed.model.parent)
    again = train(killed.folder, steps=6, resume=True, **options)
    assert [row["step"] for row in metrics(whole.folder)] == [1, 2, 3, 4, 5, 6]
    assert any(row["grad_norm"] > 0 for row in metrics(whole.folder))
    assert metrics(again.folder) == metrics(whole.folder)
    assert adapter(again.folder) == adapter(whole.folder)


@pytest.mark.slow
def test_a_killed_run_goes_on_from_its_last_adapter(tmp_path: Path) -> None:
    options: dict[str, Any] = {"env": "grpo_gym/Arithmetic-v0", "lora_rank": 2, "max_tokens": 10}
    options |= {"groups_per_step": 2, "steps": 200, "save_every": 1, "keep": 400}
    folder = tmp_path / "killed"
    killed = start("train", *flags(options), "--run-dir", str(folder), cwd=tmp_path)
    while checkpoint.latest(folder) is None:
        assert killed.poll() is None, killed.communicate()
        time.sleep(0.01)
    killed.kill()
    ended(killed)
    steps = len(list((folder / "checkpoints").glob("step-*"))) + 1
    again = grpo_gym.train(run_dir=folder, resume=True, steps=steps)
    whole = grpo_gym.train(run_dir=tmp_path / "whole", **(options | {"steps": steps}))
    assert metrics(again.folder) == metrics(whole.folder)
    assert adapter(again.folder) == adapter(whole.folder)


# --- What a run leaves


def test_the_adapter_alone_is_saved_and_it_is_small(arithmetic: Run) -> None:
    names = {path.name for path in arithmetic.model.iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json"} <= names
    assert not {"model.safetensors", "config.json"} & names
    whole = (TINY_FOLDER / "model.safetensors").stat().st_size  # in half precision
    assert sum(path.stat().st_size for path in arithmetic.model.iterdir()) < whole / 5
    assert (arithmetic.model.parent / "optimiser.pt").stat().st_size < whole / 3


def test_the_engine_had_base_and_adapter_after_every_update(arithmetic: Run) -> None:
    rows = metrics(arithmetic.folder)
    assert all(row["sync_gap"] < 1e-4 and row["behaviour_gap_max"] < 1e-4 for row in rows)
    assert all(row["grad_norm"] > 0 for row in rows)


def test_the_folder_is_loaded_as_a_policy_and_merged_it_is_the_same(
    arithmetic: Run, tmp_path: Path
) -> None:
    merge_into_folder(arithmetic.folder, tmp_path / "merged")
    loaded, merged = load_policy(arithmetic.model), load_policy(tmp_path / "merged")
    assert (loaded.adapter, merged.adapter) == (arithmetic.model, None)
    assert loaded.tokenizer.chat_template == load_policy("tiny").tokenizer.chat_template
    theirs = merged.model.state_dict()
    assert loaded.model.state_dict().keys() == theirs.keys()
    for name, value in loaded.model.state_dict().items():
        assert torch.equal(value, theirs[name]), name
    first, second = (
        grpo_gym.evaluate(model=folder, **EVALUATION)
        for folder in (arithmetic.model, tmp_path / "merged")
    )
    assert first.pass_at == second.pass_at
    assert grpo_gym.evaluate(model="tiny", **EVALUATION).pass_at != first.pass_at


def test_merging_again_or_over_something_is_refused(
    arithmetic: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("merge", str(arithmetic.folder), str(tmp_path / "out" / "merged")) == 0
    merged = str(tmp_path / "out" / "merged")
    assert "there is no adapter in" in refused(capsys, "merge", merged, str(tmp_path / "again"))
    assert "is there already" in refused(capsys, "merge", str(arithmetic.folder), merged)
    assert "no adapter" in refused(capsys, "merge", str(tmp_path / "nowhere"), str(tmp_path / "x"))
    assert "cannot" in refused(capsys, "merge", str(arithmetic.folder), "/proc/nowhere/x")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["merged"]


def test_a_run_that_trained_the_whole_model_has_no_adapter_to_merge(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = train(tmp_path / "run", env=Letters, steps=1, lora_rank=0)
    line = refused(capsys, "merge", str(whole.folder), str(tmp_path / "out"))
    assert line.endswith(f"the model of this run is whole already: {whole.model}")


# --- Going on


def test_a_saved_adapter_is_where_a_run_begins(arithmetic: Run, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(arithmetic.model, copy)
    options = {"env": Letters, "lora_rank": 0, "lora_adapter": copy, "save_every": 1}
    still = train(tmp_path / "still", steps=1, learning_rate=0.0, **options)
    assert adapter(still.folder) == adapter(arithmetic.folder)
    whole = train(tmp_path / "whole", steps=2, **options)
    part = train(tmp_path / "part", steps=1, **options)
    shutil.rmtree(copy)
    again = grpo_gym.train(run_dir=part.folder, steps=2, resume=True, env=Letters)
    assert metrics(again.folder) == metrics(whole.folder)
    assert adapter(again.folder) == adapter(whole.folder) != adapter(arithmetic.folder)


def test_the_base_is_what_a_kl_penalty_refers_to(arithmetic: Run, tmp_path: Path) -> None:
    options = {"env": Letters, "kl": 0.1, "lora_rank": 0, "lora_adapter": arithmetic.model}
    first = metrics(train(tmp_path / "on", steps=1, **options).folder)[0]
    fresh = metrics(train(tmp_path / "new", steps=1, env=Letters, kl=0.1).folder)[0]
    assert first["kl"] > 1e-4 > abs(fresh["kl"])


# --- Mistakes


def test_what_does_not_fit_together_is_refused(
    arithmetic: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "--env", "grpo_gym/Arithmetic-v0", "--run-dir", str(tmp_path / "run")]
    folder = str(arithmetic.model)

    def line(*more: str) -> str:
        return refused(capsys, *words, *more)

    assert "is an adapter: to go on" in line("--model", folder, "--lora-rank", "2")
    assert "brings its own rank" in line("--lora-adapter", folder, "--lora-rank", "2")
    assert "there is no adapter in" in line("--lora-adapter", str(tmp_path))
    assert "no linear layer 'lm_head'" in line("--lora-rank", "2", "--lora-targets", "lm_head")
    assert "lora_rank is -1" in line("--lora-rank", "-1")
    assert "lora_alpha is nan" in line("--lora-rank", "2", "--lora-alpha", "nan")
    assert "lora_targets" in line("--lora-rank", "2", "--lora-targets", "q_proj,")
    assert "no option --lora-dropout" in line("--lora-rank", "2", "--lora-dropout", "0.1")
    assert not (tmp_path / "run").exists()


def test_another_adapter_cannot_be_resumed_as_this_one(arithmetic: Run) -> None:
    for change in ({"lora_rank": 8}, {"lora_alpha": 1.0}, {"lora_targets": ("q_proj",)}):
        with pytest.raises(UsageError, match=f"has {next(iter(change))} "):
            grpo_gym.train(run_dir=arithmetic.folder, resume=True, steps=4, **change)


def test_an_adapter_whose_base_is_not_to_be_had_says_so(arithmetic: Run, tmp_path: Path) -> None:
    for base, message in (
        (None, "does not say which model it is for"),
        (str(tmp_path / "gone"), "names the model .*gone.*: there is no model folder"),
        (str(arithmetic.model), "is an adapter itself"),
    ):
        folder = tmp_path / "adapter"
        shutil.copytree(arithmetic.model, folder, dirs_exist_ok=True)
        config = (folder / "adapter_config.json").read_text()
        value = "null" if base is None else f'"{base}"'
        found = config.index('"base_model_name_or_path": ')
        end = config.index(",", found)
        text = f'{config[:found]}"base_model_name_or_path": {value}{config[end:]}'
        (folder / "adapter_config.json").write_text(text)
        with pytest.raises(UsageError, match=message):
            load_policy(folder)


@pytest.mark.parametrize("reachable", [True, False])
def test_an_adapter_on_the_hub_is_not_left_to_others_to_load(
    reachable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def info(self: HfApi, name: str, timeout: float) -> SimpleNamespace:
        if not reachable:
            raise TimeoutError
        names = ("config.json", "adapter_config.json")
        return SimpleNamespace(siblings=[SimpleNamespace(rfilename=name) for name in names])

    snapshot = tmp_path / "models--owner--name" / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "adapter_config.json").write_text("{}")
    refs = tmp_path / "models--owner--name" / "refs"
    refs.mkdir()
    (refs / "main").write_text(snapshot.name)
    monkeypatch.setattr(HfApi, "model_info", info)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(UsageError, match="owner/name is an adapter on the hub: fetch it"):
        load_policy("owner/name")


def test_the_base_is_named_by_its_whole_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(TINY_FOLDER, tmp_path / "base")
    monkeypatch.chdir(tmp_path)
    trained = train(Path("run"), env=Letters, steps=1, model="base")
    folder = trained.model.resolve()
    monkeypatch.chdir("/")
    assert load_policy(folder).source == str(tmp_path / "base")


def test_the_default_rate_is_ten_times_that_of_the_whole_model(tmp_path: Path) -> None:
    rates = []
    for rank in (0, 2):
        folder = tmp_path / str(rank)
        train(folder, env=Letters, steps=1, lora_rank=rank, learning_rate=None)
        rates.append(saved_config(folder).learning_rate)
    assert rates == [pytest.approx(1.5e-4), pytest.approx(1.5e-3)]


# --- Learning


@pytest.mark.slow
@pytest.mark.parametrize("rank", [1, 8])
def test_an_adapter_learns_arithmetic(rank: int, tmp_path: Path) -> None:
    options = {"groups_per_step": 16, "group_size": 8, "learning_rate": None, "max_tokens": 16}
    trained = train(
        tmp_path / "run", env="grpo_gym/Arithmetic-v0", steps=12, lora_rank=rank, **options
    )
    seen = [row["success"] for row in metrics(trained.folder)]
    assert seen[0] < 0.45
    assert sum(seen[-3:]) / 3 > 0.6
