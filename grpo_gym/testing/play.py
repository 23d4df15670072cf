"""Playing scripted episodes while checking every value that an environment returns."""

import copy
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import gymnasium
import numpy as np

from grpo_gym.types import as_messages


@contextmanager
def playing(make: Any) -> Iterator[gymnasium.Env[Any, Any]]:
    """A fresh environment, closed afterwards."""
    env = make()
    try:
        yield env
    finally:
        env.close()


class Episode:
    """One episode of an environment; every return value is checked and kept.

    Attributes:
        task_id: the task in play.
        prompt: the first messages as one text.
        log: all that the environment returned, as copies in which nan is the text "nan".
        reward: the sum of rewards so far.
        terminated: whether the task ended.
        truncated: whether a limit was hit.
        success: what the last info says, None if nothing.
        seconds: how long the last call of the environment took.

    Raises:
        AssertionError: A value breaks the contract.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        *,
        seed: int | None = None,
        options: dict[str, Any] | None = None,
    ) -> None:
        self.env = env
        started = time.perf_counter()
        observation, info = env.reset(seed=seed, options=options)
        self.seconds = time.perf_counter() - started
        _check_observation(env, observation)
        task_id = info.get("task_id")
        if not isinstance(task_id, str):
            raise AssertionError(f"reset must give a string info['task_id'], got {task_id!r}")
        self.task_id = task_id
        self.prompt = "\n".join(message["content"] for message in as_messages(observation))
        self.log: list[Any] = [_kept((observation, info))]
        self.reward = 0.0
        self.terminated = self.truncated = False
        self.success: bool | None = None

    @property
    def over(self) -> bool:
        """Whether the episode has ended."""
        return self.terminated or self.truncated

    @property
    def last(self) -> Any:
        """What the environment returned last."""
        return self.log[-1]

    def play(self, actions: Sequence[str]) -> None:
        """Take the actions in order, until they or the episode end."""
        for action in actions:
            if self.over:
                return
            started = time.perf_counter()
            observation, reward, terminated, truncated, info = self.env.step(action)
            self.seconds = time.perf_counter() - started
            _check_observation(self.env, observation)
            _check_step(reward, terminated, truncated, info)
            self.log.append(_kept((observation, reward, terminated, truncated, info)))
            self.reward += float(reward)
            self.terminated, self.truncated = bool(terminated), bool(truncated)
            self.success = info.get("success")


def transcript(
    make: Any,
    actions: Sequence[str],
    *,
    seed: int | None = None,
    options: dict[str, Any] | None = None,
) -> list[Any]:
    """All that a fresh environment returns when it is reset and plays the actions."""
    with playing(make) as env:
        episode = Episode(env, seed=seed, options=options)
        episode.play(actions)
    return episode.log


def _kept(value: Any) -> Any:
    """A copy to compare later, in which nan equals nan."""
    if isinstance(value, dict):
        return {key: _kept(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return tuple(_kept(item) for item in value)
    if isinstance(value, float) and math.isnan(value):
        return "nan"
    return copy.deepcopy(value)


def _check_observation(env: gymnasium.Env[Any, Any], observation: Any) -> None:
    if not env.observation_space.contains(observation):
        raise AssertionError(f"not in {env.observation_space}: {observation!r:.200}")


def _check_step(reward: Any, terminated: Any, truncated: Any, info: dict[str, Any]) -> None:
    if not isinstance(reward, int | float | np.floating | np.integer) or math.isinf(reward):
        raise AssertionError(f"a reward is a finite number or nan, got {reward!r}")
    for flag in (terminated, truncated):
        if not isinstance(flag, bool | np.bool_):
            raise AssertionError(f"terminated and truncated are bools, got {flag!r}")
    if terminated and truncated:
        raise AssertionError("terminated and truncated are both set")
    truncation = info.get("truncation")
    if bool(truncated) != isinstance(truncation, str):
        raise AssertionError(f"truncated is {truncated}, but info['truncation'] is {truncation!r}")
    success = info.get("success")
    if (terminated or truncated) != isinstance(success, bool):
        raise AssertionError(f"info['success'] is a bool at the end and only then, got {success!r}")
    components = info.get("reward_components")
    if not isinstance(components, dict) or not all(
        isinstance(name, str) and isinstance(part, float) for name, part in components.items()
    ):
        raise AssertionError(f"info['reward_components'] maps str to float, got {components!r}")
