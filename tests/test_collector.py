"""Collecting: equal groups, any environment of text, as many lanes as there are."""

import itertools
import threading
from typing import Any

import gymnasium
import numpy as np
import pytest

from grpo_gym.answers import read_step
from grpo_gym.curriculum import TaskSpec, TaskStream
from grpo_gym.errors import UsageError
from grpo_gym.session import EnvironmentFailure
from grpo_gym.testing.copy import CopyEnv
from grpo_gym.types import Message, Rollout
from tests.playing import (
    END,
    Fake,
    collector,
    goes_on,
    renderer,
    scripted,
    specs,
    turns,
)


def only(rollouts: tuple[Rollout, ...]) -> Rollout:
    assert len(rollouts) == 1
    return rollouts[0]


# Groups.


def test_a_group_is_g_copies_of_one_task_in_the_order_of_the_tasks() -> None:
    def start(env: Fake) -> Any:
        return (f"q{env.seed}", {"task_id": env.options["name"]})

    tasks = [TaskSpec(i, 7 * i, {"name": f"t{i}"}) for i in range(5)]
    groups = collector(lambda: Fake(start=start), copies=3).collect(tasks, 0).groups
    assert [group.task_id for group in groups] == ["t0", "t1", "t2", "t3", "t4"]
    assert [len(group.rollouts) for group in groups] == [3] * 5
    for i, group in enumerate(groups):
        prompt = (Message(role="user", content=f"q{7 * i}"),)
        assert all(r.prompt == prompt for r in group.rollouts)
        assert group.rollouts[0].prompt_ids.tolist() == renderer().prompt(prompt)


def test_an_environment_that_draws_from_global_state_is_refused_with_both_observations() -> None:
    numbers = itertools.count()
    tail = "and so on and on " * 20

    def start(env: Fake) -> Any:
        return (f"What is {next(numbers)}? {tail}", {})

    with pytest.raises(EnvironmentFailure) as caught:
        collector(lambda: Fake(start=start), copies=2).collect(specs(1), 0)
    message = str(caught.value)
    assert "What is 0?" in message
    assert "What is 1?" in message
    assert "seed=100" in message
    assert len(message) < 500


def test_a_difference_late_in_long_observations_is_shown() -> None:
    numbers = itertools.count()

    def start(env: Fake) -> Any:
        return ("x" * 500 + f"?{next(numbers)}!", {})

    with pytest.raises(EnvironmentFailure, match=r"\?0!.*\?1!|\?1!.*\?0!"):
        collector(lambda: Fake(start=start), copies=2).collect(specs(1), 0)


def test_copies_with_different_task_ids_are_refused() -> None:
    numbers = itertools.count()

    def start(env: Fake) -> Any:
        return ("same", {"task_id": f"t{next(numbers)}"})

    with pytest.raises(EnvironmentFailure, match=r"task ids 't[01]' and 't[01]'"):
        collector(lambda: Fake(start=start), copies=2).collect(specs(1), 0)


def test_an_environment_may_change_its_options_without_harm_to_the_other_copies() -> None:
    def start(env: Fake) -> Any:
        return env.options.pop("word"), {"task_id": env.options.pop("task_id")}

    options = {"word": "hello", "task_id": "t"}
    groups = collector(lambda: Fake(start=start), copies=4).collect(specs(1, options), 0).groups
    assert all(r.error is None for r in groups[0].rollouts)
    assert options == {"word": "hello", "task_id": "t"}


def test_messages_that_an_environment_goes_on_writing_to_are_copied() -> None:
    def step(env: Fake, action: str) -> Any:
        message["content"] += "!"
        return (message,), 0.0, len(env.seen) == 2, False, {}

    message: Message = {"role": "user", "content": "q"}
    env = Fake(step, lambda env: ((message,), {}))
    rollout = only(collector(lambda: env).collect(specs(1), 0).groups[0].rollouts)
    assert rollout.prompt[0]["content"] == "q"
    assert [turn.observation[0]["content"] for turn in rollout.turns] == ["q!", "q!!"]


# Environments of others.


class Guess(gymnasium.Env[str, str]):
    """As its author wrote it: text in and out, and nothing that we ask for."""

    observation_space = gymnasium.spaces.Text(100)
    action_space = gymnasium.spaces.Text(100)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        assert options is None
        self.secret = str(self.np_random.integers(10))
        self.left = 3
        return "Guess the digit.", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        right = action == self.secret
        return "wrong", float(right), right, self.left == 0, {"left": self.left}


def test_an_environment_of_somebody_else_is_played_unchanged() -> None:
    tasks = TaskStream.of(Guess(), 0, "train").take(4)
    play = collector(lambda: gymnasium.wrappers.TimeLimit(Guess(), 5), scripted(["3"]), copies=2)
    groups = play.collect(tasks, 0).groups
    assert [group.task_id for group in groups] == [f"seed-{task.seed}" for task in tasks]
    for rollout in (r for group in groups for r in group.rollouts):
        assert rollout.error is None
        assert rollout.prompt == ({"role": "user", "content": "Guess the digit."},)
        assert rollout.truncation in (None, "environment")
        assert rollout.terminated == (rollout.reward == 1.0)
        assert rollout.success == (None if rollout.terminated else False)


def test_both_flags_at_once_mean_that_the_task_ended() -> None:
    both = ("", 1.0, np.bool_(True), np.bool_(True), {})
    rollout = only(
        collector(lambda: Fake(lambda env, action: both)).collect(specs(1), 0).groups[0].rollouts
    )
    assert rollout.terminated
    assert not rollout.truncated
    assert rollout.truncation is None
    assert read_step(both).truncation is None


def test_lone_surrogates_from_an_environment_do_no_harm() -> None:
    env = Fake(turns(2, "a\udc80b"), lambda env: ("q\ud800", {}))
    rollout = only(collector(lambda: env).collect(specs(1), 0).groups[0].rollouts)
    assert rollout.error is None
    assert rollout.prompt[0]["content"] == "q?"
    assert rollout.turns[0].observation[0]["content"] == "a?b"


# Capacity.


@pytest.mark.parametrize(("copies", "lanes"), [(2, 5), (4, 3), (3, 1), (1, 1), (2, 100)])
def test_no_more_rollouts_are_in_play_than_there_are_lanes(copies: int, lanes: int) -> None:
    playing = threading.Lock()
    now, most, made = 0, 0, 0

    def start(env: Fake) -> Any:
        nonlocal now, most
        with playing:
            now += 1
            most = max(most, now)
        return "q", {}

    def step(env: Fake, action: str) -> Any:
        nonlocal now
        if len(env.seen) < 2:
            return goes_on()
        with playing:
            now -= 1
        return END

    def make() -> Fake:
        nonlocal made
        with playing:
            made += 1
        return Fake(step, start)

    ended: list[tuple[int, int]] = []
    play = collector(make, copies=copies, max_lanes=lanes)
    groups = play.collect(specs(7), 0, lambda *numbers: ended.append(numbers)).groups
    assert [len(group.rollouts) for group in groups] == [copies] * 7
    assert most <= max(copies, lanes)
    assert ended == sorted(set(ended))
    assert ended[-1] == (7 * copies, 7 * copies)
    before = made
    play.collect(specs(7), 0)
    assert made == before <= max(copies, lanes)


def test_close_closes_the_environments() -> None:
    envs: list[Fake] = []

    def make() -> Fake:
        envs.append(Fake())
        return envs[-1]

    play = collector(make, copies=3)
    play.collect(specs(2), 0)
    assert not any(env.closed for env in envs)
    play.close()
    assert len(envs) == 6
    assert all(env.closed for env in envs)
    assert play.collect(specs(2), 0).failures == 0
    play.close()


def test_nothing_to_play_is_no_error() -> None:
    collection = collector().collect([], 0)
    assert collection.groups == ()
    assert collection.tokens == collection.failures == 0


def test_an_interrupt_leaves_the_collector_usable() -> None:
    engine = scripted(["a b c d"])
    count = 0
    step = engine.step

    def interrupted() -> Any:
        nonlocal count
        count += 1
        if count == 5:
            raise KeyboardInterrupt
        return step()

    engine.step = interrupted  # type: ignore[method-assign]
    play = collector(lambda: Fake(turns(3)), engine, copies=2, max_lanes=6)
    with pytest.raises(KeyboardInterrupt):
        play.collect(specs(8), 0)
    assert not engine.busy
    again = play.collect(specs(8), 0)
    fresh = collector(lambda: Fake(turns(3)), scripted(["a b c d"]), copies=2).collect(specs(8), 0)
    for group, other in zip(again.groups, fresh.groups, strict=True):
        for one, two in zip(group.rollouts, other.rollouts, strict=True):
            assert one.token_ids.tolist() == two.token_ids.tolist()
    play.close()


# The context.


def test_a_prompt_that_does_not_fit_costs_its_group_and_no_other() -> None:
    def start(env: Fake) -> Any:
        return ("x" * (400 if env.seed == 101 else 4), {})

    play = collector(lambda: Fake(start=start), scripted(context=60), copies=2, top_logprobs=2)
    groups = play.collect(specs(3), 0).groups
    for rollout in groups[1].rollouts:
        assert rollout.truncation == "context"
        assert len(rollout.token_ids) == 0
        assert np.isnan(rollout.reward)
        assert rollout.success is False
        assert rollout.error is None
        assert rollout.top_ids is not None
        assert rollout.top_ids.shape == (0, 2)
    assert all(r.terminated for i in (0, 2) for r in groups[i].rollouts)
    # One that fitted has been seen, so that a later call may bring only such as do not.
    assert play.collect(specs(2)[1:], 0).groups[0].rollouts[0].truncation == "context"


def test_no_prompt_that_fits_is_the_users_to_mend() -> None:
    def start(env: Fake) -> Any:
        return ("x" * (200 + env.seed), {})

    play = collector(lambda: Fake(start=start), scripted(context=60), copies=2)
    with pytest.raises(UsageError, match="context of 60 tokens, not even that of task 'seed-100'"):
        play.collect(specs(3), 0)


def test_our_environments_are_played_by_task_and_split() -> None:
    stream = TaskStream.of(CopyEnv(), 0, "test")
    groups = collector(CopyEnv, scripted(["red"]), copies=2).collect(stream.take(6), 0).groups
    assert all(group.task_id.startswith("test-") for group in groups)
    for group in groups:
        asked = group.rollouts[0].prompt[0]["content"] == "Say red"
        assert group.rewards.tolist() == [float(asked)] * 2
        assert [r.success for r in group.rollouts] == [asked] * 2
