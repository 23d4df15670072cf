"""Several processes that train with vLLM, on one server or each with an engine of its own: the run of one."""

import importlib.util
import json
import time
from pathlib import Path
from typing import Any

import pytest

import grpo_gym
from grpo_gym import checkpoint
from grpo_gym.monitor import read_metrics
from tests.commands import flags
from tests.launching import finish, launch
from tests.vllm_serving import KEY, Server

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
]

STEPS = 3
TRAIN: dict[str, Any] = {
    "env": "grpo_gym/Arithmetic-v0",
    "steps": STEPS,
    "groups_per_step": 4,
    "group_size": 4,
    "max_tokens": 16,
    "temperature": 0.8,  # the sync is then verified with all logits of the server scaled
    "patience_s": float("inf"),
    "learning_rate": 1e-3,
    "rollouts_every": 1,
}
EVALUATED = {"eval_tasks": 3, "eval_n": 2, "eval_k": (1,)}
EVALUATE: dict[str, Any] = {"tasks": 3, "n": 2, "k": (1, 2), "max_tokens": 16}

# The last run shards weights: then accelerate cannot go back.
ON_RANKS = """
import json, sys
from grpo_gym.config import EvalConfig, from_values, TrainConfig
from grpo_gym.jobs import run_training
from grpo_gym.playing import run_evaluate
from grpo_gym.ranks import Ranks
from tests.rank_cases import accelerator_of
with Ranks() as ranks:
    options = json.loads(sys.argv[2]) | {"out": "evaluation.json"}
    run_evaluate(from_values(EvalConfig, options, "test"), ranks=ranks)
    for name, options in json.loads(sys.argv[1]).items():
        if name == "sharded":
            ranks.accelerator = accelerator_of(name)
        config = from_values(TrainConfig, options | {"run_dir": name}, "test")
        run_training(config, ranks=ranks)
"""


@pytest.fixture(scope="module")
def on_two(vllm_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of two ranks."""
    url = vllm_server.url
    folder = tmp_path_factory.mktemp("two")
    runs = {
        "server": TRAIN | EVALUATED | {"engine": url},
        "in the process": TRAIN | EVALUATED | {"engine": "vllm"},
        "cut short": TRAIN | {"engine": url, "steps": 1},
        "sharded": TRAIN | {"engine": url, "steps": 2},
    }
    words = ["-c", ON_RANKS, json.dumps(runs), json.dumps(EVALUATE | {"engine": url})]
    ends = finish(launch(2, *words, cwd=folder, VLLM_API_KEY=KEY), timeout_s=600)
    assert [end[0] for end in ends] == ["0", "0"], ends
    return folder


@pytest.fixture(scope="module")
def on_one(vllm_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one process with the server."""
    folder = tmp_path_factory.mktemp("one") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_API_KEY", KEY)
        grpo_gym.train(engine=vllm_server.url, run_dir=folder, **(TRAIN | EVALUATED))
    return folder


@pytest.mark.parametrize("name", ["server", "in the process", "sharded"])
def test_two_ranks_train_as_one_process_does(name: str, on_two: Path, on_one: Path) -> None:
    """The tokens are the same; what is computed of them, up to the rounding of sums of floats."""
    rows = read_metrics(on_two / name / "metrics.jsonl")
    for there, here in zip(rows, read_metrics(on_one / "metrics.jsonl"), strict=name != "sharded"):
        for what, value in here.items():
            if not what.startswith("time/"):
                assert there[what] == pytest.approx(value, rel=1e-3, abs=1e-4), what
        assert 0 < there["sync_gap"] < 1e-4
        assert there["behaviour_gap_max"] < 1e-4
    for step in range(1, len(rows) + 1):
        found = rollouts(on_two / name, step)
        assert tokens(found) == tokens(rollouts(on_one, step))
        assert all(set(record["versions"]) == {step - 1} for record in found)
    assert any(row["grad_norm"] > 0 for row in rows)


def test_two_ranks_evaluate_as_one_process_does(
    vllm_server: Server, on_two: Path, on_one: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    one = grpo_gym.evaluate(**EVALUATE, engine=vllm_server.url).to_json()
    assert (on_two / "evaluation.json").read_text() == one + "\n"
    for path in sorted(on_one.glob("eval-*.json")):
        for name in ("server", "in the process"):
            assert (on_two / name / path.name).read_text() == path.read_text()
    assert len(list(on_one.glob("eval-*.json"))) == 2


def test_a_run_goes_on_with_another_number_of_processes(
    vllm_server: Server, on_two: Path, on_one: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    grpo_gym.train(run_dir=on_two / "cut short", resume=True, steps=STEPS)
    for step in range(1, STEPS + 1):
        assert tokens(rollouts(on_two / "cut short", step)) == tokens(rollouts(on_one, step))


def test_a_server_that_is_killed_ends_all_ranks_with_the_last_whole_step(
    vllm_server: Server, on_one: Path
) -> None:
    """Whatever it was at. The run is one that a single process began. The last test: it ends the server."""
    log = vllm_server._log
    before = loads(log)
    words = flags({"run_dir": on_one, "resume": True, "steps": 1000, "save_every": 0})
    ranks = launch(2, "-m", "grpo_gym.cli", "train", *words, cwd=on_one.parent, VLLM_API_KEY=KEY)
    metrics = on_one / "metrics.jsonl"
    until = time.monotonic() + 300
    while len(read_metrics(metrics)) < STEPS + 2:
        assert all(rank.poll() is None for rank in ranks), finish(ranks)
        assert time.monotonic() < until
        time.sleep(0.05)
    vllm_server.kill()
    first, second = finish(ranks)
    assert (first[0], second[0]) == ("1", "1")
    assert "broke off" in first[2] or "cannot be reached" in first[2]
    assert first[2].count("\n") == 1
    assert second[1:] == ["", ""]
    steps = len(read_metrics(metrics))
    last = checkpoint.latest(on_one)
    assert last is not None
    assert last.name == f"step-{steps:06d}"
    # One rank alone gave it weights: of the policy, of the checkpoint, and then once a step. The last ones
    # may not have come.
    assert loads(log) - before in (2 + steps - STEPS, 1 + steps - STEPS)


def loads(log: Path) -> int:
    """How often the server was given weights."""
    return log.read_text().count('"POST /update_weight_version ')


def rollouts(folder: Path, step: int) -> list[dict[str, Any]]:
    """Those of a step."""
    lines = (folder / "rollouts" / f"step-{step:06d}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def tokens(records: list[dict[str, Any]]) -> list[list[int]]:
    return [record["token_ids"] for record in records]
