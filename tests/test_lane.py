"""One rollout: where its limits cut, what it is called then, and what it is worth."""

import math
from typing import Any

import pytest

from grpo_gym.answers import Answer
from grpo_gym.engines.base import Sampling
from grpo_gym.lane import Lane, Limits
from grpo_gym.types import Completion, Message, Rollout
from tests.playing import Fake, collector, encode, goes_on, renderer, scripted, specs, turns

STOP = 1  # the end-of-turn token counts as sampled


def play(step: Any, script: str = "1234567", context: int = 4096, **options: Any) -> Rollout:
    collection = collector(lambda: Fake(step), scripted([script], context), **options)
    (group,) = collection.collect(specs(1), 0).groups
    (rollout,) = group.rollouts
    return rollout


def prompt_length() -> int:
    return len(renderer().prompt([Message(role="user", content="question")]))


def delta_length(text: str = "more") -> int:
    stop = renderer().stop_token_ids[:1]
    return len(renderer().extend(stop, [Message(role="user", content=text)]))


def ends(reward: float, success: bool | None = None) -> Any:
    return lambda env, action: ("", reward, True, False, {"success": success})


def test_an_episode_that_the_environment_ends_is_terminated() -> None:
    rollout = play(turns(2))
    assert (rollout.terminated, rollout.truncated, rollout.truncation) == (True, False, None)
    assert (rollout.reward, rollout.success) == (1.0, True)
    assert rollout.sampled_tokens == 2 * (7 + STOP)


# Of one turn.


def test_a_last_turn_cut_by_length_keeps_the_grade_and_counts_as_truncated() -> None:
    rollout = play(ends(0.5, True), max_tokens=5)
    assert (rollout.terminated, rollout.truncation) == (False, "turn_tokens")
    assert (rollout.reward, rollout.success) == (0.5, True)
    assert rollout.token_ids.tolist() == encode("12345")
    assert rollout.turns[0].action == "12345"
    assert rollout.turns[0].completion.finish_reason == "length"


def test_a_last_turn_that_just_fits_is_terminated() -> None:
    assert play(ends(0.5), max_tokens=7 + STOP).terminated


def test_a_turn_cut_in_the_middle_of_an_episode_is_closed_and_goes_on() -> None:
    rollout = play(turns(3), max_tokens=4)
    assert [turn.action for turn in rollout.turns] == ["1234"] * 3
    stop = renderer().stop_token_ids[0]
    assert rollout.token_ids[4] == stop
    assert not rollout.mask[4]
    assert rollout.truncation == "turn_tokens"  # the last turn was cut, too


def test_only_the_last_turn_decides_whether_a_rollout_is_cut() -> None:
    says = iter(["1234567", "1"])
    engine = scripted(lambda prompt, request: next(says))
    (group,) = collector(lambda: Fake(turns(2)), engine, max_tokens=4).collect(specs(1), 0).groups
    assert group.rollouts[0].terminated


# Of the whole rollout, and of the context.


@pytest.mark.parametrize("limit", ["rollout_tokens", "context"])
def test_a_turn_gets_what_is_left_and_is_graded(limit: str) -> None:
    most = 2 * (7 + STOP) + 2 * delta_length() + 3

    def play_until(step: Any, most: int) -> Rollout:
        if limit == "context":
            return play(step, context=prompt_length() + most)
        return play(step, rollout_tokens=most)

    rollout = play_until(turns(3), most)
    assert rollout.truncation == limit
    assert [turn.action for turn in rollout.turns] == ["1234567", "1234567", "123"]
    assert len(rollout.token_ids) == most
    assert (rollout.reward, rollout.success) == (1.0, True)
    # Without an end of the episode the limit ends it, without the observation that comes too late.
    rollout = play_until(turns(4), most)
    assert rollout.truncation == limit
    assert len(rollout.token_ids) == most
    assert (rollout.reward, rollout.success) == (0.0, False)
    assert rollout.turns[-1].observation == ({"role": "user", "content": "more"},)


@pytest.mark.parametrize("more", [0, delta_length()])
def test_an_observation_after_which_no_token_fits_is_left_out(more: int) -> None:
    most = 7 + STOP + more
    rollout = play(lambda env, action: goes_on(), rollout_tokens=most)
    assert rollout.truncation == "rollout_tokens"
    assert rollout.token_ids.tolist() == [*encode("1234567"), renderer().stop_token_ids[0]]
    assert bool(rollout.mask.all())
    assert (
        len(play(lambda env, action: goes_on(), rollout_tokens=most + delta_length() + 1).turns) > 1
    )


def test_a_long_observation_truncates_but_does_not_fail() -> None:
    rollout = play(turns(2, "x" * 500), context=200)
    assert rollout.error is None
    assert rollout.truncation == "context"
    assert (rollout.reward, rollout.success) == (0.0, False)


def test_the_tightest_limit_gives_its_name() -> None:
    endless = lambda env, action: goes_on()  # noqa: E731
    assert play(endless, rollout_tokens=50, context=500).truncation == "rollout_tokens"
    assert play(endless, rollout_tokens=500, context=100).truncation == "context"
    assert play(ends(1.0), max_tokens=3, rollout_tokens=3).truncation == "turn_tokens"
    assert play(ends(1.0), max_tokens=4, rollout_tokens=3).truncation == "rollout_tokens"


# Of the environment.


@pytest.mark.parametrize("info", [{"truncation": "max_turns"}, {}, {"truncation": None}])
def test_the_environments_own_limit_truncates_under_the_name_it_gives(info: dict[str, Any]) -> None:
    rollout = play(lambda env, action: ("late", 0.5, False, True, info))
    assert rollout.truncation == (info.get("truncation") or "environment")
    assert (rollout.reward, rollout.success) == (0.5, False)
    assert rollout.mask.all()


def test_a_truncation_that_is_named_but_not_flagged_is_none() -> None:
    rollout = play(lambda env, action: ("", 1.0, True, False, {"truncation": "max_turns"}))
    assert rollout.terminated
    assert rollout.truncation is None


def test_success_before_the_end_is_not_believed() -> None:
    def step(env: Fake, action: str) -> Any:
        return ("more", 1.0, False, False, {"success": True})

    rollout = play(step, rollout_tokens=20)
    assert rollout.success is False


@pytest.mark.parametrize(("said", "success"), [(True, True), (False, False), (None, None)])
def test_success_is_what_the_environment_says_and_never_the_reward(
    said: bool | None, success: bool | None
) -> None:
    assert play(ends(1.0, said)).success is success
    assert play(ends(0.0, said)).success is success


# Sums.


def test_rewards_and_their_parts_are_summed_over_the_turns() -> None:
    def step(env: Fake, action: str) -> Any:
        place = len(env.seen)
        parts = {"format": 0.5} if place < 3 else {"format": 0.5, "answer": 2.0}
        return "more", 0.25 * place, place == 3, False, {"reward_components": parts}

    rollout = play(step)
    assert rollout.reward == 0.25 + 0.5 + 0.75
    assert rollout.reward_components == {"format": 1.5, "answer": 2.0}
    assert [turn.reward for turn in rollout.turns] == [0.25, 0.5, 0.75]


def test_one_turn_that_cannot_be_scored_makes_the_rollout_so() -> None:
    def step(env: Fake, action: str) -> Any:
        return "more", math.nan if len(env.seen) == 1 else 1.0, len(env.seen) == 2, False, {}

    assert math.isnan(play(step).reward)


# By itself.


def test_versions_travel_with_the_tokens_of_each_turn() -> None:
    lane = Lane(renderer(), Sampling(max_tokens=9), Limits(9, None, 500), (0, 0, 0))
    lane.start("t", (), renderer().prompt([Message(role="user", content="q")]))
    stop = renderer().stop_token_ids[0]
    for version in (3, 4):
        assert lane.request(7) is not None
        lane.take(Completion([5, stop], [-1.0, float("nan")], "stop", version))  # type: ignore[arg-type]
        message = Message(role="user", content="go on")
        lane.answer(Answer((message,), 0.0, {}, version == 4, None, None))
    rollout = lane.rollout()
    assert rollout.versions[rollout.mask].tolist() == [3, 3, 4, 4]
    assert set(rollout.versions[~rollout.mask].tolist()) == {-1}
    assert rollout.terminated


def test_a_request_asks_for_no_more_than_fits() -> None:
    def most(limits: Limits) -> int:
        lane = Lane(renderer(), Sampling(max_tokens=64), limits, (0, 0, 0))
        lane.start("t", (), [1, 2, 3])
        request = lane.request(0)
        assert request is not None
        return request.sampling.max_tokens

    assert most(Limits(64, None, 1000)) == 64
    assert most(Limits(64, 10, 1000)) == 10
    assert most(Limits(64, 10, 8)) == 5


def test_an_engine_that_reports_no_most_probable_tokens_leaves_the_rollout_without() -> None:
    lane = Lane(renderer(), Sampling(top_logprobs=2), Limits(9, None, 500), (0, 0, 0))
    lane.start("t", (), [1, 2, 3])
    lane.request(0)
    lane.take(Completion([5], [-1.0], "stop"))  # type: ignore[arg-type]
    lane.answer(Answer((), 1.0, {}, True, None, None))
    assert lane.rollout().top_ids is None
