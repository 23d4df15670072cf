"""Sources of tasks: procedural, lists, JSON lines."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_gym.errors import UsageError
from grpo_gym.jsonl import read_jsonl
from grpo_gym.tasks import ListTasks, ProceduralTasks, Task, TaskSource, jsonl_tasks

PROCEDURAL = ProceduralTasks(lambda rng: ("draw", str(rng.integers(2**62))))


@given(st.integers(0, 2**31), st.sampled_from(["train", "test"]))
def test_a_procedural_task_is_a_function_of_its_id(seed: int, split: str) -> None:
    task = PROCEDURAL.draw(np.random.default_rng(seed), split)
    assert PROCEDURAL.get(task.task_id) == task
    assert task.split == split


def test_train_and_test_streams_never_meet() -> None:
    train = {PROCEDURAL.get(f"train-{seed}").answer for seed in range(500)}
    test = {PROCEDURAL.get(f"test-{seed}").answer for seed in range(500)}
    assert len(train) == len(test) == 500
    assert not train & test


def test_procedural_tasks_have_no_end() -> None:
    source: TaskSource = PROCEDURAL
    assert source.task_ids("train") is None


@pytest.mark.parametrize(
    "task_id",
    [
        "",
        "train",
        "train-",
        "train--1",
        "train-01",
        "train-1.0",
        "train-2147483648",
        "train-9999999999",
        "dev-3",
        "train-٣",
        "3",
        "-3",
        f"train-{10**4000}",
    ],
)
def test_ids_that_name_no_procedural_task(task_id: str) -> None:
    with pytest.raises(UsageError, match="no task"):
        PROCEDURAL.get(task_id)


def test_unknown_splits_name_the_known_ones() -> None:
    with pytest.raises(UsageError, match="train, test"):
        PROCEDURAL.task_ids("dev")
    with pytest.raises(UsageError, match="train, test"):
        PROCEDURAL.draw(np.random.default_rng(0), "dev")


LIST = ListTasks([Task("a", "1?", "1"), Task("b", "2?", "2"), Task("c", "3?", "3", "test")])


def test_a_list_keeps_its_order_and_splits() -> None:
    assert LIST.task_ids("train") == ("a", "b")
    assert LIST.task_ids("test") == ("c",)
    assert LIST.get("b").answer == "2"
    drawn = {LIST.draw(np.random.default_rng(seed), "train").task_id for seed in range(30)}
    assert drawn == {"a", "b"}


def test_a_list_is_drawn_from_evenly() -> None:
    tasks = ListTasks([Task(str(number), "?", "!") for number in range(5)])
    rng = np.random.default_rng(0)
    drawn = [int(tasks.draw(rng, "train").task_id) for _ in range(5000)]
    assert np.bincount(drawn, minlength=5).tolist() == pytest.approx([1000] * 5, rel=0.12)


def test_a_list_says_what_is_wrong() -> None:
    with pytest.raises(UsageError, match="empty"):
        ListTasks([])
    with pytest.raises(UsageError, match="'a'"):
        ListTasks([Task("a", "1?", "1"), Task("a", "2?", "2")])
    with pytest.raises(UsageError, match="wants a list of Task, not 1 in it"):
        ListTasks([1])  # type: ignore[list-item]


@pytest.mark.parametrize("problem", [None, "?", ("?",), ("?", "!", {}, 4)])
def test_a_generator_of_tasks_is_told_what_it_should_return(problem: Any) -> None:
    with pytest.raises(UsageError, match="returns a prompt, an answer and perhaps metadata, not "):
        ProceduralTasks(lambda rng: problem).get("train-1")
    with pytest.raises(UsageError, match="wants a function"):
        ProceduralTasks(problem)
    with pytest.raises(UsageError, match="no task 'z' among 3"):
        LIST.get("z")
    with pytest.raises(UsageError, match="train, test"):
        LIST.task_ids("dev")


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "tasks.jsonl"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_jsonl_tasks_are_named_after_their_lines(tmp_path: Path) -> None:
    rows = [{"prompt": "1 + 1?", "answer": "2", "level": 3}, {"prompt": "é\u2028", "answer": ""}]
    path = write(tmp_path, "\n\n".join(json.dumps(row) for row in rows) + "\r\n")
    tasks = jsonl_tasks(path, split="test")
    assert tasks.task_ids("test") == ("tasks.jsonl:1", "tasks.jsonl:3")
    assert tasks.get("tasks.jsonl:1") == Task("tasks.jsonl:1", "1 + 1?", "2", "test", {"level": 3})
    assert tasks.get("tasks.jsonl:3").prompt == "é\u2028"


def test_a_jsonl_file_is_read_once_until_it_changes(tmp_path: Path) -> None:
    path = write(tmp_path, '{"prompt": "a", "answer": "b"}')
    first = jsonl_tasks(path)
    assert jsonl_tasks(path) is first
    write(tmp_path, '{"prompt": "a", "answer": "c"}')
    os.utime(path, ns=(1, 1))
    assert jsonl_tasks(path).get("tasks.jsonl:1").answer == "c"


GOOD = '{"prompt": "a", "answer": "b"}\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD + "{broken", r"tasks\.jsonl:2: not JSON"),
        (GOOD + "[1, 2]", r"tasks\.jsonl:2: .* not list"),
        (GOOD + '{"prompt": "a", "reply": "b"}', r":2: no column 'answer'; .* prompt, reply"),
        (GOOD + '{"prompt": "a", "answer": 3}', r":2: column 'answer' must be text, not int"),
        (GOOD + "{}", r":2: no column 'prompt'; the columns are none"),
        (GOOD + "[" * 100_000, r"tasks\.jsonl:2: not JSON"),
        ('{"prompt": ' + "9" * 5000 + "}", r"tasks\.jsonl:1: not JSON"),
        ("", "empty"),
        (" \n\n", "empty"),
        (GOOD.encode() + b"\xff\xfe", r"tasks\.jsonl:2: not UTF-8"),
        (b"\x00\x01\x02", r"tasks\.jsonl:1: not JSON"),
    ],
)
def test_a_bad_jsonl_file_is_told_by_line(tmp_path: Path, text: str | bytes, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        jsonl_tasks(write(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        read_jsonl(tmp_path / "none.jsonl")
    with pytest.raises(UsageError, match="cannot be read"):
        read_jsonl(tmp_path)
