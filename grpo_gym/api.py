"""The three things one does, from Python: train, evaluate, play."""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
from rich.console import Console

from grpo_gym.agent import Agent
from grpo_gym.collector import Collector, collector_settings
from grpo_gym.config import (
    EvalConfig,
    RolloutConfig,
    TaskOptions,
    TrainConfig,
    format_arguments,
    from_values,
    parse_arguments,
)
from grpo_gym.curriculum import TaskStream
from grpo_gym.engines.hf import HFEngine
from grpo_gym.errors import UsageError
from grpo_gym.evaluation import Evaluation, run_evaluation
from grpo_gym.learner import Learner, OptimiserOptions
from grpo_gym.monitor import write_atomically, write_rollouts
from grpo_gym.objectives.penalties import KL
from grpo_gym.policy import TINY, Policy, load_policy
from grpo_gym.progress import Progress
from grpo_gym.registry import make, make_agent
from grpo_gym.runs import Run, open_run, save_config, saved_config
from grpo_gym.trainer import Trainer
from grpo_gym.types import Group

EnvSource = str | Callable[[], gymnasium.Env[Any, Any]]
"""An environment: its id, or a function that builds it."""

# Tasks of an endless environment that are played when no number is given.
_ENDLESS_TASKS = 200


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

    Raises:
        UsageError: A mistake in what was given.
    """
    values = options | _task_values(env, model, env_args)
    return run_evaluate(from_values(EvalConfig, values, "evaluate()"), console, _maker(env))


def run_training(
    config: TrainConfig,
    console: Console | None = None,
    rule: Agent | None = None,
    env: Callable[[], gymnasium.Env[Any, Any]] | None = None,
) -> Run:
    """Train as a config says; `rule` and `env` stand in for what its names cannot express."""
    config = _resolved(config)
    options = _optimiser_options(config)
    agent = _agent(config, rule)
    make_env = env or _env_maker(config)
    with open_run(config) as folder:
        make_env().close()
        policy = load_policy(config.model)
        learner = Learner(policy.model, agent, options)
        engine = HFEngine(learner.model, policy.tokenizer, max_lanes=config.max_lanes)
        engine.version = learner.version
        progress = Progress(console, config.steps)
        trainer = Trainer(config, folder, make_env, policy, learner, engine, progress)
        if config.resume:
            trainer.resume()
        save_config(config, agent, folder)
        return trainer.run()


def run_evaluate(
    config: EvalConfig,
    console: Console | None = None,
    env: Callable[[], gymnasium.Env[Any, Any]] | None = None,
) -> Evaluation:
    """Evaluate as a config says."""
    for path in (config.out, config.rollouts):
        _check_writable(path)
    make_env = env or _env_maker(config)
    stream = _evaluation_stream(config, make_env)
    tasks = stream.finite(config.tasks or (10**9 if stream.is_finite else _ENDLESS_TASKS))
    collector = _collector(config, make_env, load_policy(config.model), config.n)
    try:
        with Progress(console, 1) as progress:
            evaluation, groups = run_evaluation(
                config.env,
                collector,
                tasks,
                n=config.n,
                k=config.k,
                seed=config.seed,
                progress=progress.evaluation,
            )
    finally:
        collector.close()
    if config.out is not None:
        write_atomically(Path(config.out), evaluation.to_json() + "\n")
    if config.rollouts is not None:
        write_rollouts(Path(config.rollouts), groups)
    return evaluation


def run_rollouts(config: RolloutConfig) -> tuple[Group, ...]:
    """Play episodes, one of each task, as a config says."""
    make_env = _env_maker(config)
    stream = _evaluation_stream(config, make_env)
    collector = _collector(config, make_env, load_policy(config.model), 1)
    try:
        return collector.collect(stream.finite(config.episodes), config.seed).groups
    finally:
        collector.close()


def _collector(
    config: EvalConfig | RolloutConfig,
    make_env: Callable[[], gymnasium.Env[Any, Any]],
    policy: Policy,
    copies: int,
) -> Collector:
    engine = HFEngine(policy.model, policy.tokenizer, max_lanes=config.max_lanes)
    sampling, options = collector_settings(config, copies, policy.renderer.stop_token_ids)
    return Collector(make_env, engine, policy.renderer, sampling, options)


def _agent(config: TrainConfig, rule: Agent | None) -> Agent:
    """The agent of a config, checked against the rest of it."""
    if rule is None and config.agent.startswith("Agent("):
        raise UsageError("the run was made with an Agent that has no name: give agent= again")
    agent = rule or make_agent(
        config.agent, **parse_arguments(config.agent_arg, f"agent argument of {config.agent}")
    )
    if config.kl:
        agent = replace(agent, penalties=(*agent.penalties, KL(config.kl, config.kl_kind)))
    agent.check(config.group_size)
    if agent.needs.critic:
        raise UsageError(f"agent {config.agent} needs a critic, and a run here trains none")
    return agent


def _env_maker(config: TaskOptions) -> Callable[[], gymnasium.Env[Any, Any]]:
    if "<" in config.env:  # as in module:<lambda>
        raise UsageError("the run was made with an environment that has no name: give env= again")
    arguments = parse_arguments(config.env_arg, f"argument of {config.env}")
    return lambda: make(config.env, **arguments)


def _evaluation_stream(
    config: EvalConfig | RolloutConfig, make_env: Callable[[], gymnasium.Env[Any, Any]]
) -> TaskStream:
    env = make_env()
    try:
        return TaskStream.evaluation(env, config.seed, config.split)
    finally:
        env.close()


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


def _resolved(config: TrainConfig) -> TrainConfig:
    rate = config.learning_rate
    if rate is None:
        rate = 1.5e-4 if config.model == TINY else 1e-6
    return replace(config, learning_rate=rate)


def _optimiser_options(config: TrainConfig) -> OptimiserOptions:
    assert config.learning_rate is not None
    return OptimiserOptions(
        learning_rate=config.learning_rate,
        weight_decay=config.weight_decay,
        schedule=config.schedule,
        warmup_steps=config.warmup_steps,
        total_steps=config.steps * config.epochs * config.mini_batches,
        max_grad_norm=config.max_grad_norm,
        epochs=config.epochs,
        mini_batches=config.mini_batches,
        tokens_per_micro_batch=config.tokens_per_micro_batch,
        temperature=config.temperature,
        precision=config.precision,
        gradient_checkpointing=config.gradient_checkpointing,
        max_bad_steps=config.max_bad_steps,
        seed=config.seed,
    )


def _check_writable(path: str | None) -> None:
    """Refuse at once a file that could not be written in the end."""
    if path is None:
        return
    folder = Path(path).parent
    try:
        if Path(path).is_dir():
            raise UsageError(f"cannot write {path}: it is a folder")
        if not folder.is_dir():
            raise UsageError(f"cannot write {path}: there is no folder {folder}")
    except OSError as error:  # such as a name that is too long
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
    if not os.access(folder, os.W_OK):
        raise UsageError(f"cannot write {path}: the folder {folder} is read-only")
