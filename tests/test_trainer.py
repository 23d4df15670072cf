"""The loop: reproducible, resumable, and whole whatever happens."""

import json
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import grpo_agents
import grpo_gym
from grpo_gym import UsageError, checkpoint
from grpo_gym.agent import Agent
from grpo_gym.monitor import read_metrics
from grpo_gym.objectives.penalties import AdaptiveEntropy
from grpo_gym.objectives.stages import Selection
from grpo_gym.runs import Run
from grpo_gym.types import Group
from tests.letters import Letters, Talk

SMALL: dict[str, Any] = {
    "model": "tiny",
    "groups_per_step": 4,
    "group_size": 4,
    "max_tokens": 10,
    "patience_s": math.inf,
    "learning_rate": 1e-3,
}


def train(folder: Path, **options: Any) -> Run:
    return grpo_gym.train(**(SMALL | {"run_dir": folder} | options))


def metrics(folder: Path) -> list[dict[str, float]]:
    """What was logged, but for how long it took."""
    rows = read_metrics(folder / "metrics.jsonl")
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows]


def weights(run: Run) -> bytes:
    return (run.model / "model.safetensors").read_bytes()


def adaptive() -> Agent:
    return replace(grpo_agents.grpo(), penalties=(AdaptiveEntropy(target=10.0, step=0.01),))


CASES: dict[str, dict[str, Any]] = {
    "one turn": {"env": "grpo_gym/Arithmetic-v0"},
    "several turns": {"env": "grpo_gym/Calculator-v0", "max_tokens": 24},
    "several optimiser steps": {"env": Letters, "epochs": 2, "mini_batches": 2},
    "schedule": {"env": Letters, "schedule": "linear", "warmup_steps": 2},
    "KL to the first policy": {"env": Letters, "kl": 0.1},
    "dynamic sampling": {"env": "grpo_gym/Arithmetic-v0", "agent": "dapo"},
    "agent with a state": {"env": Letters, "agent": adaptive()},
    "decay": {"env": Talk, "weight_decay": 0.1, "agent": "dr_grpo", "temperature": 0.7},
}


FAST = ("one turn",)


def test_an_agent_may_ask_for_more_probable_tokens_than_there_are(tmp_path: Path) -> None:
    agent = grpo_agents.dppo(divergence="topk_tv", k=10**6)
    run = train(tmp_path, env=Letters, agent=agent, steps=1)
    assert all(math.isfinite(value) for row in metrics(run.folder) for value in row.values())


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=[] if c in FAST else pytest.mark.slow) for c in CASES]
)
def test_a_resumed_run_goes_on_as_if_nothing_had_happened(case: str, tmp_path: Path) -> None:
    options = CASES[case] | {"save_every": 3}
    whole = train(tmp_path / "whole", steps=6, **options)
    killed = train(tmp_path / "killed", steps=6, **options)
    # As after a kill in the last step: the rows are there, their checkpoint is not.
    assert checkpoint.latest(killed.folder) == killed.model.parent
    for path in sorted(killed.model.parent.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    killed.model.parent.rmdir()
    again = train(killed.folder, steps=6, resume=True, **options)
    assert [row["step"] for row in metrics(whole.folder)] == [1, 2, 3, 4, 5, 6]
    assert any(row["grad_norm"] > 0 for row in metrics(whole.folder))
    assert metrics(again.folder) == metrics(whole.folder)
    assert weights(again) == weights(whole)


@pytest.mark.parametrize("case", ["one turn", "several turns"])
def test_a_complete_run_can_be_given_more_steps(case: str, tmp_path: Path) -> None:
    options = CASES[case]
    whole = train(tmp_path / "whole", steps=4, **options)
    parts = train(tmp_path / "parts", steps=2, **options)
    assert len(metrics(parts.folder)) == 2
    grpo_gym.train(run_dir=parts.folder, resume=True, steps=4)
    assert metrics(parts.folder) == metrics(whole.folder)


def test_a_complete_run_that_is_resumed_stays_as_it_is(tmp_path: Path) -> None:
    first = train(tmp_path / "run", steps=2, env=Letters, eval_tasks=2, eval_n=4, eval_k=(1, 4))
    before = {path: path.read_bytes() for path in first.folder.rglob("*") if path.is_file()}
    again = grpo_gym.train(run_dir=first.folder, resume=True)
    assert again == first
    after = {path: path.read_bytes() for path in first.folder.rglob("*") if path.is_file()}
    assert after == before


def test_a_run_killed_before_its_first_checkpoint_starts_over(tmp_path: Path) -> None:
    whole = train(tmp_path / "whole", steps=2, env=Letters)
    other = train(tmp_path / "other", steps=2, env=Letters)
    for path in sorted((other.folder / "checkpoints").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    again = grpo_gym.train(run_dir=other.folder, resume=True)
    assert metrics(again.folder) == metrics(whole.folder)
    assert weights(again) == weights(whole)


def test_the_same_seed_gives_the_same_run_and_another_one_another(tmp_path: Path) -> None:
    options = {"steps": 2, "env": "grpo_gym/Calculator-v0", "max_tokens": 24}
    first, second = (train(tmp_path / name, seed=3, **options) for name in "ab")
    third = train(tmp_path / "c", seed=4, **options)
    assert metrics(first.folder) == metrics(second.folder)
    assert weights(first) == weights(second)
    assert metrics(first.folder) != metrics(third.folder)


def test_global_generators_are_left_alone(tmp_path: Path) -> None:
    def states() -> list[Any]:
        return [random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()]  # noqa: NPY002

    before = states()
    run = train(tmp_path / "run", steps=2, env=Letters, kl=0.1, eval_tasks=2, eval_k=(1,), eval_n=2)
    assert states() == before
    grpo_gym.evaluate(env=Letters, model=run.model, n=2, k=(1, 2), tasks=2, max_tokens=4)
    assert states() == before


def test_training_raises_what_is_rewarded(tmp_path: Path) -> None:
    run = train(tmp_path / "run", steps=12, env="grpo_gym/Copy-v0", groups_per_step=8, group_size=8)
    rewards = [row["reward"] for row in metrics(run.folder)]
    assert sum(rewards[-3:]) > sum(rewards[:3])


def test_a_run_leaves_what_it_says(tmp_path: Path) -> None:
    run = train(
        tmp_path / "run",
        steps=4,
        env=Letters,
        rollouts_every=2,
        save_every=1,
        keep=2,
        eval_tasks=2,
        eval_every=3,
        eval_n=2,
        eval_k=(1, 2),
    )
    names = {path.name for path in run.folder.iterdir()}
    assert names == {
        "agent.txt",
        "checkpoints",
        "config.toml",
        "eval-000000.json",
        "eval-000003.json",
        "eval-000004.json",
        "metrics.jsonl",
        "rollouts",
    }
    assert run.steps == 4
    assert sorted(run.evaluations) == [0, 3, 4]
    assert {path.stem for path in (run.folder / "rollouts").iterdir()} == {
        "step-000002",
        "step-000004",
        "eval-000000",
        "eval-000003",
        "eval-000004",
    }
    saved = {path.name for path in (run.folder / "checkpoints").iterdir()}
    assert saved == {"step-000003", "step-000004"}
    record = json.loads((run.folder / "eval-000004.json").read_text())
    assert record["pass_at"]["1"]["mean"] == run.evaluations[4].pass_at[1].mean
    assert (run.folder / "agent.txt").read_text() == f"{grpo_agents.grpo()!r}\n"


def test_the_trained_model_is_an_ordinary_model(tmp_path: Path) -> None:
    run = train(tmp_path / "run", steps=1, env=Letters)
    result = grpo_gym.evaluate(env=Letters, model=run.model, n=2, k=(1, 2), tasks=3, max_tokens=4)
    assert set(result.pass_at) == {1, 2}
    assert result.tasks == 3


def test_the_engine_has_the_weights_of_the_learner(tmp_path: Path) -> None:
    run = train(tmp_path / "run", steps=2, env=Letters)
    assert all(row["sync_gap"] < 1e-4 for row in metrics(run.folder))


def test_a_kl_penalty_is_0_at_first_and_then_holds_the_policy_back(tmp_path: Path) -> None:
    free = train(tmp_path / "free", steps=4, env=Letters, learning_rate=3e-3)
    held = train(tmp_path / "held", steps=4, env=Letters, learning_rate=3e-3, kl=1.0)
    assert metrics(held.folder)[0]["loss"] == pytest.approx(
        metrics(free.folder)[0]["loss"], abs=1e-6
    )
    assert weights(held) != weights(free)
    kls = [row["kl"] for row in metrics(held.folder)]
    assert kls[0] == pytest.approx(0, abs=1e-6)
    assert kls[-1] > 0


def from_rewards(choose: Callable[[Sequence[Group]], Sequence[Group]]) -> Agent:
    """GRPO that trains on what a function chooses."""

    class Chosen(Selection):
        def __call__(self, groups: Sequence[Group]) -> tuple[Group, ...]:
            return tuple(choose(groups))

    return replace(grpo_agents.grpo(), selection=(Chosen(),))


def test_a_step_without_a_group_is_skipped_and_counted(tmp_path: Path) -> None:
    run = train(tmp_path / "run", steps=2, env=Letters, agent=from_rewards(lambda groups: ()))
    for row in metrics(run.folder):
        assert row["skipped_steps"] == 1
        assert row["groups"] == 0
        assert "loss" not in row
    assert torch.equal(_embedding(run), _embedding_of("tiny"))


def test_a_batch_of_which_no_token_is_left_changes_nothing(tmp_path: Path) -> None:
    agent = replace(adaptive(), mask_truncated=True)
    run = train(tmp_path / "run", steps=2, env=Letters, agent=agent, max_tokens=1)
    assert [row["truncated"] for row in metrics(run.folder)] == [1, 1]
    assert [row["skipped_steps"] for row in metrics(run.folder)] == [1, 1]
    assert torch.equal(_embedding(run), _embedding_of("tiny"))


def _embedding(run: Run) -> torch.Tensor:
    return _embedding_of(run.model)


def _embedding_of(model: str | Path) -> torch.Tensor:
    from grpo_gym.policy import load_policy

    return load_policy(model).model.get_input_embeddings().weight.detach()


def test_dropped_groups_are_replaced_until_the_batch_is_full(tmp_path: Path) -> None:
    asked: list[int] = []

    def first_only(groups: Sequence[Group]) -> Sequence[Group]:
        asked.append(len(groups))
        return groups[:1]

    agent = replace(from_rewards(first_only), max_rounds=10)
    run = train(tmp_path / "run", steps=1, env=Letters, agent=agent)
    assert asked == [4, 3, 2, 1]
    assert metrics(run.folder)[0]["groups"] == 4


def test_rounds_that_run_out_train_on_what_there_is_or_say_so(tmp_path: Path) -> None:
    agent = replace(from_rewards(lambda groups: groups[:1]), max_rounds=2)
    run = train(tmp_path / "run", steps=1, env=Letters, agent=agent)
    assert metrics(run.folder)[0]["groups"] == 2
    strict = replace(agent, exhausted="raise")
    with pytest.raises(UsageError, match=r"step 1: only 2 of 4 groups were fit .* after 2 rounds"):
        train(tmp_path / "strict", steps=1, env=Letters, agent=strict)
    assert not (tmp_path / "strict").exists()


class Flaky(Letters):
    """An environment whose service goes down after some resets, for ever."""

    left = 0

    def reset(self, **kwargs: Any) -> Any:
        type(self).left -= 1
        if type(self).left < 0:
            raise ConnectionError("the service is down")
        return super().reset(**kwargs)


def test_failing_environments_cost_nothing_that_was_learnt(tmp_path: Path) -> None:
    from grpo_gym.session import EnvironmentFailure

    whole = train(tmp_path / "whole", steps=4, env=Letters)
    Flaky.left = 2 * 16
    with pytest.raises(EnvironmentFailure, match="the service is down"):
        train(tmp_path / "run", steps=4, env=Flaky)
    Flaky.left = 1000
    again = grpo_gym.train(run_dir=tmp_path / "run", resume=True, env=Flaky)
    assert metrics(again.folder) == metrics(whole.folder)


def test_environments_that_fail_at_once_leave_no_run(tmp_path: Path) -> None:
    from grpo_gym.session import EnvironmentFailure

    Flaky.left = 0
    with pytest.raises(EnvironmentFailure):
        train(tmp_path / "run", steps=4, env=Flaky)
    assert not (tmp_path / "run").exists()


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"training broke down .* 3 times in a row"):
        train(tmp_path / "run", steps=9, env=Letters, learning_rate=1e30, kl=0.1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"env": "grpo_gym/Copy-v0"}, "has env 'tests.letters:Letters', not 'grpo_gym/Copy-v0'"),
        ({"agent": "dapo"}, "has agent 'grpo', not 'dapo'"),
        ({"model": "./other"}, "has model 'tiny', not './other'"),
        ({"seed": 1}, "has seed 0, not 1"),
        ({"group_size": 8}, "has group_size 4, not 8"),
        ({"kl": 0.1}, "has kl 0.0, not 0.1"),
    ],
)
def test_another_run_cannot_be_resumed_as_this_one(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    train(tmp_path / "run", steps=1, env=Letters)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(UsageError, match=message):
        grpo_gym.train(run_dir=tmp_path / "run", resume=True, steps=2, **options)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def spoil(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def rewrite(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: spoil(folder / "model" / "model.safetensors"), "was changed after"),
        (lambda folder: (folder / "optimiser.pt").unlink(), "optimiser.pt is missing"),
        (lambda folder: (folder / "optimiser.pt").write_bytes(b""), "has 0 bytes instead of"),
        (lambda folder: (folder / "state.json").unlink(), "it has no state.json"),
        (lambda folder: (folder / "state.json").write_text("{"), "state.json is damaged"),
        (lambda folder: rewrite(folder / "state.json", state={}), "lacks 'position'"),
        (lambda folder: rewrite(folder / "state.json", state={"position": 4}), "lacks 'agent'"),
    ],
)
def test_a_damaged_checkpoint_is_refused_and_an_older_one_can_be_resumed(
    damage: Callable[[Path], object], message: str, tmp_path: Path
) -> None:
    run = train(tmp_path / "run", steps=2, env=Letters, save_every=1)
    damage(run.model.parent)
    config = (run.folder / "config.toml").read_bytes()
    with pytest.raises(UsageError, match=message) as caught:
        grpo_gym.train(run_dir=run.folder, resume=True, steps=3)
    assert "to go on from an older checkpoint, remove this one" in str(caught.value)
    assert (run.folder / "config.toml").read_bytes() == config
    assert len(metrics(run.folder)) == 2
    for path in sorted(run.model.parent.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    run.model.parent.rmdir()
    assert grpo_gym.train(run_dir=run.folder, resume=True, steps=3).steps == 3
    assert [row["step"] for row in metrics(run.folder)] == [1, 2, 3]


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    from tests.models import tiny_model, tiny_tokenizer

    def save(**config: Any) -> None:
        tiny_model(**config).save_pretrained(tmp_path / "model")
        tiny_tokenizer().save_pretrained(tmp_path / "model")

    save()
    run = train(tmp_path / "run", model=tmp_path / "model", steps=1, env=Letters)
    save(intermediate_size=48)
    with pytest.raises(UsageError, match="is of another model") as caught:
        grpo_gym.train(run_dir=run.folder, resume=True, steps=2)
    assert "\n" not in str(caught.value)


def test_what_has_no_name_is_given_again(tmp_path: Path) -> None:
    agent = replace(grpo_agents.grpo(), mask_truncated=True)
    train(tmp_path / "run", steps=1, env=lambda: Letters(), agent=agent)
    with pytest.raises(UsageError, match=r"give env= again|give agent= again"):
        grpo_gym.train(run_dir=tmp_path / "run", resume=True, steps=2)


def test_an_interrupted_evaluation_is_made_again(tmp_path: Path) -> None:
    options = {"env": Letters, "eval_tasks": 2, "eval_n": 2, "eval_k": (1, 2)}
    whole = train(tmp_path / "whole", steps=2, **options)
    other = train(tmp_path / "other", steps=2, **options)
    (other.folder / "eval-000002.json").write_text('{"env": ')  # as after a kill
    again = grpo_gym.train(run_dir=other.folder, resume=True)
    assert again.evaluations == whole.evaluations
    name = "eval-000002.json"
    assert (again.folder / name).read_bytes() == (whole.folder / name).read_bytes()


@pytest.mark.parametrize("name", grpo_agents.AGENTS)
def test_every_agent_trains(name: str, tmp_path: Path) -> None:
    size = grpo_gym.make_agent(name).group_size or 4
    run = train(
        tmp_path / "run",
        steps=1,
        env=Talk,
        agent=name,
        group_size=size,
        groups_per_step=8,
        mini_batches=2,
        max_tokens=6,
    )
    (row,) = metrics(run.folder)
    assert math.isfinite(row["loss"])
    assert row["grad_norm"] > 0
    assert not torch.equal(_embedding(run), _embedding_of("tiny"))


@pytest.mark.parametrize(
    "options",
    [
        {"precision": "bf16"},
        {"gradient_checkpointing": True},
        {"tokens_per_micro_batch": 40},
        {"max_lanes": 2},
        {"rollout_tokens": 8, "max_tokens": 6},
        {"stop": ("e", "a"), "top_k": 50, "top_p": 0.9, "min_p": 0.01},
        {"schedule": "cosine", "max_grad_norm": math.inf},
        {"max_tokens": 1},
    ],
    ids=str,
)
def test_every_option_trains(options: dict[str, Any], tmp_path: Path) -> None:
    run = train(tmp_path / "run", **({"steps": 2, "env": Talk} | options))
    assert all(math.isfinite(row["loss"]) for row in metrics(run.folder))
