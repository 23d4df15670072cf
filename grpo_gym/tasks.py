"""Tasks, and where they come from: a seeded generator or a list."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from grpo_gym.errors import UsageError
from grpo_gym.jsonl import check_columns, read_jsonl, stamp


@dataclass(frozen=True)
class Task:
    """One problem instance.

    Attributes:
        task_id: names the instance; the same id always gives the same task.
        prompt: what the model is asked.
        answer: the reference answer.
        split: "train", "test", or a name of your own.
        metadata: anything else that a verifier wants to know.
    """

    task_id: str
    prompt: str
    answer: str
    split: str = "train"
    metadata: Mapping[str, Any] = field(default_factory=dict, hash=False)


class TaskSource(Protocol):
    """Where an environment's tasks come from."""

    def task_ids(self, split: str) -> Sequence[str] | None:
        """All ids of a split in a fixed order, or None when there is no end of them."""
        ...

    def draw(self, rng: np.random.Generator, split: str) -> Task:
        """A random task of a split, by `rng` alone."""
        ...

    def get(self, task_id: str) -> Task:
        """The task of that id. Raises `UsageError` when there is none."""
        ...


def check_source(tasks: TaskSource) -> TaskSource:
    """The tasks themselves; raises `UsageError` unless tasks can be had from them."""
    if not all(hasattr(tasks, name) for name in ("task_ids", "draw", "get")):
        raise UsageError(
            f"tasks is where tasks come from, such as ListTasks([...]), not {tasks!r:.100}"
        )
    return tasks


Problem = tuple[str, str] | tuple[str, str, Mapping[str, Any]]
"""What a generator of tasks returns: prompt, answer, and metadata if there is any."""

_SEEDS = 2**31


@dataclass(frozen=True)
class ProceduralTasks:
    """Endless tasks from a function of a random generator.

    A task's id is its split and its seed, a number below 2**31, as in "train-123", and the task is
    a pure function of its id. The splits use different random streams. In a small problem space
    two seeds may well give the same problem; the streams never coincide.

    Attributes:
        make: builds a problem from a generator, and from nothing else.
        splits: names of the splits.

    Raises:
        UsageError: `make` is no function, or later, it returns no problem.
    """

    make: Callable[[np.random.Generator], Problem]
    splits: tuple[str, ...] = ("train", "test")

    def __post_init__(self) -> None:
        if not callable(self.make):
            raise UsageError(
                f"ProceduralTasks wants a function of a generator, not {self.make!r:.100}"
            )

    def task_ids(self, split: str) -> None:
        """None: there is no end of them."""
        self._stream(split)

    def draw(self, rng: np.random.Generator, split: str) -> Task:
        """A task with a random seed. Raises `UsageError` on an unknown split."""
        return self._task(split, int(rng.integers(_SEEDS)))

    def get(self, task_id: str) -> Task:
        """The task of an id such as "train-123". Raises `UsageError` when it is not such an id."""
        split, _, seed = task_id.rpartition("-")
        known = split in self.splits and re.fullmatch(r"0|[1-9][0-9]{0,9}", seed)
        if not known or int(seed) >= _SEEDS:
            raise UsageError(
                f"no task {task_id!r:.100}: ids here are a split ({', '.join(self.splits)}) and a seed, "
                f"as in '{self.splits[0]}-123'"
            )
        return self._task(split, int(seed))

    def _task(self, split: str, seed: int) -> Task:
        key = np.array((self._stream(split), seed), dtype=np.uint32)  # a tuple takes longer
        problem = self.make(np.random.default_rng(key))
        try:
            prompt, answer, *rest = problem
            return Task(f"{split}-{seed}", prompt, answer, split, *rest)
        except (TypeError, ValueError) as error:
            raise UsageError(
                "a generator of tasks returns a prompt, an answer and perhaps metadata, not "
                f"{problem!r:.100}"
            ) from error

    def _stream(self, split: str) -> int:
        if split not in self.splits:
            raise unknown_split(split, self.splits)
        return self.splits.index(split)


class ListTasks:
    """A fixed list of tasks, drawn uniformly.

    Raises:
        UsageError: The list is empty, holds what is no `Task`, or two tasks have the same id.
    """

    def __init__(self, tasks: Sequence[Task]) -> None:
        if not tasks:
            raise UsageError("the list of tasks is empty")
        for task in tasks:
            if not isinstance(task, Task):
                raise UsageError(f"ListTasks wants a list of Task, not {task!r:.100} in it")
        self._by_id = {task.task_id: task for task in tasks}
        if len(self._by_id) < len(tasks):
            ids = [task.task_id for task in tasks]
            twice = next(task_id for task_id in ids if ids.count(task_id) > 1)
            raise UsageError(f"two tasks have the id {twice!r}")
        splits: dict[str, list[str]] = {}
        for task in tasks:
            splits.setdefault(task.split, []).append(task.task_id)
        self._ids = {split: tuple(ids) for split, ids in splits.items()}

    def task_ids(self, split: str) -> tuple[str, ...]:
        """All ids of a split, in the order of the list. Raises `UsageError` on an unknown split."""
        if split not in self._ids:
            raise unknown_split(split, tuple(self._ids))
        return self._ids[split]

    def draw(self, rng: np.random.Generator, split: str) -> Task:
        """A uniformly drawn task of a split."""
        ids = self._ids.get(split) or self.task_ids(split)
        return self._by_id[ids[int(rng.random() * len(ids))]]  # a quarter of the time of integers()

    def get(self, task_id: str) -> Task:
        """The task of that id. Raises `UsageError` when there is none."""
        if task_id not in self._by_id:
            first = next(iter(self._by_id))
            raise UsageError(
                f"no task {task_id!r:.100} among {len(self._by_id)}; ids look like {first!r}"
            )
        return self._by_id[task_id]


def jsonl_tasks(
    path: str | Path, *, prompt: str = "prompt", answer: str = "answer", split: str = "train"
) -> ListTasks:
    """The tasks of a JSON-lines file, one a line; read again only when the file has changed.

    A task is named after its line, as in "sums.jsonl:17"; the other columns become its metadata.

    Args:
        path: the file.
        prompt: the column that holds the prompt.
        answer: the column that holds the reference answer.
        split: the split that the tasks belong to.

    Raises:
        UsageError: The file is missing, empty or malformed, or a column is missing; with
            `file:line`.
    """
    return _jsonl_tasks(Path(path), prompt, answer, split, stamp(path))


@lru_cache(maxsize=8)
def _jsonl_tasks(path: Path, prompt: str, answer: str, split: str, stamp: object) -> ListTasks:
    tasks = []
    for line, row in read_jsonl(path):
        check_columns(row, (prompt, answer), f"{path}:{line}")
        rest = {key: value for key, value in row.items() if key not in (prompt, answer)}
        tasks.append(Task(f"{path.name}:{line}", row[prompt], row[answer], split, rest))
    return ListTasks(tasks)


def unknown_split(split: str, splits: Sequence[str]) -> UsageError:
    """The error for a split that a source does not have."""
    return UsageError(f"no split {split!r}; there is {', '.join(splits)}")
