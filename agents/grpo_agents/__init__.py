"""The literature: one paper, one file, one function that returns an `Agent`.

`AGENTS` maps each name to its function; a file put in this folder is found by itself.
"""

import pkgutil
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from grpo_agents._recipes import recipe_files as recipe_files
from grpo_gym.agent import Agent

if TYPE_CHECKING:  # for type checkers, which cannot follow the discovery
    from grpo_agents.cispo import cispo as cispo
    from grpo_agents.dapo import dapo as dapo
    from grpo_agents.dppo import dppo as dppo
    from grpo_agents.dr_grpo import dr_grpo as dr_grpo
    from grpo_agents.gdpo import gdpo as gdpo
    from grpo_agents.gmpo import gmpo as gmpo
    from grpo_agents.gopo import gopo as gopo
    from grpo_agents.grpo import grpo as grpo
    from grpo_agents.gspo import gspo as gspo
    from grpo_agents.gspo_token import gspo_token as gspo_token
    from grpo_agents.luspo import luspo as luspo
    from grpo_agents.ppo import ppo as ppo
    from grpo_agents.reinforce_pp import reinforce_pp as reinforce_pp
    from grpo_agents.reinforce_pp_baseline import reinforce_pp_baseline as reinforce_pp_baseline
    from grpo_agents.rloo import rloo as rloo
    from grpo_agents.sapo import sapo as sapo
    from grpo_agents.scalerl import scalerl as scalerl
    from grpo_agents.two_grpo import two_grpo as two_grpo
    from grpo_agents.vespo import vespo as vespo

AGENTS: dict[str, Callable[..., Agent]] = {
    module.name: getattr(import_module(f"{__name__}.{module.name}"), module.name)
    for module in pkgutil.iter_modules(__path__)
    if not module.name.startswith("_")
}
"""Name of a paper's algorithm -> function with the paper's defaults."""

# `import_module` has bound the submodules; the functions take their names.
globals().update(AGENTS)

__all__ = ["AGENTS", "recipe_files", *AGENTS]
