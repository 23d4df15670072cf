"""One rollout in the making, whatever the policy speaks: what was said, what it earned, how it ends."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

from grpo_gym.answers import Answer
from grpo_gym.types import Completion, Message, Rollout, Turn


@dataclass(eq=False)
class Episode(ABC):
    """State of one rollout while it is played.

    `start` gives it the first observation, then `request`, `take` and `answer` follow each other until
    `over`; `rollout` is the result. A subclass knows what is asked of the policy and what it says.
    """

    task_id: str = field(init=False, default="")
    prompt: tuple[Message, ...] = field(init=False, default=())
    turns: list[Turn] = field(init=False, default_factory=list)
    components: dict[str, float] = field(init=False, default_factory=dict)
    reward: float = field(init=False, default=0.0)
    success: bool | None = field(init=False, default=None)
    terminated: bool = field(init=False, default=False)
    truncation: str | None = field(init=False, default=None)
    error: str | None = field(init=False, default=None)
    completions: list[Completion] = field(init=False, default_factory=list)
    _last: tuple[str, str | None] = field(init=False, default=("", None))

    @abstractmethod
    def start(self, task_id: str, prompt: tuple[Message, ...], rendered: Any) -> None:
        """Take the first observation, and what was rendered of it for all copies of the task."""

    @abstractmethod
    def request(self, number: int) -> Any:
        """What to ask the policy for next, or None when a limit ends the rollout instead."""

    @abstractmethod
    def take(self, completion: Any) -> str:
        """Take what the policy said; return it as the action for the environment."""

    @abstractmethod
    def rollout(self) -> Rollout:
        """The finished rollout."""

    @abstractmethod
    def _extend(self, answer: Answer) -> None:
        """Take what the environment said in an episode that goes on."""

    @property
    def over(self) -> bool:
        """Whether the rollout has ended, for whatever reason."""
        return self.terminated or self.truncation is not None or self.error is not None

    def answer(self, answer: Answer) -> None:
        """Take what the environment answered to the last action."""
        action, limit = self._last
        self.turns.append(Turn(self.completions[-1], action, answer.messages, answer.reward))
        self.reward += answer.reward
        for name, value in answer.components.items():
            self.components[name] = self.components.get(name, 0.0) + value
        self.success = answer.success
        if answer.terminated and limit is None:
            self.terminated = True
        elif answer.terminated:  # what was cut off might have changed the verdict
            self.truncate(str(limit))
        elif answer.truncation is not None:
            self.truncate(answer.truncation)
        else:
            self._extend(answer)

    def truncate(self, limit: str) -> None:
        """End the rollout because a limit was hit."""
        self.truncation = limit
        if not self.turns:
            self.reward = float("nan")
        if self.success is None:
            self.success = False

    def fail(self, error: str) -> None:
        """End the rollout because its environment or its request failed; it then counts for nothing."""
        self.error, self.reward = error, float("nan")

    def _outcome(self) -> dict[str, Any]:
        """The fields of a `Rollout` that do not depend on what the policy speaks."""
        return {
            "task_id": self.task_id,
            "prompt": self.prompt,
            "turns": tuple(self.turns),
            "reward": self.reward,
            "reward_components": dict(self.components),
            "success": self.success,
            "terminated": self.terminated,
            "truncated": self.truncation is not None,
            "truncation": self.truncation,
            "error": self.error,
        }
