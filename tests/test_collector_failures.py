"""Environments that fail lose their own rollout, and the run only when too many do."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from grpo_gym.errors import UsageError
from grpo_gym.monitor import rollout_metrics
from grpo_gym.session import EnvironmentFailure
from grpo_gym.types import Batch, Message
from tests.playing import END, Fake, collector, goes_on, scripted, specs, turns


def raising(error: BaseException) -> Callable[..., Any]:
    def hook(*_: Any) -> Any:
        raise error

    return hook


def one_in(count: int, bad: Callable[..., Any], good: Callable[..., Any]) -> Callable[..., Any]:
    """A hook that is `bad` in the environment of one copy of each task in turn, else `good`."""
    calls = iter(range(10**6))
    return lambda *args: (bad if next(calls) % count == 0 else good)(*args)


def start(env: Fake) -> Any:
    return "question", {"task_id": f"task-{env.seed}"}


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


SELF: dict[str, Any] = {}
SELF["me"] = SELF

BAD_STEPS = {
    "ValueError: boom": raising(ValueError("boom")),
    "SystemExit: 3": raising(SystemExit(3)),
    "KeyboardInterrupt": raising(KeyboardInterrupt()),
    "AssertionError": raising(AssertionError()),
    "Unspeakable: <exception str() failed>": raising(Unspeakable()),
    "two lines": raising(RuntimeError("two\n  lines")),
    "step returned None, not (observation, reward,": lambda env, action: None,
    "step returned ('', 1.0, True, {}), not": lambda env, action: ("", 1.0, True, {}),
    "step gave reward 'x', not a finite number": lambda env, action: ("", "x", True, False, {}),
    "step gave reward '1', not a finite": lambda env, action: ("", "1", True, False, {}),
    "step gave reward None": lambda env, action: ("", None, True, False, {}),
    "step gave reward inf": lambda env, action: ("", math.inf, True, False, {}),
    "step gave reward 1j": lambda env, action: ("", 1j, True, False, {}),
    "step gave the observation {'text': 'x'}, neither": lambda e, a: goes_on({"text": "x"}),
    "step gave the observation None": lambda e, a: goes_on(None),
    "step gave the observation b'x'": lambda e, a: goes_on(b"x"),
    "step gave the observation 5": lambda e, a: goes_on(5),
    "step gave the observation ({'role': 'user'},)": lambda e, a: goes_on(({"role": "user"},)),
    "step gave the observation ('x',)": lambda e, a: goes_on(("x",)),
    "which is no JSON value": lambda e, a: goes_on(
        ({"role": "tool", "content": "", "tool_calls": [{"id": np.zeros(2)}]},)
    ),
    "RecursionError": lambda e, a: goes_on(
        ({"role": "tool", "content": "", "tool_calls": [SELF]},)
    ),
    "step gave the info None, not a dict": lambda env, action: ("", 1.0, True, False, None),
    "step gave terminated 'yes', not True or False": lambda e, a: ("", 1.0, "yes", False, {}),
    "step gave truncated None": lambda env, action: ("", 1.0, True, None, {}),
    "step gave success 'no'": lambda env, action: ("", 1.0, True, False, {"success": "no"}),
    "step gave success 0.5": lambda env, action: ("", 1.0, True, False, {"success": 0.5}),
    "reward_components [1], not a dict": lambda e, a: (
        *("", 1.0, True, False),
        {"reward_components": [1]},
    ),
    "step gave part 'a lot'": lambda e, a: (
        *("", 1.0, True, False),
        {"reward_components": {"part": "a lot"}},
    ),
}


@pytest.mark.parametrize("said", BAD_STEPS)
def test_a_failing_step_loses_its_own_rollout(said: str) -> None:
    step = one_in(8, BAD_STEPS[said], lambda env, action: END)
    play = collector(lambda: Fake(step, start), copies=4, max_error_share=0.25, top_logprobs=2)
    collection = play.collect(specs(4), 0)
    assert collection.failures == 2
    rollouts = [r for group in collection.groups for r in group.rollouts]
    lost = [r for r in rollouts if r.error is not None]
    assert len(lost) == 2
    for rollout in lost:
        assert said in str(rollout.error)
        assert "\n" not in str(rollout.error)
        assert math.isnan(rollout.reward)
        assert rollout.success is None
        assert not rollout.terminated
        assert not rollout.truncated
        assert rollout.sampled_tokens == 2
        assert rollout.turns == ()
        assert rollout.top_logprobs is not None
        assert (rollout.top_logprobs < 0).all()
    assert all(r.reward == 1.0 and r.success for r in rollouts if r.error is None)
    assert rollout_metrics(collection.groups)["reward"] == 1.0
    assert Batch(collection.groups).padded("top_ids", 0).shape == (16, 2, 2)


BAD_RESETS = {
    "reset raised RuntimeError: no": raising(RuntimeError("no")),
    "reset returned None": lambda env: None,
    "reset returned 'text', not (observation, info)": lambda env: "text",
    "reset gave the info None": lambda env: ("text", None),
    "reset gave the observation {'a': 1}": lambda env: ({"a": 1}, {}),
}


@pytest.mark.parametrize("said", BAD_RESETS)
def test_a_failing_reset_of_one_copy_loses_its_own_rollout(said: str) -> None:
    begin = one_in(8, BAD_RESETS[said], start)
    play = collector(lambda: Fake(start=begin), copies=4, max_error_share=0.25)
    collection = play.collect(specs(4), 0)
    assert collection.failures == 2
    assert [len(group.rollouts) for group in collection.groups] == [4] * 4
    for group in collection.groups:
        for rollout in group.rollouts:
            assert rollout.task_id == group.task_id
            assert rollout.prompt == (Message(role="user", content="question"),)
            assert (rollout.reward == 1.0) == (rollout.error is None)
            if rollout.error is not None:
                assert said in rollout.error
                assert len(rollout.token_ids) == 0


def test_a_task_all_of_whose_copies_fail_in_reset_has_no_group() -> None:
    def begin(env: Fake) -> Any:
        if env.seed == 101:
            raise RuntimeError("no such task")
        return start(env)

    play = collector(lambda: Fake(start=begin), copies=4, max_error_share=0.25)
    collection = play.collect(specs(4), 0)
    assert [group.task_id for group in collection.groups] == ["task-100", "task-102", "task-103"]
    assert collection.failures == 4


def test_an_environment_that_cannot_be_built_fails_in_reset() -> None:
    made = iter(range(100))

    def make() -> Fake:
        if next(made) == 0:
            raise OSError("no room")
        return Fake(start=start)

    collection = collector(make, copies=4, max_error_share=0.25).collect(specs(4), 0)
    lost = [r for group in collection.groups for r in group.rollouts if r.error is not None]
    assert len(lost) == 1
    assert str(lost[0].error).startswith(
        "reset raised OSError: no room (test_collector_failures.py:"
    )


def test_a_failure_in_a_later_turn_keeps_the_tokens_and_the_turns_before_it() -> None:
    step = lambda env, action: goes_on() if len(env.seen) < 3 else 1 / 0  # noqa: E731
    play = collector(lambda: Fake(step), max_error_share=1.0, top_logprobs=3)
    rollout = play.collect(specs(1), 0).groups[0].rollouts[0]
    assert str(rollout.error).startswith("step raised ZeroDivisionError: division by zero (")
    assert len(rollout.turns) == 2
    assert rollout.sampled_tokens == 6
    assert rollout.top_ids is not None
    assert len(rollout.top_ids) == len(rollout.token_ids)


def failing(count: int) -> Callable[[], Fake]:
    """Environments of which the first `count` steps fail."""
    calls = iter(range(10**6))

    def step(env: Fake, action: str) -> Any:
        number = next(calls)
        if number < count:
            raise ValueError(f"error {number % 4}")
        return END

    return lambda: Fake(step, start)


@pytest.mark.parametrize(
    ("tasks", "share", "most"),
    [(2, 0.1, 1), (2, 0.0, 0), (5, 0.1, 2), (25, 0.1, 10), (2, 0.25, 2), (2, 0.9, 7), (2, 1.0, 8)],
)
def test_the_allowed_share_counts_against_all_rollouts_of_the_call_and_is_rounded_up(
    tasks: int, share: float, most: int
) -> None:
    def failures(count: int) -> int:
        play = collector(failing(count), copies=4, max_error_share=share)
        return play.collect(specs(tasks), 0).failures

    assert failures(most) == most
    if most < 4 * tasks:
        with pytest.raises(EnvironmentFailure, match=f"{most + 1} of {4 * tasks} rollouts"):
            failures(most + 1)


def test_the_loss_of_the_only_rollout_is_too_much() -> None:
    with pytest.raises(
        EnvironmentFailure, match=r"1 of 1 rollouts are lost .* ValueError: error 0"
    ):
        collector(failing(1)).collect(specs(1), 0)


def test_the_message_shows_the_first_different_errors() -> None:
    with pytest.raises(EnvironmentFailure) as caught:
        collector(failing(100), copies=4, max_error_share=0.9).collect(specs(2), 0)
    shown = [str(caught.value).count(f"error {number}") for number in range(4)]
    assert sorted(shown) == [0, 1, 1, 1]


def test_after_too_many_failures_the_collector_is_still_usable() -> None:
    engine = scripted()
    play = collector(failing(2), engine, copies=4)
    with pytest.raises(EnvironmentFailure):
        play.collect(specs(2), 0)
    assert not engine.busy
    assert play.collect(specs(2), 0).failures == 0


@pytest.mark.parametrize("where", ["make", "reset", "step"])
def test_a_usage_error_from_an_environment_stops_the_run(where: str) -> None:
    wrong = raising(UsageError("no column 'answer'"))
    make = {
        "make": wrong,
        "reset": lambda: Fake(start=wrong),
        "step": lambda: Fake(step=wrong),
    }[where]
    with pytest.raises(UsageError, match="no column 'answer'"):
        collector(make, copies=4, max_error_share=1.0).collect(specs(2), 0)


def test_a_failed_environment_is_not_used_again() -> None:
    envs: list[Fake] = []

    def step(env: Fake, action: str) -> Any:
        if env is envs[0]:
            raise RuntimeError("broken for ever")
        return END

    def make() -> Fake:
        envs.append(Fake(step, start))
        return envs[-1]

    play = collector(make, copies=2)
    assert play.collect(specs(1), 0).failures == 1
    assert play.collect(specs(1), 0).failures == 0
    play.close()
    assert len(envs) == 3
    assert envs[0].closed


def test_an_environment_that_cannot_be_closed_harms_nobody() -> None:
    class Clinging(Fake):
        def close(self) -> None:
            raise SystemExit("not now")

    play = collector(Clinging)
    assert play.collect(specs(1), 0).failures == 0
    play.close()


def test_an_environment_that_is_falsy_is_built_once() -> None:
    class Empty(Fake):
        made = 0

        def __init__(self) -> None:
            super().__init__(turns(3))
            Empty.made += 1

        def __len__(self) -> int:
            return 0

    assert collector(Empty).collect(specs(1), 0).failures == 0
    assert Empty.made == 1


def test_a_reward_that_cannot_be_scored_is_nan_and_no_failure() -> None:
    step = one_in(2, lambda e, a: ("", math.nan, True, False, {"success": False}), lambda e, a: END)
    collection = collector(lambda: Fake(step), copies=2).collect(specs(2), 0)
    assert collection.failures == 0
    rewards = [reward for group in collection.groups for reward in group.rewards]
    assert sorted(map(str, rewards)) == ["1.0", "1.0", "nan", "nan"]


@pytest.mark.parametrize("reward", [1, True, np.float32(1), np.int64(1), np.array(1.0)])
def test_numbers_of_any_kind_are_rewards(reward: Any) -> None:
    step = ("", reward, np.bool_(True), 0, {"success": np.True_, "reward_components": None})
    collection = collector(lambda: Fake(lambda env, action: step)).collect(specs(1), 0)
    rollout = collection.groups[0].rollouts[0]
    assert rollout.error is None
    assert rollout.reward == 1.0
    assert rollout.success is True
    assert type(rollout.reward) is float
