"""The command that trains; its imports are heavy."""

from pathlib import Path

from grpo_gym.cli.options import parse_config
from grpo_gym.cli.output import Output, complain, remark
from grpo_gym.config import TrainConfig
from grpo_gym.engines.base import EngineFailure
from grpo_gym.errors import UsageError
from grpo_gym.evaluation import print_table
from grpo_gym.interrupts import Interrupted
from grpo_gym.jobs import run_training
from grpo_gym.ranks import RankFailure, Ranks
from grpo_gym.runs import saved_config
from grpo_gym.session import EnvironmentFailure


def train_together(words: list[str], output: Output, ranks: Ranks) -> int:
    """Train on all ranks, of which the first speaks; returns the exit status."""
    try:
        config = ranks.alike(lambda: _train_config(words))
        run = run_training(config, output, ranks=ranks)
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
