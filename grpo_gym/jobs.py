"""Training, as a config says, on all processes that a launcher has started."""

import copy
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from grpo_gym.adapting import adapt, trains_adapter
from grpo_gym.agent import Agent
from grpo_gym.config import TaskOptions, TrainConfig, parse_arguments
from grpo_gym.engines.base import Engine
from grpo_gym.engines.watchdog import closing_engine
from grpo_gym.errors import UsageError
from grpo_gym.learner import Learner, OptimiserOptions
from grpo_gym.learner.sharding import is_sharding
from grpo_gym.lora import fingerprint
from grpo_gym.objectives.penalties import KL
from grpo_gym.policy import TINY, Policy, load_policy
from grpo_gym.progress import Progress
from grpo_gym.ranks import Ranks
from grpo_gym.registry import make_agent, tried
from grpo_gym.runs import Run, open_run, save_config
from grpo_gym.sampler import MakeEnv, env_maker, make_engine
from grpo_gym.trainer import Trainer


def run_training(
    config: TrainConfig,
    console: Console | None = None,
    rule: Agent | None = None,
    env: MakeEnv | None = None,
    ranks: Ranks | None = None,
) -> Run:
    """Train as a config says, on all ranks that a launcher has started.

    Args:
        config: the options.
        console: where to show progress; None: nowhere.
        rule: an agent that the config's name cannot express.
        env: builds an environment that the config's name cannot express.
        ranks: the processes that train together; found if not given.
    """
    ranks = Ranks() if ranks is None else ranks
    config = _resolved(config)
    options = _optimiser_options(config)
    agent = ranks.alike(lambda: _agent(config, rule))
    make_env = env or env_maker(config)
    with _shared_run(config, ranks) as folder, ExitStack() as opened:
        policy = ranks.alike(lambda: _policy_to_train(config, make_env, folder))
        if ranks.count > 1:
            ranks.agree(fingerprint(policy.model), "the model")
        sampled = _sampled_policy(config, policy, ranks)
        learner = Learner(policy.model, agent, options, ranks.accelerator)
        engine = _training_engine(config, sampled, ranks, opened)
        del sampled  # of a copy there remains what the engine samples with
        engine.version = learner.version
        progress = Progress(console if ranks.index == 0 else None, config.steps)
        trainer = ranks.alike(
            lambda: Trainer(config, folder, make_env, policy, learner, engine, progress, ranks)
        )
        if config.resume:
            trainer.resume()
        ranks.first(lambda: save_config(config, agent, folder))
        progress.warn(_support_warning(config))
        progress.warn(_head_warning(config))
        with ranks.exchanging():
            return trainer.run()


@contextmanager
def _shared_run(config: TrainConfig, ranks: Ranks) -> Iterator[Path]:
    """The folder of a run, which rank 0 opens."""
    with ExitStack() as opened:
        yield ranks.first(lambda: opened.enter_context(open_run(config)))


def _policy_to_train(config: TrainConfig, make_env: MakeEnv, folder: Path) -> Policy:
    with tried(make_env, config.env):
        pass
    policy = _policy(config)
    if trains_adapter(config):
        adapt(config, policy, folder)
    return policy


def _sampled_policy(config: TrainConfig, policy: Policy, ranks: Ranks) -> Policy:
    """The policy that the engine samples from; where its weights are to be sharded, a copy that is not."""
    if ranks.accelerator is None or not is_sharding(ranks.accelerator):
        return policy
    model = copy.deepcopy(policy.model)
    if config.engine == "hf":  # vLLM has weights of its own on the device
        model.to(ranks.accelerator.device)
    return replace(policy, model=model)


def _training_engine(
    config: TrainConfig, policy: Policy, ranks: Ranks, opened: ExitStack
) -> Engine:
    """An engine of each rank's own; or one server for all, into which the first loads weights."""
    sharing = ranks.sharing()

    def make() -> Engine:
        engine = make_engine(config, policy, config.max_lanes, config.precision, sharing)
        return opened.enter_context(closing_engine(engine, config.engine_timeout_s))

    return ranks.alike(make)


def _support_warning(config: TrainConfig) -> str | None:
    """What to say of sampling that leaves tokens out: the learner's ratios know nothing of it."""
    names = [
        name
        for name, least in (("top_p", 1.0), ("top_k", 0), ("min_p", 0.0))
        if getattr(config, name) != least
    ]
    if not names:
        return None
    return (
        f"warning: sampling leaves tokens out ({', '.join(names)}), while the learner's log-probs are of all "
        "tokens: importance ratios to the behaviour policy are biased by the share left out"
    )


def _head_warning(config: TrainConfig) -> str | None:
    """What to say of a float32 head that a server, which is on its own, may not have."""
    if not config.fp32_lm_head or config.engine in ("hf", "vllm") or config.precision == "fp32":
        return None
    return (
        "warning: fp32_lm_head does not reach the server: start it with --hf-overrides "
        '\'{"head_dtype": "float32"}\''
    )


def _policy(config: TaskOptions) -> Policy:
    return load_policy(config.model, chat_template=config.chat_template)


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
    return agent


def _resolved(config: TrainConfig) -> TrainConfig:
    rate = config.learning_rate
    if rate is None:
        rate = 1.5e-4 if config.model == TINY else 1e-6
        if trains_adapter(config):  # as Schulman et al. found, "LoRA Without Regret", 2025
            rate *= 10
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
        fp32_lm_head=config.fp32_lm_head,
        gradient_checkpointing=config.gradient_checkpointing,
        max_bad_steps=config.max_bad_steps,
        seed=config.seed,
    )
