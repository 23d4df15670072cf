"""Environments of other libraries as ours, and ours for other trainers; see docs/adapters.md."""

import gymnasium

from grpo_envs.adapters.reasoning_names import EXCLUDED, GENERATORS


def register_reasoning_gym() -> None:
    """Register `reasoning_gym/NAME` for every generator, without importing the library.

    The ids of those that are left out are known too: making one says why.
    """
    for name in (*GENERATORS, *EXCLUDED):
        if f"reasoning_gym/{name}" not in gymnasium.registry:
            gymnasium.register(
                f"reasoning_gym/{name}",
                "grpo_envs.adapters.reasoning:ReasoningGymEnv",
                kwargs={"name": name},
                disable_env_checker=True,
                order_enforce=False,
            )
