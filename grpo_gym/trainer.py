"""The loop: collect, credit, update, sync, log, evaluate, save."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

import gymnasium

from grpo_gym import checkpoint
from grpo_gym.collector import Collection, Collector, collector_settings
from grpo_gym.config import TrainConfig
from grpo_gym.curriculum import TaskStream
from grpo_gym.engines.base import Engine
from grpo_gym.errors import UsageError
from grpo_gym.evaluation import Evaluation, run_evaluation, write_json
from grpo_gym.learner import Learner
from grpo_gym.monitor import Monitor, rollout_metrics, write_rollouts
from grpo_gym.policy import Policy
from grpo_gym.progress import Progress
from grpo_gym.sync import verify_sync
from grpo_gym.types import Batch, Group

# Evaluation tasks come from a stream of their own.
_EVAL_STREAM = 1_000_003


class Interrupted(Exception):
    """The user asked to stop; everything is saved."""

    def __init__(self, folder: Path, step: int) -> None:
        super().__init__(f"stopped after step {step}; go on with --run-dir {folder} --resume")


@dataclass(frozen=True)
class Run:
    """What a training run left.

    Attributes:
        folder: config, metrics, rollouts, checkpoints and evaluations of the run.
        model: folder of the trained model, which `transformers` loads.
        steps: training steps done.
        evaluations: step to the evaluation made after it.
    """

    folder: Path
    model: Path
    steps: int
    evaluations: dict[int, Evaluation] = field(default_factory=dict)

    @property
    def metrics_path(self) -> Path:
        """One JSON object a step."""
        return self.folder / "metrics.jsonl"


class Trainer:
    """Trains a policy on an environment with an agent; all state is in the checkpoint.

    Args:
        config: the options.
        folder: of the run; exists.
        make_env: builds the environment.
        policy: what to train.
        learner: holds the policy's model.
        engine: samples from it.
        progress: shows what goes on.
    """

    def __init__(
        self,
        config: TrainConfig,
        folder: Path,
        make_env: Callable[[], gymnasium.Env[Any, Any]],
        policy: Policy,
        learner: Learner,
        engine: Engine,
        progress: Progress,
    ) -> None:
        self.config = config
        self.folder = folder
        self.policy = policy
        self.learner = learner
        self.engine = engine
        self.monitor = Monitor(folder)
        self.step = 0
        self.evaluations: dict[int, Evaluation] = {}
        self._progress = progress
        self._patient = False
        self._stop = False
        env = make_env()
        self.stream = TaskStream.of(env, config.seed, config.split)
        self._eval_stream = TaskStream.evaluation(
            env, _EVAL_STREAM + config.seed, config.eval_split
        )
        env.close()
        self.collector = self._collector(make_env, config.group_size)
        self._evaluator = self._collector(make_env, config.eval_n)

    def run(self) -> Run:
        """Train to the last step.

        Raises:
            Interrupted: Ctrl-C or SIGTERM; the checkpoint is that of the last whole step.
            UsageError: The loss stayed non-finite, or the agent found nothing to train on.
            EnvironmentFailure: Too many environments failed.
        """
        config = self.config
        if config.resume:
            self._load()
        with self._signals(), self._progress:
            try:
                if config.eval_tasks and self.step == 0:
                    self._evaluate()
                while self.step < config.steps:
                    self._train_step()
                    last = self.step == config.steps
                    due = config.eval_every and self.step % config.eval_every == 0
                    if config.eval_tasks and (last or due):
                        self._evaluate()
                    if last or (config.save_every and self.step % config.save_every == 0):
                        self._save()
                    self._check_stop()
            except KeyboardInterrupt:
                self._save()
                raise Interrupted(self.folder, self.step) from None
            finally:
                self.collector.close()
                self._evaluator.close()
        saved = checkpoint.latest(self.folder) or self._save()
        return Run(self.folder, saved / "model", self.step, dict(self.evaluations))

    def _train_step(self) -> None:
        started = time.perf_counter()
        position = self.stream.position
        try:
            groups, collections = self._collect()
        except KeyboardInterrupt:
            self.stream.position = position
            raise
        collected = time.perf_counter()
        everything = [group for collection in collections for group in collection.groups]
        metrics = rollout_metrics(everything)
        metrics["failures"] = sum(collection.failures for collection in collections)
        metrics["groups"] = len(groups)
        with self._uninterrupted():
            if groups:
                metrics |= self._update(Batch(groups))
            else:
                metrics["skipped_steps"] = 1
            self.step += 1
            ended = time.perf_counter()
            sampled = sum(collection.tokens for collection in collections)
            metrics["time/collect_s"] = collected - started
            metrics["time/update_s"] = ended - collected
            metrics["time/tokens_per_s"] = sampled / max(collected - started, 1e-9)
            self.monitor.log(self.step, metrics)
            if self.config.rollouts_every and self.step % self.config.rollouts_every == 0:
                self.monitor.save_rollouts(self.step, everything)
            self._progress.step(self.step, metrics)

    def _collect(self) -> tuple[tuple[Group, ...], list[Collection]]:
        """Collect until the agent's selection leaves enough groups, or its rounds are used up."""
        agent, want = self.learner.agent, self.config.groups_per_step
        groups: tuple[Group, ...] = ()
        collections: list[Collection] = []
        for _ in range(agent.max_rounds):
            tasks = self.stream.take(want - len(groups))
            collections.append(
                self.collector.collect(tasks, self.config.seed, self._progress.rollouts)
            )
            groups += agent.select(agent.shape(collections[-1].groups))
            if len(groups) >= want:
                break
        else:
            if agent.max_rounds > 1 and agent.exhausted == "raise":
                raise UsageError(
                    f"step {self.step + 1}: only {len(groups)} of {want} groups were fit to train on "
                    f"after {agent.max_rounds} rounds: the tasks are too easy or too hard, or "
                    "max_rounds too low"
                )
        return groups, collections

    def _update(self, batch: Batch) -> dict[str, float]:
        signals = self.learner.prepare(batch)
        metrics = self.learner.update(batch, signals, self.learner.agent.credit(signals))
        self.learner.agent = self.learner.agent.adapt(metrics)
        self.engine.load(self.learner.state(), self.learner.version)
        metrics["sync_gap"] = verify_sync(
            self.engine, self.learner, batch, self.config.temperature, self.config.precision
        )
        return metrics

    def _evaluate(self) -> None:
        tasks = self._eval_stream.finite(self.config.eval_tasks)
        evaluation, groups = run_evaluation(
            self.config.env,
            self._evaluator,
            tasks,
            n=self.config.eval_n,
            k=self.config.eval_k,
            seed=_EVAL_STREAM + self.config.seed,
            progress=self._progress.evaluation,
        )
        self.evaluations[self.step] = evaluation
        write_json(evaluation, self.folder / f"eval-{self.step:06d}.json")
        self.monitor.rollouts_path.mkdir(exist_ok=True)
        write_rollouts(self.monitor.rollouts_path / f"eval-{self.step:06d}.jsonl", groups)
        self._progress.evaluated(self.step, evaluation)

    def _save(self) -> Path:
        with self._uninterrupted():
            return checkpoint.save(
                self.folder,
                self.step,
                self.learner.model,
                self.policy.tokenizer,
                self.learner.optimiser_state(),
                {"position": self.stream.position, "agent": self.learner.agent.state},
                self.config.keep,
            )

    def _load(self) -> None:
        path = checkpoint.latest(self.folder)
        if path is None:
            raise UsageError(f"{self.folder} has no checkpoint to resume from: begin another run")
        saved = checkpoint.load(path, self.learner.model)
        self.learner.restore(saved.weights, saved.optimiser)
        self.learner.agent = self.learner.agent.restore(saved.state["agent"])
        self.stream.position = int(saved.state["position"])
        self.step = saved.step
        self.monitor.rewind(self.step)
        self.engine.load(self.learner.state(), self.learner.version)

    def _collector(
        self, make_env: Callable[[], gymnasium.Env[Any, Any]], group_size: int
    ) -> Collector:
        sampling, options = collector_settings(
            self.config, group_size, self.policy.renderer.stop_token_ids
        )
        sampling = replace(sampling, top_logprobs=self.learner.agent.needs.top_logprobs)
        return Collector(make_env, self.engine, self.policy.renderer, sampling, options)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Turn Ctrl-C and SIGTERM into a KeyboardInterrupt at a moment when nothing is half done."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {
            number: signal.signal(number, self._on_signal)
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._patient and not self._stop:
            self._stop = True
        else:
            raise KeyboardInterrupt

    @contextmanager
    def _uninterrupted(self) -> Iterator[None]:
        """A signal in here waits until `_check_stop`; a second one does not wait."""
        before, self._patient = self._patient, True
        try:
            yield
        finally:
            self._patient = before

    def _check_stop(self) -> None:
        if self._stop:
            raise KeyboardInterrupt
