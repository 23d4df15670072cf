"""The literature: one paper, one file, one function that returns an `Agent`.

`AGENTS` maps each name to its function; a file put in this folder is found by itself.
"""

import pkgutil
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from grpo_gym.agent import Agent

if TYPE_CHECKING:  # for type checkers, which cannot follow the discovery
    from grpo_agents.dapo import dapo as dapo
    from grpo_agents.dr_grpo import dr_grpo as dr_grpo
    from grpo_agents.grpo import grpo as grpo
    from grpo_agents.gspo import gspo as gspo

AGENTS: dict[str, Callable[..., Agent]] = {
    module.name: getattr(import_module(f"{__name__}.{module.name}"), module.name)
    for module in pkgutil.iter_modules(__path__)
    if not module.name.startswith("_")
}
"""Name of a paper's algorithm -> function with the paper's defaults."""

# `import_module` has bound the submodules; the functions take their names.
globals().update(AGENTS)

__all__ = ["AGENTS", *AGENTS]
