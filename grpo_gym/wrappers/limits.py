"""Wrappers that end an episode at a limit: of turns, or of tokens."""

from typing import Any, Protocol

import gymnasium

from grpo_gym.env import check_count
from grpo_gym.wrappers.base import Step, TextWrapper, cut


class TurnLimit(TextWrapper):
    """Truncates an episode after so many actions; `info["truncation"]` is then "turn_limit".

    Args:
        env: any text environment.
        turns: the most actions.

    Raises:
        UsageError: `turns` is below 1.
    """

    def __init__(self, env: gymnasium.Env[Any, str], turns: int) -> None:
        check_count("turns", turns)
        super().__init__(env, turns=turns)
        self.turns = turns
        self._taken = 0

    def begin(self, observation: Any) -> Any:
        """Nothing is taken yet."""
        self._taken = 0
        return observation

    def play(self, action: str) -> Step:
        """Play the action, and end the episode when it was the last one."""
        observation, reward, terminated, truncated, info = super().play(action)
        self._taken += 1
        if self._taken < self.turns or terminated or truncated:
            return observation, reward, terminated, truncated, info
        return observation, reward, False, True, cut(info, "turn_limit")


class Tokenizer(Protocol):
    """What counts tokens: a tokenizer of `transformers`, or one of `tokenizers`."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> Any:
        """The tokens of a text; their number is the length of the result."""
        ...


def count_tokens(tokenizer: Tokenizer, text: str) -> int:
    """Number of tokens of a text, without special ones."""
    clean = text.encode("utf-8", "replace").decode("utf-8")
    return len(tokenizer.encode(clean, add_special_tokens=False))


class TokenBudget(TextWrapper):
    """Truncates an episode whose actions have more tokens than allowed, as "token_budget".

    The action that goes over the budget is not played, whatever it says: it earns 0, as an answer
    that was never finished.

    Args:
        env: any text environment.
        tokenizer: counts the tokens.
        tokens: the most that all actions of an episode have together.

    Raises:
        UsageError: `tokens` is below 1.
    """

    def __init__(self, env: gymnasium.Env[Any, str], tokenizer: Tokenizer, tokens: int) -> None:
        check_count("tokens", tokens)
        super().__init__(env, tokenizer=tokenizer, tokens=tokens)
        self.tokenizer = tokenizer
        self.tokens = tokens
        self._left = 0

    def begin(self, observation: Any) -> Any:
        """The whole budget is left."""
        self._left = self.tokens
        return observation

    def play(self, action: str) -> Step:
        """Play the action, unless it goes over the budget."""
        self._left -= count_tokens(self.tokenizer, action)
        if self._left >= 0:
            return super().play(action)
        info = cut({"task_id": self.task_id, "reward_components": {}}, "token_budget")
        return "" if self.observation_space.contains("") else (), 0.0, False, True, info
