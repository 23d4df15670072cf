"""Processes that share an update compute what one process computes, whatever is shared how."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from grpo_gym.objectives import aggregations
from grpo_gym.objectives.stages import Aggregation
from tests.launching import finish, launch
from tests.once import made_once
from tests.rank_cases import AGGREGATIONS, broken, cases, play

# Two ranks play every case; three, and those that share out the weights, the ones that could differ most.
EDGES = [name for name in cases() if name.startswith(("TokenMean", "PromptMean"))]
MORE = [
    "grpo",
    "dapo",
    "ppo",
    "reference",
    "top log-probs",
    "not finite",
    "recomputation",
    "experts",
]
NAMES = {
    (2, "whole"): [*cases(), "broken"],
    (3, "whole"): EDGES,
    (2, "sharded"): [*EDGES, *MORE, "resumed", "broken"],
}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, str, int], dict[str, Any]]:
    """(number of ranks, kind, rank) to what it found."""

    def make(folder: Path) -> None:
        for (count, kind), names in NAMES.items():
            words = [str(folder / f"{count}-{kind}"), kind, json.dumps(names)]
            ends = finish(
                launch(count, "-m", "tests.rank_cases", *words, cwd=folder), timeout_s=400
            )
            assert [end[0] for end in ends] == ["0"] * count, ends

    folder = made_once(tmp_path_factory, "learner-ranks", make)
    return {
        (count, kind, rank): torch.load(folder / f"{count}-{kind}-{rank}.pt", weights_only=True)
        for count, kind in NAMES
        for rank in range(count)
    }


@cache
def alone(name: str) -> dict[str, Any]:
    return play(cases()[name], Accelerator(cpu=True))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", cases())
def test_ranks_equal_one_process(
    name: str, shared: dict[tuple[int, str, int], dict[str, Any]]
) -> None:
    expected, near = alone(name), cases()[name].close
    for ranks, found in shared.items():
        if name not in found:
            continue
        for ours, theirs in zip(found[name]["metrics"], expected["metrics"], strict=True):
            assert ours == pytest.approx(theirs, rel=near, abs=near), ranks
        close(found[name]["weights"], expected["weights"], near)
        close(moments(found[name]), moments(expected), near)
        pairs = zip(found[name]["gradients"], expected["gradients"], strict=True)
        for ours, theirs in pairs:
            close(ours, theirs, near)


def moments(found: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The state of the optimiser, number by number."""
    state = found["optimiser"]["optimiser"]["state"]
    return {f"{key} {name}": v for key, entry in state.items() for name, v in entry.items()}


def close(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor], near: float) -> None:
    assert ours.keys() == theirs.keys()
    for key, value in theirs.items():
        torch.testing.assert_close(ours[key], value, rtol=near, atol=near)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_step_that_is_not_finite_on_one_rank_is_skipped_on_all(
    shared: dict[tuple[int, str, int], dict[str, Any]],
) -> None:
    of_two = [found for (count, _, _), found in shared.items() if count == 2]
    for found in of_two:
        assert [row["skipped_steps"] for row in found["not finite"]["metrics"]] == [1, 1]
        assert found["not finite"]["gradients"] == []
    line = broken(Accelerator(cpu=True))
    assert "not finite 2 times in a row" in line
    assert {found["broken"] for found in of_two} == {line}


def test_every_aggregation_is_among_the_cases() -> None:
    public = {
        value
        for value in vars(aggregations).values()
        if isinstance(value, type) and issubclass(value, Aggregation) and value is not Aggregation
    }
    assert {type(aggregation) for aggregation in AGGREGATIONS} == public


@pytest.mark.parametrize("name", ["grpo", "a rank has nothing to do", "experts", "ppo"])
def test_the_cases_have_something_to_learn(name: str) -> None:
    for case in cases():
        if case == name or case.endswith(name):
            assert all(row["grad_norm"] > 0 for row in alone(case)["metrics"])
