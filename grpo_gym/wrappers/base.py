"""What the wrappers of text environments share."""

from typing import Any

import gymnasium
from gymnasium.error import ResetNeeded
from gymnasium.utils import RecordConstructorArgs

from grpo_gym.types import Message, Observation, as_messages

Step = tuple[Any, float, bool, bool, dict[str, Any]]


class TextWrapper(gymnasium.Wrapper[Any, str, Any, str], RecordConstructorArgs):
    """A wrapper of an environment whose observations are messages or strings.

    It knows the task in play and whether the episode is over. A subclass changes `begin`, `play`
    or both, and names its arguments to `__init__`, so that `gymnasium.make` can build it anew.
    """

    def __init__(self, env: gymnasium.Env[Any, str], **arguments: Any) -> None:
        RecordConstructorArgs.__init__(self, _disable_deepcopy=True, **arguments)
        gymnasium.Wrapper.__init__(self, env)
        self.task_id = ""
        self._over = True

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        observation, info = self.env.reset(seed=seed, options=options)
        self.task_id = str(info.get("task_id", ""))
        self._over = False
        return self.begin(observation), info

    def step(self, action: str) -> Step:
        """Take an action.

        Raises:
            ResetNeeded: The episode has ended, or has not begun.
        """
        if self._over:
            raise ResetNeeded("there is no episode to step: call reset() first")
        observation, reward, terminated, truncated, info = self.play(action)
        self._over = terminated or truncated
        return observation, reward, terminated, truncated, info

    def begin(self, observation: Any) -> Any:
        """What a reset shows; forget the episode before."""
        return observation

    def play(self, action: str) -> Step:
        """What an action brings; by default what the environment says."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, float(reward), bool(terminated), bool(truncated), info

    def ask(self, name: str, default: Any) -> Any:
        """An attribute of the environment or a wrapper below this one."""
        return attribute(self.env, name, default)


def attribute(env: gymnasium.Env[Any, Any], name: str, default: Any = None) -> Any:
    """An attribute of the outermost wrapper that has it, or of the environment; else `default`."""
    try:
        return env.get_wrapper_attr(name)
    except AttributeError:
        return default


def cut(info: dict[str, Any], limit: str) -> dict[str, Any]:
    """The info of a step that ends the episode at a limit."""
    return {**info, "success": False, "truncation": limit}


def said(observation: Observation) -> list[Message]:
    """Copies of the messages of an observation."""
    return [Message(**message) for message in as_messages(observation)]
