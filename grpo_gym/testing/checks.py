"""The environment contract, one function a clause. Each raises `AssertionError` when it is broken.

Every check takes `make`, which builds a fresh environment, and the seeds to try. A clause that
cannot be judged, as the environment offers no solution, raises `unittest.SkipTest`.
"""

import contextlib
import math
import random
import sys
import unittest
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils.env_checker import check_env, data_equivalence

from grpo_gym.testing.actions import JUNK, hacks
from grpo_gym.testing.play import Episode, playing, transcript
from grpo_gym.wrappers.base import attribute

Make = Callable[[], gymnasium.Env[Any, Any]]


def check_gymnasium(make: Make, seeds: Sequence[int]) -> None:
    """Gymnasium's own checker passes, its warnings taken as errors."""
    with warnings.catch_warnings(), playing(make) as env:
        warnings.simplefilter("error")
        # A wrapped environment is to be checked as it is wrapped.
        warnings.filterwarnings("ignore", ".*different from the unwrapped version")
        # The modes of rendering are tried on copies, which only a registered id can make.
        check_env(env, skip_render_check=env.spec is None)


def check_determinism(make: Make, seeds: Sequence[int]) -> None:
    """Equal seeds and actions give equal tasks, observations, rewards and infos."""
    for seed in seeds:
        for actions in _some_actions(make, seed):
            first, second = (transcript(make, actions, seed=seed) for _ in range(2))
            _require_equal(first, second, f"two runs of seed {seed} differ")


def check_group(make: Make, seeds: Sequence[int]) -> None:
    """Copies of one task do not disturb each other."""
    for seed in seeds:
        alone = transcript(make, JUNK[:2], seed=seed)
        with playing(make) as env, playing(make) as other:
            first, second = Episode(env, seed=seed), Episode(other, seed=seed)
            _require_equal(first.log, second.log, f"two copies of seed {seed} begin differently")
            for actions in _some_actions(make, seed):
                second.play(actions)
            first.play(JUNK[:2])
        _require_equal(alone, first.log, f"a copy of seed {seed} was disturbed by another")


def check_task_id(make: Make, seeds: Sequence[int]) -> None:
    """`info["task_id"]` of a drawn task, given as an option, brings the same task back."""
    for seed in seeds:
        with playing(make) as env:
            drawn = Episode(env, seed=seed)
        options = {"task_id": drawn.task_id}
        with playing(make) as env:
            again = Episode(env, seed=seed + 1, options=options)
        _require_equal(drawn.log, again.log, f"task {drawn.task_id!r} is not the same by its id")


def check_solution(make: Make, seeds: Sequence[int]) -> None:
    """The solution of every task ends it, succeeds, and earns the maximum."""
    for seed in seeds:
        with playing(make) as env:
            episode = Episode(env, seed=seed)
            best = float(attribute(env, "max_reward", 1.0))
            episode.play(scripted(env, "solution"))
        what = f"the solution of task {episode.task_id!r}"
        _require(episode.terminated, f"{what} does not end the episode")
        _require(episode.success is True, f"{what} is no success: {episode.last}")
        _require(math.isclose(episode.reward, best), f"{what} earns {episode.reward}, not {best}")


def check_mistakes(make: Make, seeds: Sequence[int]) -> None:
    """Plausible mistakes, alone or beside the solution, neither succeed nor earn the maximum."""
    for seed in seeds:
        with playing(make) as env:
            Episode(env, seed=seed)
            wrong = scripted(env, "mistakes", np.random.default_rng(seed))
            right = scripted(env, "solution")
        if not wrong:
            raise unittest.SkipTest("the environment names no mistakes")
        hedged = f"{wrong[-1]}\n{right[-1]}\n{wrong[-1]}"
        for actions in (wrong, (*right[:-1], hedged)):
            _require_no_win(make, seed, actions)


def check_hacks(make: Make, seeds: Sequence[int]) -> None:
    """Empty, junk, the echoed prompt and lists of candidates neither succeed nor earn the most."""
    for seed in seeds:
        with playing(make) as env:
            episode = Episode(env, seed=seed)
        for action in hacks(episode.prompt):
            _require_no_win(make, seed, [action] * 64)


def check_junk(make: Make, seeds: Sequence[int]) -> None:
    """`step` raises on no text, and what it returns keeps the rules of rewards, flags and infos."""
    for seed in seeds[:1]:
        for action in JUNK:
            with playing(make) as env:
                Episode(env, seed=seed).play([action] * 3)  # an `Episode` checks every step


def check_end(make: Make, seeds: Sequence[int]) -> None:
    """Every episode ends by itself, whatever the action."""
    for seed in seeds[:2]:
        for action in ("", "x"):
            with playing(make) as env:
                episode = Episode(env, seed=seed)
                episode.play([action] * 1000)
            _require(episode.over, f"1000 times {action!r} did not end task {episode.task_id!r}")


def check_global_rng(make: Make, seeds: Sequence[int]) -> None:
    """The random generators of `random`, NumPy and torch stay as they were."""
    before = list(_global_states())
    for seed in seeds[:2]:
        for actions in _some_actions(make, seed):
            transcript(make, actions, seed=seed)
    for (name, old), (_, new) in zip(before, _global_states(), strict=True):
        _require(data_equivalence(old, new, exact=True), f"the global generator of {name} was used")


CHECKS: tuple[Callable[[Make, Sequence[int]], None], ...] = (
    check_gymnasium,
    check_determinism,
    check_group,
    check_task_id,
    check_solution,
    check_mistakes,
    check_hacks,
    check_junk,
    check_end,
    check_global_rng,
)


def _some_actions(make: Make, seed: int) -> list[Sequence[str]]:
    """Two sequences of actions worth comparing: junk, and the solution where there is one."""
    sequences: list[Sequence[str]] = [JUNK[:2]]
    with playing(make) as env:
        Episode(env, seed=seed)
        with contextlib.suppress(unittest.SkipTest):
            sequences.append(scripted(env, "solution"))
    return sequences


def scripted(env: gymnasium.Env[Any, Any], name: str, *args: Any) -> tuple[str, ...]:
    """The actions that a hook names for the task in play."""
    hook, task = attribute(env, name), attribute(env, "task")
    if hook is None or task is None:
        raise unittest.SkipTest(f"the environment has no task, or no {name}(task)")
    actions = hook(task, *args)
    if not isinstance(actions, tuple | list):
        raise AssertionError(f"{name}(task) is a tuple of actions, one a turn, not {actions!r:.80}")
    actions = tuple(actions)
    if name == "solution" and not actions:
        raise unittest.SkipTest("the environment names no solution")
    return actions


def _require_no_win(make: Make, seed: int, actions: Sequence[str]) -> None:
    with playing(make) as env:
        episode = Episode(env, seed=seed)
        best = float(attribute(env, "max_reward", 1.0))
        episode.play(actions)
    won = episode.success is True or episode.reward >= best
    _require(not won, f"{actions[-1][:80]!r} wins task {episode.task_id!r}: {episode.last}")


def _global_states() -> Iterator[tuple[str, Any]]:
    yield "random", random.getstate()
    yield "numpy.random", np.random.get_state()  # noqa: NPY002
    if "torch" in sys.modules:
        yield "torch", sys.modules["torch"].get_rng_state().numpy().copy()


def _require_equal(first: Any, second: Any, message: str) -> None:
    _require(data_equivalence(first, second, exact=True), f"{message}: {first} / {second}"[:600])


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise AssertionError(message)
