"""Lanes go on by themselves: slow environments hold nobody up, stuck ones cost a timeout."""

import itertools
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from tests.playing import END, Fake, collector, goes_on, scripted, specs, turns


def played(lanes: int, seconds: float) -> float:
    """Wall-clock seconds of that many lanes with three turns of a tool that takes so long."""

    def step(env: Fake, action: str) -> Any:
        time.sleep(seconds)
        return turns(3)(env, action)

    play = collector(lambda: Fake(step), copies=lanes)
    play.collect(specs(1), 0)
    began = time.perf_counter()
    assert play.collect(specs(1), 0).failures == 0
    return time.perf_counter() - began


def test_32_lanes_with_a_slow_tool_take_less_than_twice_as_long_as_one() -> None:
    one = min(played(1, 0.02) for _ in range(3))
    many = min(played(32, 0.02) for _ in range(3))
    assert one > 0.06
    assert many < 2 * one


@pytest.mark.parametrize("call", ["reset", "step"])
def test_a_slow_environment_stalls_no_other(call: str) -> None:
    """Task 0 answers only when all others have ended: were they waiting for it, they never would."""
    others_ended = threading.Event()
    first_sampled = threading.Event()

    def wait(env: Fake) -> None:
        if env.seed == 100:
            assert others_ended.wait(20)

    def start(env: Fake) -> Any:
        if call == "reset" and first_sampled.is_set():
            wait(env)
        return f"q{env.seed}", {}

    def step(env: Fake, action: str) -> Any:
        first_sampled.set()
        if call == "step":
            wait(env)
        return turns(3)(env, action)

    def progress(ended: int, total: int) -> None:
        if ended == total - 2:
            others_ended.set()

    play = collector(lambda: Fake(step, start), copies=2, max_lanes=4, env_timeout_s=30)
    tasks = specs(8)
    collection = play.collect([*tasks[1:4], tasks[0], *tasks[4:]], 0, progress)
    assert others_ended.is_set()
    assert collection.failures == 0
    assert [group.task_id for group in collection.groups][3] == "seed-100"


def test_an_environment_that_keeps_others_waiting_does_so_once() -> None:
    """Were patience had anew whenever another lane is at its turn, 20 turns would cost 20 times 0.2 s."""
    ended = threading.Event()

    def step(env: Fake, action: str) -> Any:
        if env.seed == 100:
            assert ended.wait(20)
        return turns(1 if env.seed == 100 else 20)(env, action)

    play = collector(lambda: Fake(step), patience_s=0.2)
    began = time.perf_counter()
    assert play.collect(specs(2), 0, lambda *_: ended.set()).failures == 0
    assert time.perf_counter() - began < 2


def test_tokens_do_not_depend_on_how_slow_the_environments_are() -> None:
    def tokens(seconds: float) -> list[list[int]]:
        def step(env: Fake, action: str) -> Any:
            time.sleep(seconds * (env.seed % 3))
            return turns(3, f"{env.seed}")(env, action)

        script = lambda prompt, request: f"{request.seed % 1000}"  # noqa: E731
        play = collector(lambda: Fake(step), scripted(script), copies=2, patience_s=0.001)
        groups = play.collect(specs(4), 0).groups
        return [r.token_ids.tolist() for group in groups for r in group.rollouts]

    assert tokens(0.0) == tokens(0.01)


def test_a_slow_environment_is_not_waited_for_a_second_time() -> None:
    """With patience far above what the tool takes in all, the second call is as fast as it can be."""

    def step(env: Fake, action: str) -> Any:
        if env.seed == 100:
            time.sleep(0.3)
        return END

    says = lambda prompt, request: "a" * (1 if request.id == 0 else 60)  # noqa: E731
    engine = scripted(says)
    play = collector(lambda: Fake(step), engine, patience_s=0.1)
    play.collect(specs(1), 0)
    steps: list[float] = []
    step_engine = engine.step

    def timed() -> Any:
        steps.append(time.perf_counter())
        return step_engine()

    engine.step = timed  # type: ignore[method-assign]
    play.collect(specs(2), 0)
    gaps = [b - a for a, b in itertools.pairwise(steps)]
    assert max(gaps) < 0.1


@pytest.mark.parametrize("call", ["reset", "step"])
def test_a_stuck_environment_costs_its_timeout_and_its_rollout_once(call: str) -> None:
    stuck = threading.Event()
    calls = iter(range(100))

    def start(env: Fake) -> Any:
        if call == "reset" and next(calls) == 1:
            stuck.wait()
        return "question", {}

    def step(env: Fake, action: str) -> Any:
        if call == "step" and next(calls) == 1:
            stuck.wait()
        time.sleep(0.15)  # the others are still at work when the time is over
        return turns(4)(env, action)

    play = collector(lambda: Fake(step, start), copies=4, env_timeout_s=0.3)
    began = time.perf_counter()
    collection = play.collect(specs(1), 0)
    assert time.perf_counter() - began < 5
    assert collection.failures == 1
    lost = [r for r in collection.groups[0].rollouts if r.error is not None]
    assert [r.error for r in lost] == [f"{call} gave no answer in 0.3 s"]
    assert all(r.reward == 1.0 for r in collection.groups[0].rollouts if r.error is None)
    assert play.collect(specs(1), 0).failures == 0
    play.close()
    stuck.set()


def test_waiting_for_environments_takes_no_processor_time() -> None:
    def step(env: Fake, action: str) -> Any:
        time.sleep(0.5 if env.seed == 100 else 0.3)
        return END

    stuck = threading.Event()

    def start(env: Fake) -> Any:
        if env.seed == 102:
            stuck.wait()
        return "question", {}

    play = collector(lambda: Fake(step, start), env_timeout_s=0.9, max_error_share=0.5)
    began = time.thread_time()
    assert play.collect(specs(3), 0).failures == 1
    assert time.thread_time() - began < 0.3
    stuck.set()


STUCK = """
import gymnasium
from tests.playing import Fake, collector, specs
import time

def step(env, action):
    if env.seed == 100:
        time.sleep(10_000)
    return "", 1.0, True, False, {}

play = collector(lambda: Fake(step), copies=1, env_timeout_s=0.2, max_error_share=0.5)
assert play.collect(specs(3), 0).failures == 1
play.close()
print("done")
"""


@pytest.mark.slow
def test_a_stuck_environment_does_not_keep_the_process_alive() -> None:
    done = subprocess.run(
        [sys.executable, "-c", STUCK],
        env={"PYTHONPATH": ":".join(filter(None, [*sys.path[:4], "."])), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "done\n", done.stderr
    assert done.returncode == 0


def test_groups_are_opened_when_lanes_are_free_though_a_slow_one_is_still_at_work() -> None:
    release = threading.Event()

    def step(env: Fake, action: str) -> Any:
        if env.seed == 100 and not release.is_set():
            assert release.wait(20)
        return goes_on() if len(env.seen) < 2 else END

    def progress(ended: int, total: int) -> None:
        if ended == total - 1:
            release.set()

    play = collector(lambda: Fake(step), max_lanes=2, env_timeout_s=30)
    assert play.collect(specs(6), 0, progress).failures == 0
    assert release.is_set()
