"""The contract over every registered environment, and proof that each clause can fail."""

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from grpo_gym import registry
from grpo_gym.rewards import Score
from grpo_gym.spaces import Text
from grpo_gym.tasks import ProceduralTasks, Task
from grpo_gym.testing import CopyEnv, EnvContract, check_environment
from tests.registered import build_or_skip

FIXTURE = Path(__file__).parent / "data" / "gsm8k.jsonl"


@pytest.fixture(params=registry.environments(), ids=lambda row: row.id)
def row(request: pytest.FixtureRequest) -> registry.EnvironmentRow:
    found: registry.EnvironmentRow = request.param
    return found


class TestEveryRegisteredEnvironment(EnvContract):
    seeds = range(4)

    @pytest.fixture(autouse=True)
    def _choose(self, row: registry.EnvironmentRow) -> None:
        self.row = row
        self.make().close()

    def make(self) -> gymnasium.Env[Any, Any]:
        return build_or_skip(self.row)


def test_a_sound_environment_passes() -> None:
    report = check_environment(CopyEnv, range(3))
    assert report.ok, str(report)
    assert {outcome.result for outcome in report.outcomes} == {"passed"}


class SeedsItself(CopyEnv):
    def reset(self, *, seed: int | None = 5, options: Any = None) -> Any:
        return super().reset(seed=seed, options=options)


class UsesEntropy(CopyEnv):
    def observe(self, task: Task) -> str:
        return task.prompt + str(np.random.default_rng().integers(2**62))


class SharesState(CopyEnv):
    seen: list[str] = []  # noqa: RUF012

    def respond(self, task: Task, action: str) -> Score:
        self.seen.append(action)
        return Score(float(action == task.answer), action == task.answer, {"n": len(self.seen)})


class ForgetsTheId(CopyEnv):
    def reset(self, **kwargs: Any) -> Any:
        observation, info = super().reset(**{**kwargs, "options": {}})
        return observation, info


class RejectsTheSolution(CopyEnv):
    def respond(self, task: Task, action: str) -> Score:
        return Score(0.5, action == task.answer)


class LikesMistakes(CopyEnv):
    def respond(self, task: Task, action: str) -> Score:
        right = task.answer in action
        return Score(float(right), right)


class RewardsLength(CopyEnv):
    def respond(self, task: Task, action: str) -> Score:
        right = action == task.answer or len(action) > 100
        return Score(float(right), right)


class TakesTheFormula(CopyEnv):
    def default_tasks(self) -> ProceduralTasks:
        return ProceduralTasks(lambda rng: ("What is 8 + 8?", "16"))

    def respond(self, task: Task, action: str) -> Score:
        right = action in (task.answer, "\\boxed{8 + 8}")
        return Score(float(right), right)


class BonusForNothing(CopyEnv):
    def respond(self, task: Task, action: str) -> Score:
        return Score(1.0, action == task.answer)


class ChokesOnSurrogates(CopyEnv):
    def respond(self, task: Task, action: str) -> Score:
        action.encode("utf-8")
        return super().respond(task, action)


class PaysInfinity(CopyEnv):
    def respond(self, task: Task, action: str) -> Score:
        right = action == task.answer
        return Score(1.0 if right else -float("inf"), right)


class NeverEnds(CopyEnv):
    max_turns = 10**9

    def respond(self, task: Task, action: str) -> Any:
        return super().respond(task, action) if action == task.answer else "again"


class UsesGlobalRandom(CopyEnv):
    def observe(self, task: Task) -> Any:
        random.random()
        return super().observe(task)


class UsesNumpyGlobal(CopyEnv):
    def observe(self, task: Task) -> Any:
        np.random.random()  # noqa: NPY002
        return super().observe(task)


class Leaves(CopyEnv):
    def respond(self, task: Task, action: str) -> Score:
        raise SystemExit(0)


class BothFlags(CopyEnv):
    def step(self, action: str) -> Any:
        observation, reward, _, _, info = super().step(action)
        return observation, reward, True, True, info | {"truncation": "both"}


class SolvesInLetters(CopyEnv):
    def solution(self, task: Task) -> tuple[str, ...]:
        return task.answer  # type: ignore[return-value]


class SaysNothing(CopyEnv):
    def step(self, action: str) -> Any:
        observation, reward, terminated, truncated, _ = super().step(action)
        return observation, reward, terminated, truncated, {}


@pytest.mark.parametrize(
    ("broken", "clause"),
    [
        (SeedsItself, "gymnasium"),
        (UsesEntropy, "determinism"),
        (UsesEntropy, "group"),
        (SharesState, "group"),
        (ForgetsTheId, "task_id"),
        (RejectsTheSolution, "solution"),
        (LikesMistakes, "mistakes"),
        (RewardsLength, "hacks"),
        (TakesTheFormula, "hacks"),
        (BonusForNothing, "hacks"),
        (ChokesOnSurrogates, "junk"),
        (PaysInfinity, "junk"),
        (Leaves, "junk"),
        (BothFlags, "junk"),
        (SaysNothing, "junk"),
        (NeverEnds, "end"),
        (UsesGlobalRandom, "global_rng"),
        (UsesNumpyGlobal, "global_rng"),
    ],
)
def test_each_clause_can_fail(broken: type[CopyEnv], clause: str) -> None:
    report = check_environment(broken, range(2))
    failed = {o.name: o.detail for o in report.outcomes if o.result == "failed"}
    assert clause in failed
    assert failed[clause]
    assert not report.ok
    assert f"failed  {clause}" in str(report)


def test_a_solution_that_is_a_text_is_not_taken_for_its_letters() -> None:
    told = {
        outcome.name: outcome.detail for outcome in check_environment(SolvesInLetters, [0]).outcomes
    }
    assert told["solution"].startswith("solution(task) is a tuple of actions, one a turn, not '")


def test_what_an_environment_raises_is_told_with_the_place_on_one_short_line() -> None:
    class Breaks(CopyEnv):
        def respond(self, task: Task, action: str) -> Score:
            raise RuntimeError("no\ndatabase" + "!" * 5000)

    failed = [o for o in check_environment(Breaks, range(1)).outcomes if o.result == "failed"]
    assert failed
    for outcome in failed:
        assert re.match(
            r"RuntimeError\('no\\ndatabase!+ at .*test_contract.py:\d+$", outcome.detail
        )
        assert len(outcome.detail) < 1200


class Foreign(gymnasium.Env[str, str]):
    """Somebody else's environment: strings in and out, no solution, no mistakes."""

    metadata = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012
    observation_space = Text()
    action_space = Text()
    render_mode = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        source = ProceduralTasks(lambda rng: ("Say it.", str(rng.integers(1000, 10**6))))
        task_id = (options or {}).get("task_id")
        self._task = source.get(task_id) if task_id else source.draw(self.np_random, "train")
        return self._task.answer, {"task_id": self._task.task_id}

    def step(self, action: str) -> Any:
        right = action[::-1] == self._task.answer
        return "", float(right), True, False, {"success": right, "reward_components": {}}


def test_a_foreign_environment_is_checked_as_far_as_it_goes() -> None:
    results = {o.name: o.result for o in check_environment(Foreign, range(2)).outcomes}
    assert results.pop("solution") == results.pop("mistakes") == "skipped"
    assert set(results.values()) == {"passed"}


class LeftToChance(CopyEnv):
    def solution(self, task: Task) -> tuple[str, ...]:
        return ()


def test_a_task_without_a_sure_win_leaves_the_clauses_about_it_out() -> None:
    results = {o.name: o.result for o in check_environment(LeftToChance, range(2)).outcomes}
    assert results.pop("solution") == results.pop("mistakes") == "skipped"
    assert set(results.values()) == {"passed"}


def test_a_contract_without_an_environment_says_so() -> None:
    with pytest.raises(TypeError, match="must define make"):
        EnvContract().make()


def lines() -> Iterator[dict[str, str]]:
    for line in FIXTURE.read_text(encoding="utf-8").splitlines():
        yield json.loads(line)


def test_the_fixture_has_the_published_form() -> None:
    assert all("####" in row["answer"] and row["question"] for row in lines())
