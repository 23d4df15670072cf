"""GSM8K: reading answers, files and the hub, and grading all of the published ones."""

import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from grpo_envs.math.gsm8k import GSM8KEnv, parse_answer
from grpo_gym.errors import UsageError

FIXTURE = Path(__file__).parent / "data" / "gsm8k.jsonl"
PUBLISHED = Path(
    os.environ.get("GRPO_GYM_DATA", Path(__file__).parent.parent.parent / "shared" / "data")
)


@pytest.mark.parametrize(
    ("final", "answer"),
    [
        ("18", "18"),
        ("1,200", "1200"),
        ("2,520,000", "2520000"),
        ("-12", "-12"),
        ("−12", "-12"),
        ("$18", "18"),
        ("-$1,200.50", "-1200.50"),
        ("€ 5", "5"),
        ("18 dollars", "18"),
        ("90 km/h", "90"),
        ("18.", "18"),
        ("3/4", "3/4"),
        ("12.50", "12.50"),
        ("5%", "5%"),
        ("x + 1", "x + 1"),
        ("3 x 10^5", "3 x 10^5"),
        ("1,2", "1,2"),
    ],
)
def test_final_answers_are_bare_numbers(final: str, answer: str) -> None:
    assert parse_answer(f"So it is.\n#### {final}") == ("So it is.", answer)


def test_calculator_notes_are_left_out() -> None:
    assert parse_answer("2 + 3 = <<2+3=5>>5 pens\n#### 5") == ("2 + 3 = 5 pens", "5")


@pytest.mark.parametrize("answer", ["", "18", "#### ", "####"])
def test_an_answer_without_a_mark_is_refused(answer: str) -> None:
    with pytest.raises(ValueError, match="####"):
        parse_answer(answer)


def test_tasks_are_named_after_their_lines() -> None:
    env = GSM8KEnv(path=FIXTURE)
    assert env.tasks.task_ids("train") == tuple(f"gsm8k.jsonl:{line}" for line in range(1, 5))
    observation, _ = env.reset(options={"task_id": "gsm8k.jsonl:2"})
    assert observation[1]["content"].startswith("A bakery sells 240 rolls")
    assert env.task is not None
    assert env.task.answer == "1200"
    assert env.solution(env.task) == ("It takes 240 * 5 = $1200.\n\\boxed{1200}",)


def test_a_file_belongs_to_the_split_that_is_asked_for() -> None:
    env = GSM8KEnv(path=FIXTURE, split="test")
    assert len(env.tasks.task_ids("test") or ()) == 4
    with pytest.raises(UsageError, match="no split 'train'"):
        env.reset(options={"split": "train"})


def test_a_folder_has_a_split_for_each_file(tmp_path: Path) -> None:
    for split in ("train", "test"):
        (tmp_path / f"{split}.jsonl").write_text(FIXTURE.read_text())
    env = GSM8KEnv(path=tmp_path, split="test")
    _, info = env.reset(seed=0)
    assert info["task_id"].startswith("test.jsonl:")
    _, info = env.reset(seed=0, options={"split": "train"})
    assert info["task_id"].startswith("train.jsonl:")


def test_the_file_is_read_once() -> None:
    assert GSM8KEnv(path=FIXTURE).tasks is GSM8KEnv(path=str(FIXTURE)).tasks


ROW = {"question": "How many?", "answer": "One.\n#### 1"}


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ("{", r"rows\.jsonl:2: not JSON"),
        (json.dumps({"question": "How many?"}), r"rows\.jsonl:2: no column 'answer'"),
        (json.dumps(ROW | {"answer": "1"}), r"rows\.jsonl:2: the answer must end in '#### '"),
        (json.dumps(ROW | {"answer": [1]}), r"rows\.jsonl:2: column 'answer' must be text"),
        (json.dumps(ROW | {"answer": 1}), r"rows\.jsonl:2: the answer must end in '#### '"),
    ],
)
def test_a_bad_line_is_told(tmp_path: Path, second: str, message: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(ROW) + "\n" + second)
    with pytest.raises(UsageError, match=message):
        GSM8KEnv(path=path)


def test_wrong_arguments_are_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"path=, .* or dataset="):
        GSM8KEnv()
    with pytest.raises(UsageError, match=r"path=, .* or dataset="):
        GSM8KEnv(path=FIXTURE, dataset="openai/gsm8k")
    with pytest.raises(UsageError, match="no such file"):
        GSM8KEnv(path=tmp_path / "none.jsonl")
    with pytest.raises(UsageError, match=r"holds no \.jsonl or \.parquet file"):
        GSM8KEnv(path=tmp_path)


def hub(monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    """Put a stand-in for the `datasets` package in place."""
    module = ModuleType("datasets")
    module.load_dataset = answer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)


def test_the_hub_is_read_by_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load_dataset(dataset: str, config: str) -> dict[str, list[dict[str, str]]]:
        asked.append((dataset, config))
        return {"train": [ROW], "test": [ROW, ROW]}

    hub(monkeypatch, load_dataset)
    env = GSM8KEnv(dataset="openai/gsm8k", split="test")
    assert env.tasks.task_ids("test") == ("test:0", "test:1")
    GSM8KEnv(dataset="openai/gsm8k")
    assert asked == [("openai/gsm8k", "main")]


def test_a_hub_that_cannot_be_reached_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(dataset: str, config: str) -> None:
        raise ConnectionError("no network")

    hub(monkeypatch, load_dataset)
    with pytest.raises(
        UsageError, match=r"'nobody/nothing' \(main\) cannot be loaded: .*no network"
    ):
        GSM8KEnv(dataset="nobody/nothing")


def test_without_the_datasets_package_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UsageError, match=r"pip install 'grpo-gym\[data\]'"):
        GSM8KEnv(dataset="somebody/something")


@pytest.mark.skipif(not (PUBLISHED / "gsm8k").is_dir(), reason="the published data is not here")
class TestPublishedData:
    def test_every_gold_answer_scores_1(self) -> None:
        env = GSM8KEnv(path=PUBLISHED / "gsm8k", split="test")
        ids = env.tasks.task_ids("test") or ()
        assert len(ids) == 1319
        for task_id in ids:
            env.reset(options={"task_id": task_id})
            assert env.task is not None
            _, reward, _, _, info = env.step(env.solution(env.task)[0])
            assert (reward, info["success"]) == (1.0, True), task_id

    def test_a_thousand_junk_answers_score_0(self) -> None:
        env = GSM8KEnv(path=PUBLISHED / "gsm8k", split="test")
        rng = np.random.default_rng(0)
        for _ in range(1000):
            env.reset(seed=int(rng.integers(2**31)))
            assert env.task is not None
            junk = rng.choice([self.wrong_number(env, rng), self.noise(rng), env.task.prompt, ""])
            _, reward, _, _, info = env.step(str(junk))
            assert (reward, info["success"]) == (0.0, False), (env.task, junk)

    @staticmethod
    def wrong_number(env: GSM8KEnv, rng: np.random.Generator) -> str:
        assert env.task is not None
        return env.mistakes(env.task, rng)[0]

    @staticmethod
    def noise(rng: np.random.Generator) -> str:
        letters = "abc {}\\$#<>%&_^~é中\n"
        return "".join(letters[i] for i in rng.integers(len(letters), size=40))
