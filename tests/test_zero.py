"""DeepSpeed's ZeRO-2 and ZeRO-3: two processes compute what one computes without it."""

import json
from functools import cache
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from grpo_gym import UsageError
from grpo_gym.learner.zero import check_zero
from tests.launching import finish, launch
from tests.rank_cases import cases, in_float32, play
from tests.test_learner_ranks import close, moments

NAMES = [
    "TokenMean(): a group split over the ranks",
    "TokenMean(): a rank has nothing to do",
    "grpo",
    "ppo",
    "reference",
    "top log-probs",
    "recomputation",
    "experts",
    "resumed",
    "not finite",
    "loss not finite",
]


@pytest.fixture(scope="module", params=["zero2", "zero3"])
def shared(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Any]]:
    """What each of two ranks found."""
    if find_spec("deepspeed") is None:
        pytest.skip("needs the extra deepspeed")
    folder = tmp_path_factory.mktemp(request.param)
    file = str(folder / "found")
    words = ["-m", "tests.rank_cases", file, request.param, json.dumps([*NAMES, "broken"])]
    ends = finish(launch(2, *words, cwd=folder), timeout_s=400)
    assert [end[0] for end in ends] == ["0", "0"], ends
    return [torch.load(f"{file}-{rank}.pt", weights_only=True) for rank in range(2)]


@cache
def alone(name: str) -> dict[str, Any]:
    return play(in_float32(cases()[name]), Accelerator(cpu=True))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", NAMES)
def test_two_ranks_equal_one_process(name: str, shared: list[dict[str, Any]]) -> None:
    expected, near = alone(name), in_float32(cases()[name]).close
    for found in shared:
        for ours, theirs in zip(found[name]["metrics"], expected["metrics"], strict=True):
            assert ours == pytest.approx(theirs, rel=10 * near, abs=near)
        close(found[name]["weights"], expected["weights"], near)
        close(moments(found[name]), moments(expected), near)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_step_that_is_not_finite_is_skipped_on_all_ranks(shared: list[dict[str, Any]]) -> None:
    for found in shared:
        assert [row["skipped_steps"] for row in found["not finite"]["metrics"]] == [1, 1]
        assert [row["skipped_steps"] for row in found["loss not finite"]["metrics"]] == [1, 0]
        assert "not finite 2 times in a row" in found["broken"]


@pytest.mark.parametrize("stage", [2, 3])
def test_zero_in_float32_on_the_device_is_taken(stage: int) -> None:
    offload = {"device": "none"}
    check_zero({"zero_optimization": {"stage": stage, "offload_optimizer": offload}}, False)


@pytest.mark.parametrize(
    ("config", "inits", "line"),
    [
        ({"zero_optimization": {"stage": 1}}, False, "zero_stage .* use 2 or 3"),
        ({}, False, "zero_stage"),
        ({"zero_optimization": {"stage": 3}}, True, "zero3_init_flag .* false"),
        (
            {"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}},
            False,
            "offloading",
        ),
        ({"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}}, False, "--precision bf16"),
        (
            {"zero_optimization": {"stage": 2}, "gradient_accumulation_steps": 4},
            False,
            "gradient_accumulation_steps .* use 1",
        ),
    ],
)
def test_what_was_not_tried_is_refused(config: dict[str, Any], inits: bool, line: str) -> None:
    with pytest.raises(UsageError, match=line):
        check_zero(config, inits)
