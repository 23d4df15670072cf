"""Wrappers that change the reward: a bonus for the form, a penalty for length."""

from abc import abstractmethod
from typing import Any

import gymnasium
import numpy as np

from grpo_gym.errors import UsageError
from grpo_gym.rewards import LinearLength, Measure, Tags, Verifier, as_score
from grpo_gym.tasks import Task
from grpo_gym.wrappers.base import Step, TextWrapper


class RewardAtEnd(TextWrapper):
    """Adds to the last reward of an episode what its actions earn together, and logs it."""

    component = ""

    def __init__(self, env: gymnasium.Env[Any, str], **arguments: Any) -> None:
        super().__init__(env, **arguments)
        self.actions: list[str] = []

    def begin(self, observation: Any) -> Any:
        """No actions yet."""
        self.actions = []
        return observation

    def play(self, action: str) -> Step:
        """Play the action, and add to its reward when the episode ends."""
        self.actions.append(action)
        observation, reward, terminated, truncated, info = super().play(self.heard(action))
        if terminated or truncated:
            more = self.earned()
            reward += more
            components = {**info.get("reward_components", {}), self.component: more}
            info = {**info, "reward_components": components}
        return observation, reward, terminated, truncated, info

    def heard(self, action: str) -> str:
        """What the environment is given of an action."""
        return action

    @abstractmethod
    def earned(self) -> float:
        """What the actions of the episode earn."""


class FormatReward(RewardAtEnd):
    """Adds `weight` to the reward of an episode whose actions are all in the right form.

    Where only some are, their share of it. It is no success: a solved task is what the environment
    says. Logged as the component "format".

    Args:
        env: any text environment.
        form: grades the form of an action; by default thoughts between `<think>` and `</think>`,
            then the answer.
        weight: what the form is worth.
        answer_only: whether the environment is given the answer alone, where the form is right;
            `form` must then be `Tags`.

    Raises:
        UsageError: `weight` is not positive, or `answer_only` with a form that has no answer.
    """

    component = "format"

    def __init__(
        self,
        env: gymnasium.Env[Any, str],
        form: Verifier | Tags | None = None,
        weight: float = 0.1,
        answer_only: bool = False,
    ) -> None:
        super().__init__(env, form=form, weight=weight, answer_only=answer_only)
        self.form = Tags() if form is None else form
        if not weight > 0:
            raise UsageError(f"weight must be positive, got {weight}")
        if answer_only and not isinstance(self.form, Tags):
            raise UsageError("answer_only needs a form of Tags, which say where the answer is")
        self.weight = weight
        self.answer_only = answer_only

    def heard(self, action: str) -> str:
        """The answer alone, where it is asked for and the form is right."""
        answer = self.form.answer(action) if isinstance(self.form, Tags) else None
        return action if answer is None or not self.answer_only else answer

    def earned(self) -> float:
        """The share of actions in the right form, times the weight."""
        values = [as_score(self.form(action, "")).value for action in self.actions]
        return self.weight * sum(values) / len(values)

    @property
    def max_reward(self) -> float:
        """What the solution earns, in the right form."""
        return float(self.ask("max_reward", 1.0)) + self.weight

    def solution(self, task: Task) -> tuple[str, ...]:
        """The actions that solve the task, in the right form."""
        return self._written(self.ask("solution", lambda task: ())(task))

    def mistakes(self, task: Task, rng: np.random.Generator) -> tuple[str, ...]:
        """Mistakes in the right form."""
        return self._written(self.ask("mistakes", lambda task, rng: ())(task, rng))

    def _written(self, actions: tuple[str, ...]) -> tuple[str, ...]:
        if not isinstance(self.form, Tags):
            return actions
        return tuple(self.form.write(action) for action in actions)


class LengthPenalty(RewardAtEnd):
    """Takes up to `weight` off the reward of an episode whose actions are long together.

    Nothing up to the length `free`, all of it from `limit` on, evenly between. Logged as the
    component "length_penalty".

    Args:
        env: any text environment.
        free: the length that costs nothing.
        limit: the length that costs `weight`.
        weight: the greatest penalty.
        measure: the length of a text, in characters by default.

    Raises:
        UsageError: `weight` is not positive, or not 0 <= free < limit.
    """

    component = "length_penalty"

    def __init__(
        self,
        env: gymnasium.Env[Any, str],
        free: int,
        limit: int,
        weight: float = 0.5,
        measure: Measure = len,
    ) -> None:
        super().__init__(env, free=free, limit=limit, weight=weight, measure=measure)
        if not weight > 0:
            raise UsageError(f"weight must be positive, got {weight}")
        self.weight = weight
        self.measure = measure
        self.term = LinearLength(free, limit, measure)

    def earned(self) -> float:
        """The penalty for the length of all actions, at most 0."""
        return self.weight * (self.term.at(sum(map(self.measure, self.actions))) - 1)
