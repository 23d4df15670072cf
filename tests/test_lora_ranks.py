"""An adapter that two processes train is that of one, whether its base is whole in each or shared out."""

import json
import shutil
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import load_file

import grpo_gym
from grpo_gym import checkpoint
from grpo_gym.adapting import merge_into_folder
from grpo_gym.monitor import read_metrics
from grpo_gym.policy import load_policy
from tests.launching import finish, launch
from tests.lora_rank_cases import Found, cases, play, precision
from tests.models import tiny_model
from tests.once import made_once
from tests.test_learner_ranks import close

pytestmark = [pytest.mark.slow, pytest.mark.timeout(500)]

# As in test_trainer_ranks: a group for each rank, and a group at a time, so that sums have one order.
OPTIONS: dict[str, Any] = {
    "env": "tests.letters:Letters",
    "lora_rank": 4,
    "kl": 0.1,
    "groups_per_step": 2,
    "group_size": 4,
    "max_lanes": 4,
    "max_tokens": 8,
    "tokens_per_micro_batch": 30,
    "patience_s": float("inf"),
    "learning_rate": 2e-3,
    "save_every": 1,
}
STEPS = 4
NEAR = {torch.float64: 1e-12, torch.float32: 1e-5}


@dataclass(frozen=True)
class Together:
    """What two ranks left: what each found of the cases, kind by kind, and runs in a folder."""

    folder: Path
    ranks: list[dict[str, dict[str, Found]]]
    sharded: tuple[str, ...]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of one process."""

    def make(folder: Path) -> None:
        grpo_gym.train(run_dir=folder / "run", steps=STEPS, **OPTIONS)

    return made_once(tmp_path_factory, "lora-alone", make) / "run"


@pytest.fixture(scope="module", params=["fsdp2", "deepspeed"])
def together(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Together:
    kinds = {"fsdp2": ("sharded",), "deepspeed": ("zero2", "zero3")}[request.param]
    if request.param == "deepspeed" and find_spec("deepspeed") is None:
        pytest.skip("needs the extra deepspeed")
    folder = made_once(tmp_path_factory, f"lora-{request.param}", lambda path: on_two(path, kinds))
    found = [torch.load(folder / f"found-{rank}.pt", weights_only=True) for rank in range(2)]
    return Together(folder, found, kinds)


def on_two(folder: Path, kinds: tuple[str, ...]) -> None:
    """Every case with each kind of sharding; and runs that one process begins, or goes on with."""
    grpo_gym.train(run_dir=folder / "begun", steps=1, **OPTIONS)
    work: list[Any] = [["whole", [], [{"run_dir": "whole", "steps": STEPS}]]]
    for kind in kinds:
        shutil.copytree(folder / "begun", folder / f"{kind}, begun alone")
        runs = [
            {"run_dir": kind, "steps": 2},
            {"run_dir": kind, "steps": 3, "resume": True},
            {"run_dir": f"{kind}, begun alone", "steps": 3, "resume": True},
        ]
        work.append([kind, list(cases()), runs])
    if "sharded" in kinds:
        work.append(["kept", ["all layers, resumed"], []])
    for _, _, runs in work:
        runs[:] = [OPTIONS | run for run in runs]
    words = ["-m", "tests.lora_rank_cases", "found", json.dumps(work)]
    ends = finish(launch(2, *words, cwd=folder), timeout_s=400)
    assert [end[0] for end in ends] == ["0", "0"], ends
    for kind in kinds:
        grpo_gym.train(run_dir=folder / kind, steps=STEPS, resume=True, **OPTIONS)


@cache
def played(name: str, dtype: torch.dtype) -> Found:
    return play(cases()[name], Accelerator(cpu=True), dtype)


@pytest.mark.parametrize("name", cases())
def test_sharded_weights_train_the_adapter_of_whole_ones(name: str, together: Together) -> None:
    for rank in together.ranks:
        for kind, found in rank.items():
            if name not in found:
                continue
            ours, theirs = found[name], played(name, precision(kind))
            near = NEAR[precision(kind)]
            for here, there in zip(ours["metrics"], theirs["metrics"], strict=True):
                assert here == pytest.approx(there, rel=10 * near, abs=near), kind
            for part in ("adapter", "merged", "all"):
                close(ours[part], theirs[part], near)
            for number, moments in theirs["optimiser"].items():
                close(ours["optimiser"][number], moments, near)


@pytest.mark.parametrize("name", cases())
def test_the_base_keeps_every_bit_and_the_adapter_moves(name: str, together: Together) -> None:
    case = cases()[name]
    base = tiny_model(0, case.model_type, tie_word_embeddings=case.tied).state_dict()
    for kind, found in together.ranks[1].items():
        if name not in found:
            continue
        after = {
            key.removeprefix("model.").replace(".base_layer.", "."): value
            for key, value in found[name]["all"].items()
            if ".lora_" not in key and not key.startswith("critic.")
        }
        assert after.keys() == base.keys()
        for key, value in base.items():
            assert torch.equal(after[key], value.to(precision(kind))), key
        assert found[name]["merged"].keys() == base.keys()
        ups = {key: value for key, value in found[name]["adapter"].items() if ".lora_B." in key}
        assert ups
        assert all(float(value.abs().max()) > 1e-3 for value in ups.values())


@pytest.mark.parametrize("name", cases())
def test_the_cases_have_something_to_learn(name: str) -> None:
    rows = played(name, torch.float64)["metrics"]
    assert all(row["grad_norm"] > 0 for row in rows)
    assert rows[-1].get("kl", 1.0) > 0


def test_two_ranks_with_whole_weights_train_bit_for_bit_as_one_process_does(
    together: Together, alone: Path
) -> None:
    rows = metrics(alone)
    assert all(row["grad_norm"] > 0 for row in rows)
    assert rows[-1]["kl"] > 0
    assert metrics(together.folder / "whole") == rows
    assert adapter(together.folder / "whole") == adapter(alone)


def test_a_run_goes_on_sharded_or_not_from_the_adapter_that_either_saved(
    together: Together, alone: Path
) -> None:
    """Gathered weights lie elsewhere in memory, which moves the last bits of float32."""
    whole = metrics(alone)
    for kind in together.sharded:
        for run, steps in ((kind, STEPS), (f"{kind}, begun alone", 3)):
            rows = metrics(together.folder / run)
            assert len(rows) == steps
            for row, expected in zip(rows, whole[:steps], strict=True):
                assert row == pytest.approx(expected, rel=1e-3, abs=1e-4), run
                assert row["sync_gap"] < 1e-4


def test_the_adapter_alone_is_saved_and_it_merges(
    together: Together, alone: Path, tmp_path: Path
) -> None:
    merge_into_folder(alone, tmp_path / "expected")
    expected = load_policy(tmp_path / "expected").model.state_dict()
    for kind in together.sharded:
        names = {path.name for path in model_of(together.folder / kind).iterdir()}
        assert names == {path.name for path in model_of(alone).iterdir()}
        assert adapter(together.folder / kind).keys() == adapter(alone).keys()
        merge_into_folder(together.folder / kind, tmp_path / kind)
        found = load_policy(tmp_path / kind).model.state_dict()
        close(dict(found), dict(expected), 1e-3)


def model_of(folder: Path) -> Path:
    last = checkpoint.latest(folder)
    assert last is not None
    return last / "model"


def metrics(folder: Path) -> list[dict[str, float]]:
    rows = read_metrics(folder / "metrics.jsonl")
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows]


def adapter(folder: Path) -> dict[str, list[float]]:
    weights = load_file(model_of(folder) / "adapter_model.safetensors")
    return {name: value.flatten().tolist() for name, value in weights.items()}
