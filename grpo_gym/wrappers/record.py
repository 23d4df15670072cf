"""A wrapper that writes every episode to a file."""

from collections import Counter
from pathlib import Path
from typing import Any

import gymnasium

from grpo_gym.errors import UsageError
from grpo_gym.monitor import to_json
from grpo_gym.types import Message
from grpo_gym.wrappers.base import Step, TextWrapper, said


class RecordRollouts(TextWrapper):
    """Appends each episode, when it ends, as a line of JSON.

    A line holds the task's id, the messages, the reward of each turn and their sum, the summed
    components, success, and how the episode ended. A number that is nan becomes null. Several
    environments may append to one file. An episode that is left unfinished is not written.

    Args:
        env: any text environment.
        path: the file; its folder is made.

    Raises:
        UsageError: The file cannot be written.
    """

    def __init__(self, env: gymnasium.Env[Any, str], path: str | Path) -> None:
        super().__init__(env, path=path)
        self.path = Path(path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.open("a").close()
        except OSError as error:
            raise UsageError(f"cannot write to {self.path}: {error.strerror}") from error
        self._messages: list[Message] = []
        self._rewards: list[float] = []
        self._components: Counter[str] = Counter()

    def begin(self, observation: Any) -> Any:
        """Begin a record."""
        self._messages, self._rewards, self._components = said(observation), [], Counter()
        return observation

    def play(self, action: str) -> Step:
        """Play the action; write the record when the episode ends."""
        observation, reward, terminated, truncated, info = super().play(action)
        self._messages += [Message(role="assistant", content=action), *said(observation)]
        self._rewards.append(reward)
        for name, part in info.get("reward_components", {}).items():
            self._components[name] += part
        if terminated or truncated:
            self._write(terminated, truncated, info)
        return observation, reward, terminated, truncated, info

    def _write(self, terminated: bool, truncated: bool, info: dict[str, Any]) -> None:
        record = {
            "task_id": self.task_id,
            "messages": self._messages,
            "rewards": self._rewards,
            "reward": sum(self._rewards),
            "reward_components": dict(self._components),
            "success": info.get("success"),
            "terminated": terminated,
            "truncated": truncated,
            "truncation": info.get("truncation"),
        }
        # One write for a line, so that lines of several environments do not mix.
        with self.path.open("a", encoding="utf-8") as file:
            file.write(to_json(record) + "\n")
