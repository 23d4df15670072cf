"""Wrappers of text environments, and many of them at once."""

from grpo_gym.wrappers.base import TextWrapper
from grpo_gym.wrappers.limits import TokenBudget, TurnLimit, count_tokens
from grpo_gym.wrappers.observations import FullHistory, JoinText
from grpo_gym.wrappers.record import RecordRollouts
from grpo_gym.wrappers.rewards import FormatReward, LengthPenalty
from grpo_gym.wrappers.tasks import TaskFilter
from grpo_gym.wrappers.vector import TextVectorEnv

__all__ = [
    "FormatReward",
    "FullHistory",
    "JoinText",
    "LengthPenalty",
    "RecordRollouts",
    "TaskFilter",
    "TextVectorEnv",
    "TextWrapper",
    "TokenBudget",
    "TurnLimit",
    "count_tokens",
]
