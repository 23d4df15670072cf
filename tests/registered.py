"""Building a registered environment for a test, or skipping the test where it cannot be built here."""

from typing import Any

import gymnasium
import pytest

from grpo_envs.catalogue import sample_arguments
from grpo_gym import registry
from grpo_gym.errors import UsageError
from grpo_gym.sandbox import SandboxError


def build_or_skip(row: registry.EnvironmentRow) -> gymnasium.Env[Any, Any]:
    """The environment of a row of the catalogue; skips where an extra or any sandbox is missing."""
    try:
        return registry.make(row.id, **sample_arguments(row.id))
    except SandboxError as error:
        pytest.skip(str(error))
    except UsageError as error:
        if not row.install:
            raise
        pytest.skip(str(error))
