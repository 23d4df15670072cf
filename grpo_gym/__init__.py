"""Tasks with verifiable rewards as Gymnasium environments, and the GRPO family as values."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grpo_gym.agent import Agent
    from grpo_gym.api import evaluate, train
    from grpo_gym.env import Reply, TextEnv
    from grpo_gym.errors import UsageError
    from grpo_gym.registry import agents, environments, make, make_agent, register
    from grpo_gym.rewards import Criterion, Rubric, Score
    from grpo_gym.tasks import ListTasks, ProceduralTasks, Task
    from grpo_gym.tools import ToolEnv, tool

__version__ = "0.1.0"

# Where each public name lives; it is imported when it is first used, so that importing the package
# loads neither torch nor anything else that is slow.
_HOMES = {
    "Agent": "agent",
    "Criterion": "rewards",
    "ListTasks": "tasks",
    "ProceduralTasks": "tasks",
    "Reply": "env",
    "Rubric": "rewards",
    "Score": "rewards",
    "Task": "tasks",
    "TextEnv": "env",
    "ToolEnv": "tools",
    "UsageError": "errors",
    "agents": "registry",
    "evaluate": "api",
    "train": "api",
    "environments": "registry",
    "make": "registry",
    "make_agent": "registry",
    "register": "registry",
    "tool": "tools",
}

__all__ = [
    "Agent",
    "Criterion",
    "ListTasks",
    "ProceduralTasks",
    "Reply",
    "Rubric",
    "Score",
    "Task",
    "TextEnv",
    "ToolEnv",
    "UsageError",
    "agents",
    "environments",
    "evaluate",
    "make",
    "make_agent",
    "register",
    "tool",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'grpo_gym' has no attribute {name!r}")
    return getattr(import_module(f"grpo_gym.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
