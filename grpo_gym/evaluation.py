"""pass@k with confidence intervals, over the tasks of an environment."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from grpo_gym.collector import BaseCollector
from grpo_gym.curriculum import TaskSpec
from grpo_gym.errors import UsageError
from grpo_gym.monitor import to_json, write_atomically
from grpo_gym.types import FloatArray, Group, Rollout

_CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A mean over tasks and its bootstrap interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True)
class Evaluation:
    """What a policy can do.

    Attributes:
        env: the environment.
        tasks: number of different tasks.
        n: rollouts asked for of each task.
        pass_at: k to the estimate of pass@k.
        reward: mean reward; rollouts that cannot be scored are left out.
        tokens: mean number of sampled tokens of a rollout.
        truncated: share of rollouts that a limit cut.
        failures: rollouts lost to failing environments; they are left out of everything else.
        unscored: rollouts that the environment could not score; they count as not solved.
        confidence: of the intervals, by bootstrap over tasks.
        successes: task id to its numbers of successes and of rollouts.
        stopped: why not all was played, if it was not: the rest is of the rollouts that had ended.
    """

    env: str
    tasks: int
    n: int
    pass_at: Mapping[int, Estimate]
    reward: float
    tokens: float
    truncated: float
    failures: int
    unscored: int
    confidence: float
    successes: Mapping[str, tuple[int, int]]
    stopped: str | None = None

    def __str__(self) -> str:
        lines = [f"{self.env}: {self.tasks} tasks x {self.n} rollouts"]
        lines += [f"pass@{k} {estimate}" for k, estimate in self.pass_at.items()]
        lines += [] if self.stopped is None else [f"stopped early: {self.stopped}"]
        return "\n".join(lines)

    def to_json(self) -> str:
        """Everything, as JSON; a number that does not exist is null."""
        return to_json(asdict(self), indent=2)


def pass_at_k(successes: int, n: int, k: int) -> float:
    """Unbiased probability that at least one of k rollouts succeeds, from c successes in n.

    1 - C(n-c, k) / C(n, k) ("Evaluating Large Language Models Trained on Code", arXiv 2107.03374, eq. 1),
    in whole numbers up to the division, so that equal chances give equal floats.

    Raises:
        UsageError: k is not within 1..n.
        ValueError: The successes are not within 0..n.
    """
    if k < 1:
        raise UsageError(f"k is {k}, but pass@k needs at least 1")
    if k > n:
        raise UsageError(f"pass@{k} needs at least {k} rollouts of each task, but n is {n}")
    if not 0 <= successes <= n:
        raise ValueError(f"{successes} successes in {n} rollouts")
    every, failing = math.comb(n, k), math.comb(n - successes, k)
    return (every - failing) / every


def bootstrap(
    values: FloatArray, *, confidence: float = 0.95, resamples: int = 2000, seed: int = 0
) -> Estimate:
    """Mean over tasks and its percentile interval; tasks are resampled, not rollouts.

    Where all tasks are equal the bootstrap knows no spread: the interval is then that of the rule of three,
    in which a proportion seen in none of m tasks may still be as large as about 3/m.

    Args:
        values: (m,) one number within 0 and 1 for each task.
        confidence: chance that such an interval holds the true mean.
        resamples: how often tasks are drawn anew.
        seed: of the draws.
    """
    rng = np.random.default_rng(seed)
    count = len(values)
    means = [values[rng.integers(count, size=count)].mean() for _ in range(resamples)]
    mean = float(values.mean())
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    if np.ptp(values) == 0:
        slack = 1 - (1 - confidence) ** (1 / count)
        low, high = max(0.0, mean - slack), min(1.0, mean + slack)
    return Estimate(mean, min(float(low), mean), max(float(high), mean))


def run_evaluation(
    env: str,
    collector: BaseCollector,
    tasks: Sequence[TaskSpec],
    *,
    n: int,
    k: Sequence[int],
    seed: int,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Evaluation, tuple[Group, ...]]:
    """Play n rollouts of every task and estimate pass@k.

    Args:
        env: name for the record.
        collector: its group size is n.
        tasks: what to play.
        n: rollouts of each task.
        k: values of k, each at most n.
        seed: of the sampling.
        progress: called with the rollouts that have ended and their number in all.

    Raises:
        UsageError: A k above n, or an environment that does not report `info["success"]`.
    """
    if n != collector.group_size:
        raise ValueError(f"n is {n}, but the collector plays {collector.group_size} of each task")
    _check_k(k, n)
    played = collector.collect(tasks, seed, progress)
    evaluation = summarise(
        env, played.groups, n=n, k=k, failures=played.failures, stopped=played.stopped
    )
    return evaluation, played.groups


def summarise(
    env: str,
    groups: Sequence[Group],
    *,
    n: int,
    k: Sequence[int],
    failures: int = 0,
    stopped: str | None = None,
) -> Evaluation:
    """pass@k and the rest, from groups of rollouts.

    Groups of the same task, which an endless stream may bring, count as one task with the rollouts of
    all. A task with fewer than the largest k rollouts left, because its environment failed, is left out.

    Raises:
        UsageError: No task is left, a k above n, or the environment does not report `info["success"]`.
    """
    _check_k(k, n)
    alive: dict[str, list[Rollout]] = {}
    for group in groups:
        rollouts = [rollout for rollout in group.rollouts if rollout.error is None]
        alive.setdefault(group.task_id, []).extend(rollouts)
    kept = {task_id: rollouts for task_id, rollouts in alive.items() if len(rollouts) >= max(k)}
    if not kept and stopped is not None:
        few = f"; no task has {max(k)} rollouts that ended, so no pass@{max(k)}"
        raise UsageError(stopped + (few if any(alive.values()) else ""))
    if not kept:
        raise UsageError(
            f"{env}: no task has {max(k)} rollouts that did not fail; nothing to evaluate"
        )
    everything = [rollout for rollouts in kept.values() for rollout in rollouts]
    counts = {
        task_id: (sum(_solved(env, rollout) for rollout in rollouts), len(rollouts))
        for task_id, rollouts in kept.items()
    }
    rewards = np.array([rollout.reward for rollout in everything])
    scored = rewards[~np.isnan(rewards)]
    return Evaluation(
        env=env,
        tasks=len(kept),
        n=n,
        pass_at={
            each: bootstrap(
                np.array([pass_at_k(c, m, each) for c, m in counts.values()]),
                confidence=_CONFIDENCE,
            )
            for each in k
        },
        reward=float(scored.mean()) if len(scored) else math.nan,
        tokens=float(np.mean([rollout.sampled_tokens for rollout in everything])),
        truncated=float(np.mean([rollout.truncated for rollout in everything])),
        failures=failures,
        unscored=int(np.isnan(rewards).sum()),
        confidence=_CONFIDENCE,
        successes=counts,
        stopped=stopped,
    )


def table(evaluations: Mapping[str, Evaluation]) -> Table:
    """A table of evaluations side by side, such as before and after training."""
    first = next(iter(evaluations.values()))
    out = Table(title=f"{first.env}: {first.tasks} tasks x {first.n} rollouts")
    out.add_column("")
    for name in evaluations:
        out.add_column(name, justify="right")
    for k in sorted({k for e in evaluations.values() for k in e.pass_at}):
        out.add_row(f"pass@{k}", *(str(e.pass_at.get(k, "-")) for e in evaluations.values()))
    out.add_row("mean reward", *(f"{e.reward:.3f}" for e in evaluations.values()))
    out.add_row("tokens a rollout", *(f"{e.tokens:.1f}" for e in evaluations.values()))
    out.add_row("truncated", *(f"{e.truncated:.1%}" for e in evaluations.values()))
    if any(e.failures for e in evaluations.values()):
        out.add_row("lost to failures", *(str(e.failures) for e in evaluations.values()))
    return out


def print_table(evaluations: Mapping[str, Evaluation], console: Console) -> None:
    """Print evaluations side by side."""
    console.print(table(evaluations))
    confidence = next(iter(evaluations.values())).confidence
    console.print(f"[dim]{confidence:.0%} intervals by bootstrap over tasks[/dim]")


def write_json(evaluation: Evaluation, path: Path) -> None:
    """Write an evaluation as JSON."""
    write_atomically(path, evaluation.to_json() + "\n")


def _solved(env: str, rollout: Rollout) -> bool:
    if rollout.success is None:
        raise UsageError(
            f"{env} does not report info['success'] when an episode ends, and a reward above 0 is not a "
            "solved task: have the environment report it"
        )
    return rollout.success


def _check_k(k: Sequence[int], n: int) -> None:
    if not k:
        raise UsageError("no k is given: pass@k needs at least one")
    for each in k:
        pass_at_k(0, n, each)
