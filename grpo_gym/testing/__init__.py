"""For those who write environments: the contract as tests, and small fakes to learn on."""

from grpo_gym.testing.copy import CopyEnv

__all__ = ["CopyEnv"]
