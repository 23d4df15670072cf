"""Our environments as TRL's `environment_factory`."""

from collections.abc import Callable, Iterable
from typing import Any

import gymnasium

from grpo_envs.adapters.rewards import Make, joined, rows
from grpo_gym.types import as_messages

HOW = "Answer by calling the tool `act`.\n\n"


class TRLEnvironment:
    """One environment as TRL wants it: `reset` tells the task, the tool `act` plays it.

    TRL cannot end an episode: once it is over, `act` says so and changes nothing. An episode in which
    `act` is never called earns 0.

    Args:
        env: the environment.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        self._env = env
        self._over = True
        self._reward = 0.0

    def reset(self, task_id: str | None = None, **_: Any) -> str:
        """Begin the task of a row; TRL appends what this returns to the prompt."""
        options = {} if task_id is None else {"task_id": task_id}
        observation, _info = self._env.reset(options=options)
        self._over, self._reward = False, 0.0
        return joined(as_messages(observation))

    def act(self, text: str) -> str:
        """Answer the environment, or make the next move.

        Args:
            text: What you say.

        Returns:
            What the environment says to that.
        """
        if self._over:
            return "It is over."
        observation, reward, terminated, truncated, _info = self._env.step(str(text))
        self._reward += float(reward)
        self._over = bool(terminated or truncated)
        return joined(as_messages(observation)) or ("It is over." if self._over else "")

    def get_reward(self) -> float:
        """The sum of the episode's rewards so far."""
        return self._reward


def trl_environment(make: Make) -> Callable[[], TRLEnvironment]:
    """An `environment_factory` for TRL's `GRPOTrainer`, over a data set of `trl_rows`.

    Args:
        make: builds the environment, of one turn or of several.
    """
    return lambda: TRLEnvironment(make())


def trl_rows(make: Make, seeds: Iterable[int], split: str | None = None) -> list[dict[str, Any]]:
    """The data set for `trl_environment`: task ids, and a prompt to which `reset` appends the task.

    TRL hands `reset` no seed, so the rows name the tasks.

    Args:
        make: builds the environment.
        seeds: each draws a task.
        split: the split to draw from; None for the environment's default.
    """
    prompt = [{"role": "user", "content": HOW}]
    return [{"prompt": prompt, "task_id": row["task_id"]} for row in rows(make, seeds, split)]
