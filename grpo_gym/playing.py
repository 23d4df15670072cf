"""Evaluate and play, as a config says, on all processes that a launcher has started."""

import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path

from rich.console import Console

from grpo_gym.collector import BaseCollector, Collection, Collector
from grpo_gym.config import EvalConfig, RolloutConfig, is_endpoint
from grpo_gym.curriculum import TaskSpec, TaskStream
from grpo_gym.engines.watchdog import closing_engine
from grpo_gym.errors import UsageError
from grpo_gym.evaluation import Evaluation, summarise
from grpo_gym.interrupts import Interrupts
from grpo_gym.lora import fingerprint
from grpo_gym.monitor import write_atomically, write_rollouts
from grpo_gym.policy import Policy, load_policy
from grpo_gym.progress import Progress
from grpo_gym.ranks import RankCollector, Ranks
from grpo_gym.registry import tried
from grpo_gym.sampler import MakeEnv, env_maker, make_collector

# Tasks of an endless environment that are played when no number is given.
_ENDLESS_TASKS = 200


def run_evaluate(
    config: EvalConfig,
    console: Console | None = None,
    env: MakeEnv | None = None,
    ranks: Ranks | None = None,
) -> Evaluation:
    """Evaluate as a config says, on all ranks that a launcher has started; the first writes.

    Args:
        config: the options.
        console: where to show progress; None: nowhere.
        env: builds an environment that the config's name cannot express.
        ranks: the processes that share the tasks; found if not given.
    """
    ranks = Ranks() if ranks is None else ranks
    ranks.first(lambda: _check_writable(config.out, config.rollouts))
    make_env = env or env_maker(config)
    with (
        _player(config, make_env, config.n, ranks) as (stream, collector),
        Progress(console if ranks.index == 0 else None) as progress,
    ):
        tasks = stream.finite(config.tasks or (10**9 if stream.is_finite else _ENDLESS_TASKS))
        ranks.agree(_digest(tasks), "the list of tasks")
        collection = collector.collect(tasks, config.seed, progress.evaluation)
        progress.warn(collector.cost())
    return ranks.first(lambda: _evaluation(config, collection))


def _evaluation(config: EvalConfig, collection: Collection) -> Evaluation:
    """What a collection shows, written where the config says."""
    if config.rollouts is not None:
        write_rollouts(Path(config.rollouts), collection.groups)
    evaluation = summarise(
        config.env,
        collection.groups,
        n=config.n,
        k=config.k,
        failures=collection.failures,
        stopped=collection.stopped,
    )
    if config.out is not None:
        write_atomically(Path(config.out), evaluation.to_json() + "\n")
    return evaluation


def run_rollouts(config: RolloutConfig, ranks: Ranks | None = None) -> Collection:
    """Play episodes, one of each task, as a config says; each rank has all of them in the end."""
    ranks = Ranks() if ranks is None else ranks
    with _player(config, env_maker(config), 1, ranks) as (stream, collector):
        tasks = stream.finite(config.episodes)
        ranks.agree(_digest(tasks), "the list of tasks")
        return collector.collect(tasks, config.seed)


@contextmanager
def _player(
    config: EvalConfig | RolloutConfig, make_env: MakeEnv, copies: int, ranks: Ranks
) -> Iterator[tuple[TaskStream, BaseCollector]]:
    """The tasks of a config, and what plays them: on several ranks, each its share."""
    if ranks.count > 1 and is_endpoint(config.engine):
        raise UsageError(
            f"endpoint {config.engine} is played with in one process, but {ranks.count} were launched: "
            "launch one; engine_arg concurrency says how many requests it has in flight"
        )
    with Interrupts() if ranks.count > 1 else nullcontext() as interrupts, ExitStack() as opened:
        kind = (
            Collector if interrupts is None else partial(RankCollector, ranks, interrupts.welcome)
        )
        stream = ranks.alike(lambda: _evaluation_stream(config, make_env))
        policy = ranks.alike(lambda: _policy(config))
        if ranks.count > 1 and policy is not None:
            ranks.agree(fingerprint(policy.model), "the model")
        sharing = ranks.sharing()

        def make() -> BaseCollector:
            collector = make_collector(config, make_env, copies, policy, kind, sharing)
            opened.enter_context(closing_engine(collector.engine, config.engine_timeout_s))
            return opened.enter_context(closing(collector))

        yield stream, ranks.alike(make)


def _policy(config: EvalConfig | RolloutConfig) -> Policy | None:
    """What is to be evaluated; None if an endpoint has it."""
    if is_endpoint(config.engine):
        return None
    return load_policy(config.model, chat_template=config.chat_template)


def _digest(tasks: Sequence[TaskSpec]) -> str:
    return hashlib.sha256(repr(tasks).encode()).hexdigest()


def _evaluation_stream(config: EvalConfig | RolloutConfig, make_env: MakeEnv) -> TaskStream:
    with tried(make_env, config.env) as env:
        return TaskStream.evaluation(env, config.seed, config.split)


def _check_writable(*paths: str | None) -> None:
    """Refuse at once files that could not be written in the end."""
    given = [path for path in paths if path is not None]
    for path in given:
        _check_one(path)
    if len({os.path.realpath(path) for path in given}) < len(given):
        raise UsageError(f"cannot write two things to {given[0]}: name another file")


def _check_one(path: str) -> None:
    folder = Path(path).parent
    try:
        there, kind = folder.is_dir(), _kind(path)
    except OSError as error:  # such as a name that is too long
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"{path!r} cannot be the name of a file") from error
    if not there:
        raise UsageError(f"cannot write {path}: there is no folder {folder}")
    if stat.S_ISDIR(kind):
        raise UsageError(f"cannot write {path}: it is a folder")
    if not stat.S_ISREG(kind):  # a device or a pipe, in whose place the file would be put
        raise UsageError(f"cannot write {path}: it is no ordinary file")
    if not os.access(folder, os.W_OK):
        raise UsageError(f"cannot write {path}: the folder {folder} is read-only")


def _kind(path: str) -> int:
    """What lies at a path, as its mode says; where nothing does, as if it were a file."""
    try:
        return Path(path).stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return stat.S_IFREG
