"""The tiny policy: a small model that ships with the package, for a first run on any machine.

It was warmed up on demonstrations of the procedural environments in which most answers are wrong, so that
it knows the format and finds the right answer sometimes: what is left is a job for reinforcement learning.
"""

from grpo_gym.tiny.demonstrations import Mixture
from grpo_gym.tiny.warmup import STEPS, rebuild, write

__all__ = ["STEPS", "Mixture", "rebuild", "write"]
