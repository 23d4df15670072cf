"""Data sets of problems: files, folders, the hub, columns, and what counts as an answer."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from grpo_envs.catalogue import sample_arguments
from grpo_envs.math.competition import CompetitionEnv
from grpo_envs.math.dataset import MathDatasetEnv
from grpo_envs.math.grading import as_number, is_answerable, is_copied, verify_answer
from grpo_envs.math.hendrycks import MATHEnv
from grpo_gym.env import TextEnv
from grpo_gym.errors import UsageError
from grpo_gym.registry import make
from grpo_gym.testing import check_environment

ROWS = [{"problem": f"What is {n} + 5?", "answer": str(n + 5)} for n in range(3)]


def write(path: Path, rows: Sequence[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def tasks(env: TextEnv, split: str = "train") -> list[tuple[str, str, str]]:
    ids = env.tasks.task_ids(split) or ()
    found = [env.tasks.get(task_id) for task_id in ids]
    return [(task.task_id, task.prompt, task.answer) for task in found]


def test_columns_are_mapped(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"q": "1 + 1?", "gold": 2}, {"q": "1/2?", "gold": 0.5}])
    env = MathDatasetEnv(path=path, columns={"prompt": "q", "answer": "gold"})
    assert tasks(env) == [("a.jsonl:1", "1 + 1?", "2"), ("a.jsonl:2", "1/2?", "0.5")]


def test_columns_may_lie_inside_others(tmp_path: Path) -> None:
    row = {
        "prompt": [{"role": "user", "content": "6 * 7?"}],
        "reward_model": {"ground_truth": "42", "style": "rule"},
        "dotted.name": "6 * 8?",
    }
    path = write(tmp_path / "a.jsonl", [row])
    answer = "reward_model.ground_truth"
    env = MathDatasetEnv(path=path, columns={"prompt": "prompt.0.content", "answer": answer})
    assert tasks(env) == [("a.jsonl:1", "6 * 7?", "42")]
    env = MathDatasetEnv(path=path, columns={"prompt": "dotted.name", "answer": answer})
    assert tasks(env) == [("a.jsonl:1", "6 * 8?", "42")]


@pytest.mark.parametrize("column", ["question", "prompt.1.content", "prompt.0.role.x", "prompt.x"])
def test_a_missing_column_is_told_with_those_there_are(tmp_path: Path, column: str) -> None:
    path = write(tmp_path / "a.jsonl", [{"prompt": [{"content": ""}], "answer": "1"}])
    with pytest.raises(UsageError, match=rf"a\.jsonl:1: no column '{column}'.* are prompt, answer"):
        MathDatasetEnv(path=path, columns={"prompt": column})


@pytest.mark.parametrize("value", [None, True, ["7"], {"a": "7"}])
def test_a_prompt_is_text(tmp_path: Path, value: Any) -> None:
    path = write(tmp_path / "a.jsonl", [{"problem": value, "answer": "7"}])
    with pytest.raises(UsageError, match=r"a\.jsonl:1: column 'problem' must be text, not"):
        MathDatasetEnv(path=path)


def test_only_prompt_and_answer_are_mapped(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="columns maps prompt and answer, not reward"):
        MathDatasetEnv(path=tmp_path, columns={"reward": "r"})
    with pytest.raises(UsageError, match="columns is a map"):
        MathDatasetEnv(path=tmp_path, columns="question")  # type: ignore[arg-type]


def test_solutions_give_their_final_answer(tmp_path: Path) -> None:
    answers = ["so \\boxed{1} or rather \\boxed{\\frac{3}{4}}.", "2 + 3 = 5\n#### 5", "x > 2"]
    path = write(tmp_path / "a.jsonl", [{"problem": "?", "answer": text} for text in answers])
    assert [answer for _, _, answer in tasks(MathDatasetEnv(path=path))] == [
        "\\frac{3}{4}",
        "5",
        "x > 2",
    ]


UNANSWERABLE = [
    None,
    "",
    "   ",
    "$$",
    "\\boxed{}",
    "a}b{c",
    "\\frac{1}{2",
    "The proof goes by induction on the number of vertices of the graph.",
    "1" * 3000,
]


@pytest.mark.parametrize("answer", UNANSWERABLE)
def test_rows_that_cannot_be_graded_are_left_out(tmp_path: Path, answer: str | None) -> None:
    rows = [{"problem": "?", "answer": answer}, *ROWS]
    path = write(tmp_path / "a.jsonl", rows)
    assert [task_id for task_id, _, _ in tasks(MathDatasetEnv(path=path))] == [
        "a.jsonl:2",
        "a.jsonl:3",
        "a.jsonl:4",
    ]
    with pytest.raises(UsageError, match=r"a\.jsonl:1: the answer '.*' cannot be graded"):
        MathDatasetEnv(path=path, skip_unanswerable=False)
    with pytest.raises(UsageError, match="no row can be used"):
        MathDatasetEnv(path=write(tmp_path / "b.jsonl", rows[:1]))


@pytest.mark.parametrize(
    "answer",
    [
        "7",
        "x^2 - 1",
        "\\text{Monday}",
        "no real solutions",
        "(-\\infty, 3] \\cup \\{5\\}",
        "A",
        "π",
    ],
)
def test_final_answers_are_answerable(answer: str) -> None:
    assert is_answerable(answer)


def test_a_folder_has_a_split_for_each_file(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", ROWS)
    write(tmp_path / "test-00000-of-00002.jsonl", ROWS[:1])
    write(tmp_path / "test-00001-of-00002.jsonl", ROWS[1:2])
    env = MathDatasetEnv(path=tmp_path, split="test")
    assert [task_id for task_id, _, _ in tasks(env, "test")] == [
        "test-00000-of-00002.jsonl:1",
        "test-00001-of-00002.jsonl:1",
    ]
    assert len(tasks(env, "train")) == 3


def test_a_file_is_read_once_until_it_changes(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", ROWS)
    first = MathDatasetEnv(path=path).tasks
    assert MathDatasetEnv(path=path).tasks is first
    assert MathDatasetEnv(path=path, skip_unanswerable=False).tasks is not first
    write(path, ROWS[:2])
    os.utime(path, ns=(1, 1))
    assert len(tasks(MathDatasetEnv(path=path))) == 2


def test_parquet_files_are_read(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    rows = [{**row, "reward_model": {"ground_truth": "7"}} for row in ROWS]
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    assert tasks(MathDatasetEnv(path=path))[2] == ("a.parquet:3", "What is 2 + 5?", "7")
    env = MathDatasetEnv(path=path, columns={"answer": "reward_model.ground_truth"})
    assert [answer for _, _, answer in tasks(env)] == ["7", "7", "7"]
    path.write_bytes(b"PAR1 nothing PAR1")
    with pytest.raises(UsageError, match=r"a\.parquet: not a Parquet file"):
        MathDatasetEnv(path=path)
    with pytest.raises(UsageError, match="no such file"):
        MathDatasetEnv(path=tmp_path / "b.parquet")


def test_a_list_in_a_json_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(ROWS, indent=2))
    assert tasks(MathDatasetEnv(path=path))[2] == ("a.json:3", "What is 2 + 5?", "7")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "not JSON"),
        ("[" * 9999, "not JSON"),
        ('{"problem": "a"}', "must hold a list of objects"),
        ("[1]", "must hold a list of objects"),
        ("[]", "is empty"),
        ("\xff", "not JSON"),
    ],
)
def test_other_json_files_are_told(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=rf"a\.json: .*{message}"):
        MathDatasetEnv(path=path)


def stand_in(monkeypatch: pytest.MonkeyPatch, name: str, **members: Any) -> None:
    module = ModuleType(name)
    vars(module).update(members)
    monkeypatch.setitem(sys.modules, name, module)


class Table:
    """What `pyarrow.parquet.read_table` returns, as far as it is used."""

    def to_pylist(self) -> list[dict[str, str]]:
        return ROWS


def test_a_parquet_table_is_read_by_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, "pyarrow")
    stand_in(monkeypatch, "pyarrow.parquet", read_table=lambda path: Table())
    path = tmp_path / "a.parquet"
    path.touch()
    assert tasks(MathDatasetEnv(path=path))[0] == ("a.parquet:1", "What is 0 + 5?", "5")


@pytest.mark.parametrize(
    ("module", "given"),
    [("pyarrow.parquet", {"path": "a.parquet"}), ("datasets", {"dataset": "not/loaded"})],
)
def test_a_missing_package_is_told(
    monkeypatch: pytest.MonkeyPatch, module: str, given: dict[str, str]
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UsageError, match=r"needs the .* package: pip install 'grpo-gym\[data\]'"):
        MathDatasetEnv(**given)


def test_the_hub_is_read_by_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(dataset: str, config: str | None) -> dict[str, list[dict[str, str]]]:
        assert (dataset, config) == ("who/what", None)
        return {"train": ROWS, "test": ROWS[:1]}

    stand_in(monkeypatch, "datasets", load_dataset=load_dataset)
    env = MathDatasetEnv(dataset="who/what", split="test")
    assert tasks(env, "test") == [("test:0", "What is 0 + 5?", "5")]
    with pytest.raises(UsageError, match="no split 'dev'; there is train, test"):
        MathDatasetEnv(dataset="who/what", split="dev")
    with pytest.raises(UsageError, match=r"who/what train:0: no column 'q'"):
        MathDatasetEnv(dataset="who/what", columns={"prompt": "q"})


COPIED = [
    ("Factor $x^2 - 1$.", "(x-1)(x+1)", "x^2 - 1"),
    ("Factor $x^2-1$.", "(x-1)(x+1)", "{x}^2 - 1"),
    ("Simplify $\\sqrt{12}$.", "2\\sqrt{3}", "\\sqrt{12}"),
    ("Simplify $\\dfrac{x^2}{x}$.", "x", "\\frac{x^2}{x}"),
    ("What is 8 + 8?", "16", "8 + 8"),
    ("Simplify $\\frac{6}{8}$.", "\\frac{3}{4}", "\\frac{6}{8}"),
    ("Write 1/8 as a decimal.", "0.125", "1/8"),
    ("Compute $\\frac{1}{2} + \\frac{1}{3}$.", "\\frac{5}{6}", "\\frac{1}{2} + \\frac{1}{3}"),
]


@pytest.mark.parametrize(("question", "reference", "answer"), COPIED)
def test_a_formula_of_the_question_is_no_answer(question: str, reference: str, answer: str) -> None:
    score = verify_answer(f"\\boxed{{{answer}}}", reference, question)
    assert (score.value, score.success, score.components["correct"]) == (0, False, 0)
    assert verify_answer(f"\\boxed{{{reference}}}", reference, question).success


RIGHT = [
    ("Is $x^2 - 1$ the same as $(x-1)(x+1)$? Factor.", "(x-1)(x+1)", "(x+1)(x-1)"),
    ("Which of $x + 1$ and $x + 2$ is more?", "x + 2", "x+2"),
    ("Find the interval.", "(0, 1]", "\\left(0, 1\\right]"),
    ("Half?", "\\frac{1}{2}", "0.5"),
    ("Half?", "\\dfrac12", "\\frac{1}{2}"),
    ("Half?", "0.5", "\\frac{1}{2}"),
    ("Which is less, -1/2 or 3/4?", "-\\frac{1}{2}", "-1/2"),
    ("Day?", "\\text{Monday}", "Monday"),
    ("Thousand?", "1{,}000", "1000"),
    ("Degrees?", "90^\\circ", "90"),
]


@pytest.mark.parametrize(("question", "reference", "answer"), RIGHT)
def test_right_answers(question: str, reference: str, answer: str) -> None:
    assert verify_answer(f"\\boxed{{{answer}}}", reference, question).success


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("7", "7"),
        ("-3.5", "-3.5"),
        ("\\frac{3}{4}", "3/4"),
        ("-\\dfrac{3}{4}", "-3/4"),
        ("1{,}000", "1000"),
        ("x", None),
        ("\\sqrt{2}", None),
        ("2^{10}", None),
        ("(1, 2)", None),
    ],
)
def test_plain_numbers_are_told_apart(text: str, number: str | None) -> None:
    assert as_number(text) == number


def test_a_part_of_the_question_without_an_operation_may_be_the_answer() -> None:
    assert not is_copied("x", "x^{1}", "Given $x$, simplify.")


def test_math_takes_the_last_box_of_the_solution(tmp_path: Path) -> None:
    rows = [
        {
            "problem": "a",
            "level": "Level 1",
            "type": "Algebra",
            "solution": "\\boxed{1}, \\boxed{2}",
        },
        {
            "problem": "b",
            "level": "Level 5",
            "type": "Geometry",
            "solution": "\\fbox{\\frac{1}{2}}",
        },
        {"problem": "c", "level": "Level 5", "subject": "Algebra", "solution": "is \\boxed 7."},
    ]
    path = write(tmp_path / "test.jsonl", rows)
    answers = [answer for _, _, answer in tasks(MATHEnv(path=path))]
    assert answers == ["2", "\\frac{1}{2}", "7."]
    assert [p for _, p, _ in tasks(MATHEnv(path=path, level=5))] == ["b", "c"]
    assert [p for _, p, _ in tasks(MATHEnv(path=path, subject="algebra"))] == ["a", "c"]
    with pytest.raises(UsageError, match="no row can be used"):
        MATHEnv(path=path, level=4)
    with pytest.raises(UsageError, match="level must be between 1 and 5"):
        MATHEnv(path=path, level=6)


@pytest.mark.parametrize("solution", ["no box", "\\boxed{}", "\\boxed{1"])
def test_a_solution_without_an_answer_is_refused(tmp_path: Path, solution: str) -> None:
    path = write(tmp_path / "a.jsonl", [{"problem": "a", "solution": solution}])
    with pytest.raises(UsageError, match=r"a\.jsonl:1: the solution has no answer in \\boxed"):
        MATHEnv(path=path)


@pytest.mark.parametrize("answer", ["25", "025", 25, 25.0, "025.0", " 25 "])
def test_competition_answers_are_whole_numbers(tmp_path: Path, answer: Any) -> None:
    env = CompetitionEnv(path=write(tmp_path / "a.jsonl", [{"problem": "?", "answer": answer}]))
    assert tasks(env) == [("a.jsonl:1", "?", "25")]
    for right in ("25", "025", "25.", "x = 25"):
        env.reset(seed=0)
        assert env.step(f"\\boxed{{{right}}}")[4]["success"], right
    for wrong in ("24", "5^2", "25, 26", "20 + 5", "-25"):
        env.reset(seed=0)
        assert not env.step(f"\\boxed{{{wrong}}}")[4]["success"], wrong


@pytest.mark.parametrize("answer", ["1000", "-1", "x", "", "2.5", 25.5, "1e2", "²", "9" * 5000])
def test_other_competition_answers_are_refused(tmp_path: Path, answer: Any) -> None:
    path = write(tmp_path / "a.jsonl", [{"problem": "?", "answer": answer}])
    with pytest.raises(
        UsageError, match=r"a\.jsonl:1: the answer '.*' is no whole number between 0"
    ):
        CompetitionEnv(path=path)


def test_the_bounds_of_a_competition_can_be_set(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"q": "?", "a": "-12345"}])
    env = CompetitionEnv(path=path, columns={"prompt": "q", "answer": "a"}, low=-99999, high=99999)
    assert tasks(env) == [("a.jsonl:1", "?", "-12345")]


@pytest.mark.parametrize("name", ["MATH", "Competition", "MathDataset", "GSM8K"])
def test_every_sample_keeps_the_contract(name: str) -> None:
    id = f"grpo_gym/{name}-v0"
    report = check_environment(lambda: make(id, **sample_arguments(id)), range(12))
    assert report.ok, str(report)
    assert not any(outcome.result == "skipped" for outcome in report.outcomes)
