"""Runs programs that nobody has read: confined, limited, and never in this process."""

from grpo_gym.sandbox.backends import SAFE, backend, probe
from grpo_gym.sandbox.errors import SandboxError
from grpo_gym.sandbox.limits import Limits, Result, Status
from grpo_gym.sandbox.run import judge, run
from grpo_gym.sandbox.verdict import Verdict

__all__ = [
    "SAFE",
    "Limits",
    "Result",
    "SandboxError",
    "Status",
    "Verdict",
    "backend",
    "judge",
    "probe",
    "run",
]
