"""For those who write environments: the contract, as tests and as a report, and a small fake."""

from grpo_gym.testing.card import Card, measure_environment
from grpo_gym.testing.contract import EnvContract, Outcome, Report, check_environment
from grpo_gym.testing.copy import CopyEnv

__all__ = [
    "Card",
    "CopyEnv",
    "EnvContract",
    "Outcome",
    "Report",
    "check_environment",
    "measure_environment",
]
