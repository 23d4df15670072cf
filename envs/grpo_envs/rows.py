"""Rows of data that people have: JSON lines, Parquet, or a data set on the Hugging Face hub, as tasks."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

from grpo_gym.errors import UsageError
from grpo_gym.jsonl import read_json_list, read_jsonl, stamp
from grpo_gym.tasks import ListTasks, Task

SUFFIXES = (".jsonl", ".parquet")
_SHARD = re.compile(r"-\d+-of-\d+$")


@dataclass(frozen=True)
class Row:
    """One row of a file or data set.

    Attributes:
        task_id: names the row, as in "test.jsonl:17".
        split: the split it belongs to.
        where: the place as an error should name it.
        values: its columns.
    """

    task_id: str
    split: str
    where: str
    values: Mapping[str, Any] = field(hash=False)

    def value(self, column: str) -> Any:
        """What stands in a column. "a.b.0" is looked up step by step where no column has that name.

        Raises:
            UsageError: There is no such column; the message names those that there are.
        """
        if column in self.values:
            return self.values[column]
        found: Any = self.values
        for part in column.split("."):
            if isinstance(found, Mapping) and part in found:
                found = found[part]
            elif isinstance(found, list) and part.isdecimal() and int(part) < len(found):
                found = found[int(part)]
            else:
                there = ", ".join(map(str, self.values)) or "none"
                raise UsageError(f"{self.where}: no column {column!r}; the columns are {there}")
        return found

    def text(self, column: str) -> str:
        """The text in a column; a number counts as its text.

        Raises:
            UsageError: There is no such column, or something else is in it.
        """
        value = self.value(column)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return str(value)
        if not isinstance(value, str):
            kind = type(value).__name__
            raise UsageError(f"{self.where}: column {column!r} must be text, not {kind}")
        return value


Build = Callable[[Row], Task | None]
"""Makes a task of a row; None leaves the row out. To be cached it must be hashable."""


def load_tasks(
    build: Build,
    *,
    path: str | Path | None,
    dataset: str | None = None,
    config: str | None = None,
    split: str = "train",
) -> ListTasks:
    """The tasks of a file, a folder or a data set; read once as long as nothing changes.

    Args:
        build: makes a task of each row.
        path: a `.jsonl`, `.parquet` or `.json` file (a list of objects), whose rows belong to `split`;
            or a folder with files of the first two kinds, one a split and named after it, as in
            `train.jsonl` or `train-00000-of-00002.parquet`.
        dataset: id of a data set on the Hugging Face hub, or a folder that `datasets` can load;
            instead of `path`.
        config: its configuration.
        split: the split of a single file.

    Raises:
        UsageError: Neither or both of `path` and `dataset`; a file that is missing or malformed; no
            row was kept; `pyarrow` or `datasets` is needed and not installed.
    """
    if (path is None) == (dataset is None):
        raise UsageError("give path=, a .jsonl or .parquet file or a folder, or dataset=, a hub id")
    if dataset is not None:
        return _from_hub(build, dataset, config)
    path = Path(path or "")
    if not path.is_dir():
        return _from_files(build, ((path, split, stamp(path)),))
    files = [file for file in sorted(path.iterdir()) if file.suffix in SUFFIXES]
    if not files:
        raise UsageError(f"{path}: the folder holds no .jsonl or .parquet file")
    return _from_files(
        build, tuple((file, _SHARD.sub("", file.stem), stamp(file)) for file in files)
    )


@lru_cache(maxsize=8)
def _from_files(build: Build, files: tuple[tuple[Path, str, object], ...]) -> ListTasks:
    rows = (row for path, split, _ in files for row in read_file(path, split))
    return _kept(build, rows, ", ".join(str(path) for path, _, _ in files))


@lru_cache(maxsize=8)
def _from_hub(build: Build, dataset: str, config: str | None) -> ListTasks:
    datasets = _need("datasets", "dataset=")
    try:
        splits: Mapping[str, Any] = datasets.load_dataset(dataset, config)
    except Exception as error:  # no network, no such data set, no such configuration
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UsageError(f"data set {dataset!r} ({config}) cannot be loaded: {reason}") from error
    rows = (
        Row(f"{split}:{index}", str(split), f"{dataset} {split}:{index}", values)
        for split, part in splits.items()
        for index, values in enumerate(part)
    )
    return _kept(build, rows, dataset)


def read_file(path: Path, split: str) -> Iterator[Row]:
    """The rows of a `.parquet` file, a `.json` file or else a JSON-lines file, numbered from 1.

    Raises:
        UsageError: The file is missing or malformed, or `pyarrow` is needed and not installed.
    """
    read = {".parquet": _read_parquet, ".json": read_json_list}.get(path.suffix, read_jsonl)
    for number, values in read(path):
        yield Row(f"{path.name}:{number}", split, f"{path}:{number}", values)


def _read_parquet(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    parquet = _need("pyarrow.parquet", f"{path}:")
    if not path.is_file():
        raise UsageError(f"{path}: there is no such file")
    try:
        rows = parquet.read_table(path).to_pylist()
    except Exception as error:  # pyarrow raises many kinds for a broken file
        reason = " ".join(str(error).split())
        raise UsageError(f"{path}: not a Parquet file ({reason})") from error
    yield from enumerate(rows, start=1)


def _need(module: str, what: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise UsageError(
            f"{what} needs the {package} package: pip install 'grpo-gym[data]'"
        ) from error


def _kept(build: Build, rows: Iterator[Row], where: str) -> ListTasks:
    tasks = [task for row in rows if (task := build(row)) is not None]
    if not tasks:
        raise UsageError(f"{where}: no row can be used")
    return ListTasks(tasks)
