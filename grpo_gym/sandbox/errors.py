"""Errors of the sandbox."""

from grpo_gym.errors import UsageError


class SandboxError(UsageError):
    """No program was run, because it could not have been confined. The message says what to install."""
