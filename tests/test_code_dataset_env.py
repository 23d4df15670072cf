"""CodeDataset: the shapes in which problems with tests are published, and rows that have none of them."""

import base64
import json
import pickle
import zlib
from pathlib import Path
from typing import Any

import pytest

from grpo_envs.code.base import problem_of
from grpo_envs.code.dataset import CodeDatasetEnv
from grpo_envs.code.problem import fenced
from grpo_gym.errors import UsageError
from grpo_gym.sandbox import probe
from grpo_gym.verifiers.code import Case

pytestmark = pytest.mark.skipif(probe("auto") is not None, reason="no sandbox works here")

ADD = "def add(a, b):\n    return a + b"
ADD_METHOD = "class Solution:\n    def add(self, a, b):\n        return a + b"
ADD_STDIN = "print(sum(map(int, input().split())))"


def env_of(tmp_path: Path, *rows: Any, **kwargs: Any) -> CodeDatasetEnv:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return CodeDatasetEnv(path=path, **kwargs)


def success(env: CodeDatasetEnv, program: str) -> bool:
    env.reset(options={"task_id": "rows.jsonl:1"})
    *_, info = env.step(fenced(program))
    return bool(info["success"])


def prompt(env: CodeDatasetEnv) -> str:
    return env.tasks.get("rows.jsonl:1").prompt


def packed(value: Any) -> str:
    """The private tests as LiveCodeBench publishes them."""
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(value)))).decode()


APPS = {"inputs": ["1 2\n", "10 -3\n"], "outputs": ["3\n", "7\n"]}
APPS_CALLS = {"fn_name": "add", "inputs": [[1, 2], [10, -3]], "outputs": [3, [7]]}
LIVE = [{"input": "1 2\n", "output": "3\n", "testtype": "stdin"}]
LIVE_HIDDEN = [{"input": "707 2\n", "output": "709\n", "testtype": "stdin"}]
LIVE_CALL = [{"input": "1\n2", "output": "3", "testtype": "functional"}]
LIVE_CALL_HIDDEN = [{"input": "[1]\n[707]", "output": "[1, 707]", "testtype": "functional"}]

SHAPES: list[tuple[str, dict[str, Any], str]] = [
    ("asserts", {"prompt": "Add.", "tests": ["assert add(1, 2) == 3"]}, ADD),
    ("asserts", {"prompt": "Add.", "tests": "assert add(1, 2) == 3", "solution": ADD}, ADD),
    (
        "asserts",
        {
            "prompt": "Add.",
            "setup": "def check(f):\n    assert f(1, b=2) == 3",
            "tests": "check(add)",
            "entry_point": "add",
        },
        ADD,
    ),
    ("stdio", {"prompt": "Add.", "inputs": ["1 2", "0 0"], "outputs": ["3", "0"]}, ADD_STDIN),
    (
        "apps",
        {
            "question": "Add.",
            "input_output": json.dumps(APPS),
            "solutions": json.dumps([ADD_STDIN]),
        },
        ADD_STDIN,
    ),
    (
        "apps",
        {"question": "Add.", "input_output": {"inputs": [["1 2", ""]], "outputs": [["3"]]}},
        ADD_STDIN,
    ),
    ("apps", {"question": "Add.", "input_output": json.dumps(APPS_CALLS), "solutions": ""}, ADD),
    ("apps", {"question": "Add.", "input_output": json.dumps(APPS_CALLS)}, ADD_METHOD),
    (
        "code_contests",
        {
            "description": "Add.",
            "public_tests": {"input": ["1 2\n"], "output": ["3\n"]},
            "private_tests": {"input": [], "output": []},
            "generated_tests": {"input": ["0 9\n"], "output": ["9\n"]},
            "solutions": {"language": [2, 3], "solution": ["int main()", ADD_STDIN]},
        },
        ADD_STDIN,
    ),
    (
        "live_code_bench",
        {
            "question_content": "Add.",
            "public_test_cases": json.dumps(LIVE),
            "private_test_cases": packed(LIVE_HIDDEN),
            "starter_code": "",
            "metadata": "{}",
        },
        ADD_STDIN,
    ),
    (
        "live_code_bench",
        {
            "question_content": "Add.",
            "public_test_cases": json.dumps(LIVE_CALL),
            "private_test_cases": json.dumps(LIVE_CALL_HIDDEN),
            "starter_code": "class Solution:\n    def add(self, a, b):\n",
            "metadata": json.dumps({"func_name": "add"}),
        },
        ADD_METHOD,
    ),
]


@pytest.mark.parametrize(("shape", "row", "program"), SHAPES)
def test_each_shape_is_judged_by_all_of_its_tests(
    tmp_path: Path, shape: str, row: dict[str, Any], program: str
) -> None:
    env = env_of(tmp_path, row, shape=shape)
    assert prompt(env).startswith("Add.")
    assert success(env, program)
    for wrong in (
        program.replace("a + b", "a - b").replace("sum", "max"),
        program.replace("a + b", "3").replace("sum(map(int, input().split()))", "3"),
    ):
        tests = problem_of(env.tasks.get("rows.jsonl:1"))
        alone = len(tests.tests) + len(tests.cases) == 1 and "3" in wrong
        assert success(env, wrong) is alone


@pytest.mark.parametrize(("shape", "row", "program"), SHAPES)
def test_the_published_solution_wins_where_there_is_one(
    tmp_path: Path, shape: str, row: dict[str, Any], program: str
) -> None:
    env = env_of(tmp_path, row, shape=shape)
    published = env.solution(env.tasks.get("rows.jsonl:1"))
    assert published == ((fenced(program),) if row.get("solution") or row.get("solutions") else ())


def test_a_tuple_is_as_good_as_a_list_where_values_are_json(tmp_path: Path) -> None:
    calls = {"fn_name": "pair", "inputs": [[1]], "outputs": [[[1, [1]]]]}
    row = {"question": "Pair.", "input_output": json.dumps(calls)}
    assert success(env_of(tmp_path, row, shape="apps"), "def pair(a): return (a, (a,))")


LEETCODE = """from __future__ import annotations
class Solution:
    def add(self, a: int, b: Optional[int] = None) -> List[int]:
        return Counter({"sum": math.fsum([a, b])})["sum"]
"""


def test_a_result_may_be_infinite(tmp_path: Path) -> None:
    row = {"question": "?", "input_output": {"fn_name": "f", "inputs": [[]], "outputs": [9e999]}}
    env = env_of(tmp_path, row, shape="apps")
    assert success(env, "def f():\n    return float('inf')")
    assert not success(env, "def f():\n    return 1e300")


def test_programs_of_sites_find_what_they_take_for_granted(tmp_path: Path) -> None:
    row = {"question": "Add.", "input_output": json.dumps(APPS_CALLS)}
    env = env_of(tmp_path, row, shape="apps")
    assert success(env, LEETCODE)
    assert success(env, LEETCODE.replace("from __future__ import annotations", ""))


@pytest.mark.parametrize("name", ["gcd", "comb", "reduce", "prod", "sum"])
def test_what_is_taken_for_granted_is_never_the_answer(tmp_path: Path, name: str) -> None:
    calls = {"fn_name": name, "inputs": [[[4, 6]]], "outputs": [10]}
    if name in ("gcd", "comb"):
        calls |= {"inputs": [[4, 2]], "outputs": [2 if name == "gcd" else 6]}
    row = {"question": "Compute.", "input_output": json.dumps(calls)}
    assert not success(env_of(tmp_path, row, shape="apps"), "pass")


def test_the_question_says_what_the_program_should_look_like(tmp_path: Path) -> None:
    row: dict[str, Any] = {
        "prompt": "Add.",
        "tests": ["assert add(1, 2) == 3", "assert add(707, 1) == 708"],
    }
    text = prompt(env_of(tmp_path, row | {"entry_point": "add"}))
    assert "Name the function add." in text
    assert "add(1, 2) == 3" in text
    assert "707" not in text
    assert "add(1, 2)" not in prompt(env_of(tmp_path, row, shown=0))
    assert "707" in prompt(env_of(tmp_path, row, shown=2))
    row = {"prompt": "Add.", "inputs": ["1 2"], "outputs": ["3"]}
    assert "stdin" in prompt(env_of(tmp_path, row, shape="stdio"))
    row = SHAPES[-1][1]
    text = prompt(env_of(tmp_path, row, shape="live_code_bench"))
    assert "Begin with\n```python\nclass Solution:" in text
    assert "add(1, 2) == 3" in text
    assert "as_json" not in text
    assert "707" not in text


def test_columns_have_other_names(tmp_path: Path) -> None:
    row = {"problem": "Add.", "extra": {"tests": ["assert add(1, 2) == 3"], "code": ADD}}
    columns = {"prompt": "problem", "tests": "extra.tests", "solution": "extra.code"}
    env = env_of(tmp_path, row, columns=columns)
    assert success(env, ADD)
    assert env.solution(env.tasks.get("rows.jsonl:1")) == (fenced(ADD),)


def test_tests_can_be_limited(tmp_path: Path) -> None:
    row = {"prompt": "Add.", "inputs": ["1 2", "0 0"], "outputs": ["3", "0"]}
    env = env_of(tmp_path, row, shape="stdio", max_tests=1)
    assert problem_of(env.tasks.get("rows.jsonl:1")).cases == (Case("1 2", "3"),)


def test_rows_without_tests_are_left_out(tmp_path: Path) -> None:
    rows = [
        {"question": "Add.", "input_output": ""},
        {"question": "Add.", "input_output": json.dumps(APPS)},
        {"question": "Add.", "input_output": "{}"},
        {"question": "Add.", "input_output": {"inputs": ["1"], "outputs": [" \n"]}},
    ]
    env = env_of(tmp_path, *rows, shape="apps")
    assert list(env.tasks.task_ids("train") or ()) == ["rows.jsonl:2"]


class Trap:
    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("trapped"),)


def test_a_pickle_is_looked_at_and_never_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    bomb = base64.b64encode(zlib.compress(pickle.dumps(Trap()))).decode()
    row = {"question_content": "Add.", "public_test_cases": "[]", "private_test_cases": bomb}
    with pytest.raises(UsageError, match=r"rows.jsonl:1: column 'private_test_cases' must be JSON"):
        env_of(tmp_path, row, shape="live_code_bench")
    assert not Path("trapped").exists()


@pytest.mark.parametrize(
    ("shape", "row", "message"),
    [
        ("asserts", {"prompt": "a"}, "no column 'tests'"),
        ("asserts", {"prompt": "a", "tests": 3}, "'tests' must be a list of texts"),
        ("asserts", {"prompt": "a", "tests": "assert f() =="}, "not Python .*assert f"),
        ("asserts", {"prompt": "a", "tests": "assert f()\0"}, "not Python"),
        ("asserts", {"prompt": "a", "tests": "assert f()", "setup": "def"}, "not Python"),
        ("asserts", {"prompt": "a", "tests": ["f(1)", "print(f(2))"]}, "the tests assert nothing"),
        ("stdio", {"prompt": "a", "inputs": ["1"], "outputs": []}, "as many texts each"),
        ("stdio", {"prompt": "a", "inputs": [1], "outputs": ["1"]}, "must be a list of texts"),
        ("apps", {"question": "a", "input_output": "{"}, "must be JSON"),
        ("apps", {"question": "a", "input_output": "[" * 9999}, "must be JSON"),
        ("apps", {"question": "a", "input_output": "[1]"}, "must be an object"),
        ("apps", {"question": "a", "input_output": '{"inputs": 1}'}, "lists of inputs"),
        ("apps", {"question": "a", "input_output": '{"inputs": ["1"], "outputs": []}'}, "as many"),
        ("apps", {"question": "a", "input_output": {**APPS_CALLS, "fn_name": "f()"}}, "is no name"),
        ("apps", {"question": "a", "input_output": {**APPS_CALLS, "inputs": [1]}}, "arguments for"),
        ("code_contests", {"description": "a", "public_tests": "x"}, "must be an object"),
        ("live_code_bench", {"question_content": "a", "public_test_cases": "{}"}, "list of tests"),
        ("live_code_bench", {"question_content": "a", "public_test_cases": "[1]"}, "with input"),
        ("live_code_bench", {"question_content": "a", "public_test_cases": "eJw="}, "must be JSON"),
        (
            "live_code_bench",
            {
                "question_content": "a",
                "public_test_cases": [{"input": "x y", "output": "1"}],
                "metadata": {"func_name": "f"},
            },
            "arguments as JSON",
        ),
    ],
)
def test_rows_of_another_shape_are_told(
    tmp_path: Path, shape: str, row: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=rf"rows.jsonl:1: .*{message}"):
        env_of(tmp_path, row, shape=shape)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"shape": "leet"}, "no shape 'leet'; there is asserts, stdio"),
        ({"columns": {"answer": "a"}}, "columns of asserts are prompt, tests.*, not answer"),
        ({"columns": 3}, "columns is a map"),
        ({"shown": -1}, "shown must be"),
        ({"max_tests": 0}, "max_tests must be"),
        ({"seconds": 0}, "seconds must be positive"),
    ],
)
def test_wrong_arguments_are_told(tmp_path: Path, kwargs: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        env_of(tmp_path, SHAPES[0][1], **kwargs)
