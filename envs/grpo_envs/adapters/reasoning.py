"""The generators of reasoning-gym as environments, `reasoning_gym/NAME`."""

import json
import logging
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from grpo_envs.adapters.reasoning_names import EXCLUDED, GENERATORS, SMALL, VERSION
from grpo_envs.adapters.requirements import require
from grpo_gym.env import TextEnv
from grpo_gym.errors import UsageError
from grpo_gym.rewards import Score
from grpo_gym.tasks import Task, TaskSource, unknown_split
from grpo_gym.verifiers.workers import CannotStart, WorkerDied, shared_pool

logger = logging.getLogger(__name__)

WORKER = "grpo_envs.adapters.reasoning_worker"
MAKING_S = 60.0
"""Seconds a generator may take for one task."""

SPLITS = ("train", "test")
HALF = 2**30
SIZE = 500
"""The library's default size of a data set."""

_ID = re.compile(r"(0|[1-9][0-9]{0,9})/(0|[1-9][0-9]{0,9})")
_ANSWER = re.compile(r"<answer>((?:(?!</?answer>).)*)</answer>", re.DOTALL)


@dataclass(frozen=True)
class Generator:
    """A generator with its options: makes tasks and scores answers, in a process of its own.

    Attributes:
        name: as the library calls it.
        level: of the library's curriculum; None for the generator's own defaults.
        options: its other options, as JSON.
    """

    name: str
    level: int | None
    options: str

    def ask(self, kind: str, task_id: str, seconds: float, **more: Any) -> dict[str, Any] | None:
        """An answer of the worker process; None when it did not come in time."""
        seed, index = map(int, task_id.split("/"))
        request = {
            "kind": kind,
            "name": self.name,
            "level": self.level,
            "options": self.options,
            "seed": seed,
            "index": index,
            "seconds": seconds,
        }
        try:
            return shared_pool(WORKER).call(request | more, seconds)
        except WorkerDied:
            return None

    def task(self, task_id: str) -> Task:
        """The task of an id. Raises `UsageError` when it cannot be made."""
        try:
            made = self.ask("item", task_id, MAKING_S)
        except CannotStart as error:
            raise UsageError(f"reasoning_gym/{self.name}: {error}") from error
        what = f"reasoning_gym/{self.name} cannot make task {task_id!r}"
        if made is None:
            raise UsageError(f"{what}: it took more than {MAKING_S:.0f} s, or too much memory")
        if "refused" in made:
            raise UsageError(f"{what}: {made['refused']}")
        return Task(task_id, made["question"], made["answer"], split_of(task_id))

    def score(self, task_id: str, answer: str, deadline_s: float) -> Score:
        """The library's score of an answer. nan only where no process can be started."""
        try:
            reply = self.ask("score", task_id, deadline_s, answer=answer)
        except CannotStart as error:
            logger.error("%s", error)
            return Score(math.nan, False, {"answered": 1.0})
        late = reply is None
        reply = reply or {}
        value = float(reply.get("score", 0.0))
        failed = bool(reply.keys() & {"error", "refused"})
        parts = {"answered": 1.0, "timed_out": float(late), "scorer_failed": float(failed)}
        return Score(value, value >= 1.0, parts)


@dataclass(frozen=True)
class GeneratorTasks:
    """The tasks of a generator. Id "7/12" is entry 12 of the library's data set of seed 7."""

    generator: Generator

    def task_ids(self, split: str) -> None:
        """None: there is no end of them."""
        if split not in SPLITS:
            raise unknown_split(split, SPLITS)

    def draw(self, rng: np.random.Generator, split: str) -> Task:
        """A random task of a split."""
        self.task_ids(split)
        start = HALF * SPLITS.index(split)
        place = start + int(rng.integers(HALF - SIZE))
        # A data set of a seed may take long to make, so there is one for each split, if it has room.
        if self.generator.name in SMALL:
            return self.get(f"{place}/{int(rng.integers(SIZE))}")
        return self.get(f"{start}/{place - start}")

    def get(self, task_id: str) -> Task:
        """The task of an id. Raises `UsageError` when there is none."""
        found = _ID.fullmatch(task_id)
        room = SIZE if self.generator.name in SMALL else 2**31
        if not found or int(found[1]) >= 2**31 or int(found[2]) >= room:
            raise UsageError(
                f"no task {task_id!r}: ids here are a seed and an index below {room}, as in '7/12'"
            )
        return self.generator.task(task_id)


def split_of(task_id: str) -> str:
    """The split of an id: most generators draw entry i of seed s from the sum s + i."""
    return SPLITS[sum(map(int, task_id.split("/"))) >= HALF]


class ReasoningGymEnv(TextEnv):
    """One task of a generator, one answer between tags.

    The reward is the library's score, between 0 and 1; only a full score is a success.

    Args:
        name: the generator.
        level: of its curriculum, from 0; None for the generator's defaults.
        options: options of the generator; they win over those of the level.
        partial_credit: pay scores below 1; otherwise they are the component `score` only.
        deadline_s: seconds that scoring may take; a slower answer scores 0.
        **kwargs: as in `TextEnv`.

    Raises:
        UsageError: reasoning-gym is missing, or of a version that was not reviewed; a name, level or
            option that it does not have.
    """

    max_turns = 1
    system_prompt = "Give the final answer, and nothing else, between <answer> and </answer>."

    def __init__(
        self,
        *,
        name: str,
        level: int | None = None,
        options: Mapping[str, Any] | None = None,
        partial_credit: bool = True,
        deadline_s: float = 5.0,
        **kwargs: Any,
    ) -> None:
        if name in EXCLUDED:
            raise UsageError(f"reasoning_gym/{name} is left out: {EXCLUDED[name]}")
        if name not in GENERATORS:
            raise UsageError(f"reasoning-gym has no generator {name!r}")
        require("reasoning_gym", "reasoning-gym", "reasoning", VERSION)
        if level is not None and (isinstance(level, bool) or not isinstance(level, int)):
            raise UsageError(f"reasoning_gym/{name}: level is a whole number, got {level!r}")
        self.generator = Generator(name, level, _as_json(name, options))
        self.partial_credit = partial_credit
        self.deadline_s = deadline_s
        super().__init__(**kwargs)
        self.generator.task("0/0")  # tells of a wrong level or option now

    def default_tasks(self) -> TaskSource:
        """The tasks of the generator."""
        return GeneratorTasks(self.generator)

    def respond(self, task: Task, action: str) -> Score:
        """Score what stands between the last pair of tags."""
        answers = _ANSWER.findall(action)
        if not answers:
            return Score(0.0, False, {"answered": 0.0, "score": 0.0})
        verdict = self.generator.score(task.task_id, answers[-1].strip("\n"), self.deadline_s)
        value = verdict.value
        if not self.partial_credit and value < 1:
            value = 0.0
        return Score(value, verdict.success, {**verdict.components, "score": verdict.value})

    def solution(self, task: Task) -> tuple[str, ...]:
        """The reference answer; nothing where the library has none."""
        return (f"<answer>{task.answer}</answer>",) if task.answer else ()

    def mistakes(self, task: Task, rng: np.random.Generator) -> tuple[str, ...]:
        """The answer to another task, if it is wrong here."""
        for _ in range(8):
            other = self.tasks.draw(rng, task.split)
            wrong = f"<answer>{other.answer}</answer>"
            if other.answer and not self.respond(task, wrong).success:
                return (wrong,)
        return ()


def _as_json(name: str, options: Mapping[str, Any] | None) -> str:
    if not isinstance(options or {}, Mapping):
        raise UsageError(f"reasoning_gym/{name}: options is a map, got {options!r:.100}")
    taken = sorted({"seed", "size"} & set(options or {}))
    if taken:
        raise UsageError(f"reasoning_gym/{name}: {taken[0]} is told by the task id, not by options")
    try:
        return json.dumps(dict(options or {}), sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise UsageError(f"reasoning_gym/{name}: options must be plain values: {error}") from error
