"""Train and evaluate from Python, with names or with objects."""

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gymnasium
from rich.console import Console

from grpo_gym.agent import Agent
from grpo_gym.collector import INTERRUPTED
from grpo_gym.config import EvalConfig, TrainConfig, format_arguments, from_values
from grpo_gym.errors import UsageError
from grpo_gym.evaluation import Evaluation
from grpo_gym.jobs import run_training
from grpo_gym.playing import run_evaluate
from grpo_gym.runs import Run, saved_config

EnvSource = str | Callable[[], gymnasium.Env[Any, Any]]
"""An environment: its id, or a function that builds it."""


def train(
    *,
    env: EnvSource | None = None,
    agent: str | Agent | None = None,
    model: str | Path | None = None,
    env_args: Mapping[str, Any] | None = None,
    agent_args: Mapping[str, Any] | None = None,
    console: Console | None = None,
    **options: Any,
) -> Run:
    """Train a model on an environment.

    Args:
        env: id, or a function that builds a Gymnasium environment of text.
        agent: an `Agent`, or its name.
        model: "tiny", a model folder, or a hub id.
        env_args: arguments of the environment.
        agent_args: hyper-parameters of the agent, if `agent` is a name.
        console: where to show progress; None shows nothing.
        **options: fields of `TrainConfig`: steps, group_size, learning_rate, seed, run_dir, ...

    Returns:
        The run; `run.model` is the folder of the trained model.

    Raises:
        UsageError: A mistake in what was given.
    """
    rule = agent if isinstance(agent, Agent) else None
    if not (agent is None or isinstance(agent, str | Agent)):
        raise UsageError(
            f"agent is {agent!r:.80}: give a name or an Agent, such as grpo_agents.grpo() with brackets"
        )
    if rule is not None and agent_args is not None:
        raise UsageError("agent_args are for an agent given by name; this one is complete")
    values = dict(options)
    if rule is not None:
        values["agent"] = repr(rule)
    elif agent is not None:
        values["agent"] = agent
    if agent_args is not None:
        values["agent_arg"] = format_arguments(agent_args)
    values |= _task_values(env, model, env_args)
    if values.get("resume") and isinstance(values.get("run_dir"), str | Path):
        values = vars(saved_config(Path(values["run_dir"]))) | values
    config = from_values(TrainConfig, values, "train()")
    return run_training(config, console, rule, _maker(env))


def evaluate(
    *,
    env: EnvSource | None = None,
    model: str | Path | None = None,
    env_args: Mapping[str, Any] | None = None,
    console: Console | None = None,
    **options: Any,
) -> Evaluation:
    """Estimate pass@k of a model on an environment.

    Args:
        env: id, or a function that builds a Gymnasium environment of text.
        model: "tiny", a model folder (such as `run.model`), or a hub id.
        env_args: arguments of the environment.
        console: where to show progress; None shows nothing.
        **options: fields of `EvalConfig`: n, k, tasks, temperature, max_tokens, seed, ...

    Returns:
        The estimates; where an endpoint stopped the run, those of what had ended, with a warning.

    Raises:
        UsageError: A mistake in what was given.
    """
    values = options | _task_values(env, model, env_args)
    evaluation = run_evaluate(from_values(EvalConfig, values, "evaluate()"), console, _maker(env))
    if evaluation.stopped is not None:
        if evaluation.stopped.startswith(INTERRUPTED):
            raise KeyboardInterrupt(evaluation.stopped)
        warnings.warn(f"evaluate() stopped early: {evaluation.stopped}", stacklevel=2)
    return evaluation


def _maker(env: EnvSource | None) -> Callable[[], gymnasium.Env[Any, Any]] | None:
    """The function that builds the environment, if it is not given by name."""
    return env if callable(env) else None


def _task_values(
    env: EnvSource | None, model: str | Path | None, env_args: Mapping[str, Any] | None
) -> dict[str, Any]:
    """How a config records what was given as an object."""
    values: dict[str, Any] = {}
    if callable(env):
        if env_args is not None:
            raise UsageError(
                "env_args are for an environment given by id; have the function use them"
            )
        values["env"] = f"{env.__module__}:{getattr(env, '__qualname__', type(env).__qualname__)}"
    elif isinstance(env, str):
        values["env"] = env
    elif env is not None:
        raise UsageError(
            f"env is {env!r:.80}: give an id, or a class or function that builds the environment, "
            "since every copy of a task needs its own"
        )
    if env_args is not None:
        values["env_arg"] = format_arguments(env_args)
    if model is not None:
        values["model"] = model
    return values
