"""Wrappers that change what is observed: the whole conversation, or one string."""

from typing import Any

import gymnasium

from grpo_gym.spaces import Messages, Text
from grpo_gym.types import Message, as_messages
from grpo_gym.wrappers.base import Step, TextWrapper, said


class FullHistory(TextWrapper):
    """Observes the whole conversation so far, the actions as assistant messages, not the news alone.

    For policies that see one observation at a time. The trainer of this package remembers the
    conversation itself.

    Args:
        env: any text environment.
    """

    def __init__(self, env: gymnasium.Env[Any, str]) -> None:
        super().__init__(env)
        self.observation_space = Messages()
        self._messages: list[Message] = []

    def begin(self, observation: Any) -> tuple[Message, ...]:
        """The first messages."""
        self._messages = said(observation)
        return tuple(said(tuple(self._messages)))

    def play(self, action: str) -> Step:
        """Play the action; observe everything."""
        observation, reward, terminated, truncated, info = super().play(action)
        self._messages.append(Message(role="assistant", content=action))
        self._messages += said(observation)
        everything = tuple(said(tuple(self._messages)))
        return everything, reward, terminated, truncated, info


class JoinText(TextWrapper):
    """Observes one string: the contents of the messages, a blank line between them.

    Args:
        env: any text environment.
        roles: whether each message begins with its role, as in "User: ".
    """

    def __init__(self, env: gymnasium.Env[Any, str], roles: bool = False) -> None:
        super().__init__(env, roles=roles)
        self.observation_space = Text()
        self.roles = roles

    def begin(self, observation: Any) -> str:
        """The first messages as text."""
        return self._join(observation)

    def play(self, action: str) -> Step:
        """Play the action; observe the news as text."""
        observation, reward, terminated, truncated, info = super().play(action)
        return self._join(observation), reward, terminated, truncated, info

    def _join(self, observation: Any) -> str:
        return "\n\n".join(
            f"{message['role'].capitalize()}: {message['content']}"
            if self.roles
            else message["content"]
            for message in as_messages(observation)
        )
