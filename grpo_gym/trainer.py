"""The loop: collect, credit, update, sync, log, save, evaluate."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium

from grpo_gym import checkpoint
from grpo_gym.collector import Collection, collector_settings
from grpo_gym.config import TrainConfig
from grpo_gym.curriculum import TaskStream
from grpo_gym.engines.base import Engine, EngineFailure
from grpo_gym.errors import UsageError
from grpo_gym.evaluation import Evaluation, run_evaluation
from grpo_gym.interrupts import Interrupted, Interrupts
from grpo_gym.learner import Learner
from grpo_gym.monitor import Monitor, rollout_metrics
from grpo_gym.policy import Policy
from grpo_gym.progress import Progress
from grpo_gym.ranks import RankCollector, Ranks, RankSync, mark
from grpo_gym.registry import tried
from grpo_gym.runs import Run, evaluation_path, save_evaluation, saved_evaluations
from grpo_gym.session import EnvironmentFailure
from grpo_gym.types import Batch, Group

# Evaluation tasks come from a stream of their own.
_EVAL_STREAM = 1_000_003


class Trainer:
    """Trains a policy on an environment with an agent; all state is in the checkpoint.

    With several ranks each collects its share of every step; all have the whole batch in the same order, so
    that they decide alike. Rank 0 alone writes.

    Args:
        config: the options.
        folder: of the run; exists.
        make_env: builds the environment.
        policy: what to train.
        learner: holds the policy's model.
        engine: samples from it.
        progress: shows what goes on.
        ranks: the processes that train together.

    Attributes:
        step: training steps done.
        evaluations: step to the evaluation made after it.
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
        ranks: Ranks,
    ) -> None:
        self.config = config
        self.folder = folder
        self.policy = policy
        self.learner = learner
        self.engine = engine
        self.ranks = ranks
        self.monitor = Monitor(folder)
        self.step = 0
        self.evaluations: dict[int, Evaluation] = {}
        self._saved: int | None = None
        self._row: tuple[dict[str, float], list[Group]] | None = None  # of this step, to be written
        self._progress = progress
        self._interrupts = Interrupts()
        seed = _EVAL_STREAM + config.seed
        with tried(make_env, config.env) as env:
            self.stream = TaskStream.of(env, config.seed, config.split)
            self._eval_stream = TaskStream.evaluation(env, seed, config.eval_split)
        self._position = self.stream.position  # after the last whole step
        self.collector = self._collector(make_env, config.group_size)
        self._evaluator = self._collector(make_env, config.eval_n)
        self._sync = RankSync(ranks, engine, learner, config)
        self._sync.watchdog.last_words = self._last_words

    def run(self) -> Run:
        """Train to the last step.

        Raises:
            Interrupted: Ctrl-C or SIGTERM; the checkpoint is that of the last whole step.
            UsageError: The loss stayed non-finite, or the agent found nothing to train on.
            EnvironmentFailure: Too many environments failed; the last whole step is saved.
            EngineFailure: The engine failed; the last whole step is saved, which is this one if it failed
                to take the weights of it.
        """
        with self._interrupts, self._progress:
            try:
                self._evaluate_if_due()
                while self.step < self.config.steps:
                    self._train_step()
                    self._save_if_due()
                    self._evaluate_if_due()
            except KeyboardInterrupt:
                if not self._interrupts.twice:  # else the model may be in the middle of an update
                    self._save()
                if self._saved is None:
                    raise
                raise Interrupted(self.folder, self._saved) from None
            finally:
                self.collector.close()
                self._evaluator.close()
        model = self._save() / "model"
        return Run(self.folder, model, self.step, dict(self.evaluations))

    def resume(self) -> None:
        """Take the last checkpoint, and forget what was recorded after it.

        A run that was killed before its first checkpoint starts over.

        Raises:
            UsageError: The checkpoint is damaged, or of another model.
        """
        path = self.ranks.first(lambda: checkpoint.latest(self.folder))
        if path is not None:
            try:
                self._restore(self.ranks.alike(lambda: checkpoint.load(path, self.learner.model)))
            except (KeyError, TypeError, ValueError) as error:
                what = error if isinstance(error, UsageError) else f"{path} lacks {error}"
                raise UsageError(
                    f"{what}; to go on from an older checkpoint, remove this one"
                ) from error
        self.evaluations = self.ranks.first(self._rewind)
        self._progress.resumed(self.step)

    def _rewind(self) -> dict[int, Evaluation]:
        """Forget what was recorded after the present step; return the evaluations up to it."""
        self.monitor.rewind(self.step)
        evaluations = saved_evaluations(self.folder)
        for step in evaluations:
            if step > self.step:
                evaluation_path(self.folder, step).unlink()
        return {step: found for step, found in evaluations.items() if step <= self.step}

    def _restore(self, saved: checkpoint.Checkpoint) -> None:
        self.stream.position = self._position = int(saved.state["position"])
        self.learner.restore(saved.weights, saved.optimiser)
        self.learner.agent = self.learner.agent.restore(saved.state["agent"])
        self.step = self._saved = saved.step
        self._sync.load()

    def _train_step(self) -> None:
        """Only the collection can be interrupted: everything after it happens whole or not at all."""
        started = time.perf_counter()
        with self._engine_at_work():
            groups, collections = self._collect()
            self.ranks.agree(mark(groups), "the agent's selection")
            if groups:
                self._sync.sleep()
        collected = time.perf_counter()
        everything = [group for collection in collections for group in collection.groups]
        metrics = rollout_metrics(everything)
        metrics["failures"] = sum(collection.failures for collection in collections)
        metrics["groups"] = len(groups)
        metrics |= self._update(Batch(groups)) if groups else {"skipped_steps": 1.0}
        self.step += 1
        self._position, self._row = self.stream.position, (metrics, everything)
        if groups:
            with self._engine_at_work():
                self._sync.load()
                metrics["sync_gap"] = self._sync.verify(Batch(groups))
        sampled = sum(collection.tokens for collection in collections)
        metrics["time/collect_s"] = collected - started
        metrics["time/update_s"] = time.perf_counter() - collected
        metrics["time/tokens_per_s"] = sampled / max(collected - started, 1e-9)
        self.ranks.first(self._record)
        self._progress.step(self.step, metrics)

    def _record(self) -> None:
        """Write down what is known of this step, unless it is written."""
        if self._row is None:
            return
        (metrics, groups), self._row = self._row, None
        self.monitor.log(self.step, metrics)
        if self.config.rollouts_every and self.step % self.config.rollouts_every == 0:
            self.monitor.save_rollouts(self.step, groups)

    @contextmanager
    def _engine_at_work(self) -> Iterator[None]:
        """Within, the learner is that of the last whole step, which a failure leaves saved."""
        try:
            yield
        except (EnvironmentFailure, EngineFailure, UsageError):
            if self.step:
                self._save()
            raise

    def _last_words(self) -> str:
        """The process is about to end, as the engine hangs: save the last whole step."""
        self._progress.__exit__(None, None, None)
        if not self.step or self.ranks.count > 1:  # the others cannot be asked for their part
            return ""
        self._save()
        return str(Interrupted(self.folder, self.step))

    def _collect(self) -> tuple[tuple[Group, ...], list[Collection]]:
        """Collect until the agent's selection leaves enough groups, or its rounds are used up."""
        agent, want = self.learner.agent, self.config.groups_per_step
        groups: tuple[Group, ...] = ()
        collections: list[Collection] = []
        for _ in range(agent.max_rounds):
            tasks = self.stream.take(want - len(groups))
            seed, progress = self.config.seed, self._progress.rollouts
            collections.append(self.collector.collect(tasks, seed, progress))
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
        learner = self.learner
        signals = learner.prepare(batch)
        metrics = learner.update(batch, signals, learner.agent.credit(signals))
        learner.agent = learner.agent.adapt(metrics)
        return metrics

    def _evaluate_if_due(self) -> None:
        config = self.config
        due = config.eval_every and self.step % config.eval_every == 0
        ends = self.step in (0, config.steps)
        if not config.eval_tasks or not (ends or due) or self.step in self.evaluations:
            return
        with self._engine_at_work():
            evaluation, groups = run_evaluation(
                config.env,
                self._evaluator,
                self._eval_stream.finite(config.eval_tasks),
                n=config.eval_n,
                k=config.eval_k,
                seed=_EVAL_STREAM + config.seed,
                progress=self._progress.evaluation,
            )
        self.ranks.first(lambda: save_evaluation(self.folder, self.step, evaluation, groups))
        self.evaluations[self.step] = evaluation
        self._progress.evaluated(self.step, evaluation)

    def _save_if_due(self) -> None:
        every = self.config.save_every
        if self.step == self.config.steps or (every and self.step % every == 0):
            self._save()

    def _save(self) -> Path:
        """The checkpoint of this step, made unless it is there."""
        self.ranks.first(self._record)
        path = self.ranks.first(lambda: checkpoint.latest(self.folder))
        if path is None or self._saved != self.step:
            optimiser = self.learner.optimiser_state()
            weights = self.learner.saved_weights() if self.learner.sharded else None
            path = self.ranks.first(
                lambda: checkpoint.save(
                    self.folder,
                    self.step,
                    self.learner.model,
                    self.policy.tokenizer,
                    optimiser,
                    {"position": self._position, "agent": self.learner.agent.state},
                    self.config.keep,
                    weights,
                )
            )
            self._saved = self.step
        return path

    def _collector(
        self, make_env: Callable[[], gymnasium.Env[Any, Any]], group_size: int
    ) -> RankCollector:
        renderer, model = self.policy.renderer, self.policy.model.config.get_text_config()
        sampling, options = collector_settings(self.config, group_size, renderer.stop_token_ids)
        most_probable = min(self.learner.agent.needs.top_logprobs, model.vocab_size)
        sampling = replace(sampling, top_logprobs=most_probable)
        collector = RankCollector(
            self.ranks,
            self._interrupts.welcome,
            make_env,
            self.engine,
            renderer,
            sampling,
            options,
        )
        collector.watchdog.last_words = self._last_words
        return collector
