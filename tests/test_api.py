"""Train and evaluate from Python: names and objects mean the same."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import grpo_agents
import grpo_gym
from grpo_gym import UsageError
from grpo_gym.config import RolloutConfig, TrainConfig
from grpo_gym.monitor import read_metrics
from grpo_gym.playing import run_rollouts
from grpo_gym.runs import Run, saved_config
from tests.letters import Letters, Talk

SMALL: dict[str, Any] = {"steps": 1, "group_size": 2, "groups_per_step": 2, "max_tokens": 6}


def train(folder: Path, **options: Any) -> Run:
    return grpo_gym.train(**(SMALL | {"run_dir": folder} | options))


def metrics(run: Run) -> list[dict[str, float]]:
    rows = read_metrics(run.metrics_path)
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows]


@pytest.mark.parametrize("env", [Letters, lambda: Letters()])
def test_an_environment_is_a_name_a_class_or_a_function(
    tmp_path: Path, env: Callable[[], Letters]
) -> None:
    by_name = train(tmp_path / "name", env="tests.letters:Letters")
    by_object = train(tmp_path / "object", env=env)
    assert metrics(by_name) == metrics(by_object)


def test_an_agent_is_a_name_or_a_value(tmp_path: Path) -> None:
    by_name = train(tmp_path / "name", env=Letters, agent="grpo", agent_args={"clip_low": 0.1})
    by_value = train(tmp_path / "value", env=Letters, agent=grpo_agents.grpo(clip_low=0.1))
    assert metrics(by_name) == metrics(by_value)
    for run in (by_name, by_value):
        assert (run.folder / "agent.txt").read_text() == f"{grpo_agents.grpo(clip_low=0.1)!r}\n"


def test_an_agent_of_ones_own_is_recorded_and_resumed(tmp_path: Path) -> None:
    agent = replace(grpo_agents.grpo(), mask_truncated=True)
    run = train(tmp_path / "run", env=Letters, agent=agent)
    assert saved_config(run.folder).agent == repr(agent)
    again = grpo_gym.train(run_dir=run.folder, resume=True, agent=agent, steps=2)
    assert again.steps == 2
    with pytest.raises(UsageError, match="has agent"):
        grpo_gym.train(run_dir=run.folder, resume=True, agent=grpo_agents.grpo(), steps=3)


def test_arguments_reach_the_environment(tmp_path: Path) -> None:
    run = train(
        tmp_path / "run", env="grpo_gym/Arithmetic-v0", env_args={"level": 5}, rollouts_every=1
    )
    text = (run.folder / "rollouts" / "step-000001.jsonl").read_text()
    assert "(" in text
    assert saved_config(run.folder).env_arg == ("level=5",)


@pytest.mark.parametrize(
    ("model", "rate", "used"), [("tiny", None, 1.5e-4), ("tiny", 0.5, 0.5), ("folder", None, 1e-6)]
)
def test_the_learning_rate_depends_on_the_model_unless_it_is_given(
    tmp_path: Path, model: str, rate: float | None, used: float
) -> None:
    from grpo_gym import tiny

    if model == "folder":
        model = str(tmp_path / "model")
        tiny.write(Path(model))
    run = train(tmp_path / "run", env=Letters, model=model, learning_rate=rate)
    assert metrics(run)[0]["learning_rate"] == used
    assert saved_config(run.folder).learning_rate == used  # what is saved is resolved


def test_evaluating_is_reproducible_and_says_so_in_full(tmp_path: Path) -> None:
    options: dict[str, Any] = {"n": 4, "k": (1, 4), "tasks": 3, "max_tokens": 6}
    first = grpo_gym.evaluate(env=Letters, **options)
    assert grpo_gym.evaluate(env="tests.letters:Letters", **options).successes == first.successes
    assert grpo_gym.evaluate(env=Letters, seed=1, **options).successes != first.successes
    assert str(first).startswith("tests.letters:Letters: 3 tasks x 4 rollouts\npass@1 ")


def test_a_finite_set_of_tasks_is_evaluated_whole(tmp_path: Path) -> None:
    lines = [f'{{"question": "What is {n} + 0?", "answer": "#### {n}"}}\n' for n in range(5)]
    (tmp_path / "test.jsonl").write_text("".join(lines))
    arguments = {"path": str(tmp_path / "test.jsonl")}
    result = grpo_gym.evaluate(
        env="grpo_gym/GSM8K-v0", env_args=arguments, n=1, k=(1,), max_tokens=4
    )
    assert result.tasks == 5


def test_evaluation_and_training_draw_other_tasks(tmp_path: Path) -> None:
    run = train(
        tmp_path / "run",
        env="grpo_gym/Copy-v0",
        groups_per_step=8,
        rollouts_every=1,
        eval_tasks=8,
        eval_n=1,
        eval_k=(1,),
    )

    def ids(name: str) -> set[str]:
        import json

        lines = (run.folder / "rollouts" / name).read_text().splitlines()
        return {json.loads(line)["task_id"] for line in lines}

    assert not ids("step-000001.jsonl") & ids("eval-000000.jsonl")
    assert ids("eval-000000.jsonl") == ids("eval-000001.jsonl")


def test_rollouts_are_of_different_tasks() -> None:
    config = RolloutConfig(env="tests.letters:Talk", episodes=3, max_tokens=6)
    groups = run_rollouts(config).groups
    assert len({group.task_id for group in groups}) == 3
    assert all(len(group.rollouts) == 1 for group in groups)
    assert all(len(group.rollouts[0].turns) == 2 for group in groups)


def test_environments_are_closed(tmp_path: Path) -> None:
    opened: list[int] = []
    closed: list[int] = []

    class Counted(Talk):
        def __init__(self) -> None:
            super().__init__()
            opened.append(id(self))

        def close(self) -> None:
            closed.append(id(self))
            super().close()

    train(tmp_path / "run", env=Counted, steps=2)
    grpo_gym.evaluate(env=Counted, n=2, k=(1,), tasks=2, max_tokens=4)
    _wait(lambda: len(closed) == len(opened))
    assert sorted(closed) == sorted(opened)


def _wait(done: Callable[[], bool]) -> None:
    import time

    until = time.monotonic() + 5
    while not done() and time.monotonic() < until:
        time.sleep(0.01)


def test_every_recipe_can_be_trained_by() -> None:
    from grpo_gym.config import from_values, load_toml

    for path in grpo_agents.recipe_files().values():
        assert from_values(TrainConfig, load_toml(path), str(path)).group_size >= 1
