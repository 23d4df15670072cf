"""GSM8K: grade-school word problems (Cobbe et al., 2021, arXiv:2110.14168)."""

import re
from collections.abc import Mapping
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from grpo_envs.math.grading import verify_number
from grpo_gym.env import TextEnv
from grpo_gym.errors import UsageError
from grpo_gym.jsonl import check_columns, read_jsonl, stamp
from grpo_gym.rewards import Score
from grpo_gym.tasks import ListTasks, Task, TaskSource

_COLUMNS = ("question", "answer")
_NOTE = re.compile(r"<<[^<>]*>>")
_NUMBER = re.compile(
    r"(?P<sign>[-−]?)\s*[$€£¥]?\s*"
    r"(?P<number>(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+|/[0-9]+)?)"
    r"(?P<unit>\s+[^\W\d]+(?:[ /][^\W\d]+)*)?\.?"
)


class GSM8KEnv(TextEnv):
    """One word problem, one answer in a box.

    Args:
        path: a JSON-lines file of objects with "question" and "answer", the answer ending in "####
            18"; or a folder that holds such a file for each split, `train.jsonl` and `test.jsonl`.
            Tasks are named after their place, as in "test.jsonl:17"; those of a single file belong
            to `split`.
        dataset: id of such a data set on the Hugging Face hub, read with `datasets`; instead of
            `path`.
        config: the configuration of that data set.
        split: the split that `reset` draws from.
        **kwargs: as in `TextEnv`.

    Raises:
        UsageError: Neither or both of `path` and `dataset`; a file that is missing or malformed;
            `datasets` is not installed.
    """

    max_turns = 1
    system_prompt = "Put the final answer in \\boxed{}."

    def __init__(
        self,
        *,
        path: str | Path | None = None,
        dataset: str | None = None,
        config: str = "main",
        split: str = "train",
        **kwargs: Any,
    ) -> None:
        if kwargs.get("tasks") is None:
            kwargs["tasks"] = _source(path, dataset, config, split)
        super().__init__(split=split, **kwargs)

    def respond(self, task: Task, action: str) -> Score:
        """Score the boxed answer."""
        return verify_number(action, task.answer)

    def solution(self, task: Task) -> tuple[str, ...]:
        """The published reasoning, without its calculator notes, and the boxed answer."""
        return (_boxed(task, task.answer),)

    def mistakes(self, task: Task, rng: np.random.Generator) -> tuple[str, ...]:
        """The published reasoning, and an answer with one digit too many."""
        return (_boxed(task, f"{task.answer}{rng.integers(1, 10)}"),)


def parse_answer(answer: str) -> tuple[str, str]:
    """Reasoning and final answer of a published solution.

    The final answer follows the last "####". Of a number the thousands separators, currency signs
    and units are taken off; anything else stays as it is.

    Raises:
        ValueError: There is no "####", or nothing after it.
    """
    reasoning, mark, final = answer.rpartition("####")
    final = final.strip()
    if not mark or not final:
        raise ValueError("the answer must end in '#### ' and the final answer")
    number = _NUMBER.fullmatch(final)
    if number:
        final = ("-" if number["sign"] else "") + number["number"].replace(",", "")
    return _NOTE.sub("", reasoning).strip(), final


def _boxed(task: Task, answer: str) -> str:
    return f"{task.metadata['reasoning']}\n\\boxed{{{answer}}}"


def _source(path: str | Path | None, dataset: str | None, config: str, split: str) -> TaskSource:
    if (path is None) == (dataset is None):
        raise UsageError("GSM8K needs path=, a JSONL file or a folder, or dataset=, a hub id")
    if dataset is not None:
        return _from_hub(dataset, config)
    path = Path(path or "")
    if not path.is_dir():
        return _from_files(((path, split, stamp(path)),))
    files = sorted(path.glob("*.jsonl"))
    if not files:
        raise UsageError(f"{path}: the folder holds no .jsonl file")
    return _from_files(tuple((file, file.stem, stamp(file)) for file in files))


@lru_cache(maxsize=8)
def _from_files(files: tuple[tuple[Path, str, object], ...]) -> ListTasks:
    """The tasks of some files, each with its split and stamp; read once, as every copy asks."""
    return ListTasks(
        [
            _task(f"{file.name}:{line}", split, row, where=f"{file}:{line}")
            for file, split, _ in files
            for line, row in read_jsonl(file)
        ]
    )


@lru_cache(maxsize=8)
def _from_hub(dataset: str, config: str) -> ListTasks:
    try:
        datasets = import_module("datasets")
    except ImportError as error:
        raise UsageError(
            "dataset= needs the datasets package: pip install 'grpo-gym[data]', or give path="
        ) from error
    try:
        splits: Mapping[str, Any] = datasets.load_dataset(dataset, config)
    except Exception as error:  # no network, no such data set, no such configuration
        raise UsageError(
            f"data set {dataset!r} ({config}) cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    return ListTasks(
        [
            _task(f"{split}:{index}", split, row, where=f"{dataset} {split}:{index}")
            for split, rows in splits.items()
            for index, row in enumerate(rows)
        ]
    )


def _task(task_id: str, split: str, row: Mapping[str, Any], where: str) -> Task:
    check_columns(row, _COLUMNS, where)
    try:
        reasoning, final = parse_answer(row["answer"])
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from error
    return Task(task_id, row["question"], final, split, {"reasoning": reasoning})
