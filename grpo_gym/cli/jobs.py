"""The commands that all processes of a launch share; their imports are heavy."""

from collections.abc import Callable
from pathlib import Path

from grpo_gym.cli.options import parse_config
from grpo_gym.cli.output import Output, complain, remark
from grpo_gym.collector import INTERRUPTED
from grpo_gym.config import EvalConfig, RolloutConfig, TrainConfig
from grpo_gym.conversation import show
from grpo_gym.engines.base import EngineFailure
from grpo_gym.errors import UsageError
from grpo_gym.evaluation import print_table
from grpo_gym.interrupts import Interrupted
from grpo_gym.jobs import run_training
from grpo_gym.playing import run_evaluate, run_rollouts
from grpo_gym.ranks import RankFailure, Ranks
from grpo_gym.runs import saved_config
from grpo_gym.session import EnvironmentFailure


def run_together(name: str, words: list[str], output: Output) -> int:
    """Run a command on all ranks, of which the first speaks; returns the exit status."""
    with Ranks() as ranks:
        try:
            return _JOBS[name](words, output, ranks)
        except UsageError as error:
            complain(error)
            return 2
        except Interrupted as stop:
            remark(stop)
            return 130
        except (EnvironmentFailure, EngineFailure, RankFailure, OSError) as error:
            complain(error)
            return 1
        except KeyboardInterrupt:
            remark("interrupted")
            return 130


def _train(words: list[str], output: Output, ranks: Ranks) -> int:
    config = ranks.alike(lambda: _train_config(words))
    run = run_training(config, output, ranks=ranks)
    if len(run.evaluations) > 1:
        first, last = min(run.evaluations), max(run.evaluations)
        pair = {"before": run.evaluations[first], f"after step {last}": run.evaluations[last]}
        print_table(pair, output)
    places = {"run": run.folder, "model": run.model, "metrics": run.metrics_path}
    if (run.folder / "rollouts").is_dir():
        places["rollouts"] = run.folder / "rollouts"
    for name, path in places.items():
        output.say(f"{name:9}{path}")
    return 0


def _train_config(words: list[str]) -> TrainConfig:
    config = parse_config(TrainConfig, words, "train")
    if not config.resume:
        return config
    saved = vars(saved_config(Path(config.run_dir or "")))
    return parse_config(TrainConfig, words, "train", saved)


def _evaluate(words: list[str], output: Output, ranks: Ranks) -> int:
    config = ranks.alike(lambda: parse_config(EvalConfig, words, "eval"))
    evaluation = run_evaluate(config, output, ranks=ranks)
    print_table({config.model: evaluation}, output)
    for path in (config.out, config.rollouts):
        if path is not None:
            output.say(f"written to {path}")
    return _ended(evaluation.stopped)


def _rollout(words: list[str], output: Output, ranks: Ranks) -> int:
    config = ranks.alike(lambda: parse_config(RolloutConfig, words, "rollout"))
    collection = run_rollouts(config, ranks)
    for group in collection.groups:
        for played in group.rollouts:
            show(played, output)
    return _ended(collection.stopped)


def _ended(stopped: str | None) -> int:
    """The exit status of a command, and why it did not play everything."""
    if stopped is None:
        return 0
    if stopped.startswith(INTERRUPTED):
        remark(stopped)
        return 130
    complain(stopped)
    return 1


_JOBS: dict[str, Callable[[list[str], Output, Ranks], int]] = {
    "train": _train,
    "eval": _evaluate,
    "rollout": _rollout,
}
