"""Python sessions in the sandbox: state between calls, limits, and nothing left behind."""

import copy
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grpo_envs.catalogue import SAMPLES
from grpo_envs.tools.python import PythonEnv
from grpo_envs.tools.python_questions import KINDS, LEVELS, Kind, question
from grpo_envs.tools.python_session import Session
from grpo_gym.errors import UsageError
from grpo_gym.sandbox import Limits, SandboxError, backends, probe
from grpo_gym.types import as_messages

RNG = np.random.default_rng(0)
needs_sandbox = pytest.mark.skipif(probe("auto") is not None, reason="no sandbox works here")


def said(*cells: str, **kwargs: Any) -> list[str]:
    session = Session(**kwargs)
    return [session.run(cell) for cell in cells]


@needs_sandbox
@pytest.mark.parametrize(
    ("cells", "last"),
    [
        (["1 + 1"], "2"),
        (["x = 3", "x * 2"], "6"),
        (["x = 3", "x += 1\nprint(x)", "x"], "4"),
        (["def f(n):\n    return n + 1", "f(f(1))"], "3"),
        (["from math import gcd", "gcd(12, 18)"], "6"),
        (["print('once')", "2"], "2"),
        (["print('a')\nprint('b')\n'c'"], "a\nb\n'c'"),
        (["None"], "(no output)"),
        (["object()"], "<object object at 0x...>"),
        (["hex(10**9)"], "'0x3b9aca00'"),
        ([""], "(no output)"),
        (["import sys\nprint('a')\nprint('b', file=sys.stderr)\nprint('c')"], "a\nb\nc"),
        (["1 / 0"], "cell 1, line 1: ZeroDivisionError: division by zero"),
        (
            ["def f(n):\n    return 1 / n", "\nf(0)"],
            "cell 1, line 2: ZeroDivisionError: division by zero",
        ),
        (["x = 1\ny = 2 / 0\nx = 3", "x"], "1"),
        (["x ="], "SyntaxError: invalid syntax (cell 1, line 1)"),
        (["y"], "cell 1, line 1: NameError: name 'y' is not defined"),
        (["class E(Exception):\n    def __str__(self): raise E\nraise E"], "cell 1, line 3: E"),
        (["import sys\nsys.exit(3)", "5"], "5"),
        (["input()"], "cell 1, line 1: EOFError: EOF when reading a line"),
        (["import sys\nsys.stdout.close()", "5"], "5"),
        (["import sys\nsys.stdout = None", "5"], "5"),
        (["open('f', 'w').write('abc')", "open('f').read()"], "'abc'"),
        (
            ["import time, threading\nthreading.Thread(target=time.sleep, args=(60,)).start()\n7"],
            "7",
        ),
        (["def f(): return f()\nf()", "5"], "5"),
        (["print('\\ud800')", "5"], "5"),
        (["raise ValueError('\\ud800')"], "cell 1, line 1: ValueError: \\ud800"),
        (["__name__"], "'__main__'"),
        (["import builtins\nbuiltins.print = None\ndel builtins.repr", "x = 5"], "(no output)"),
    ],
)
def test_cells_share_their_names(cells: list[str], last: str) -> None:
    assert said(*cells)[-1] == last


@needs_sandbox
def test_chance_is_the_same_each_time() -> None:
    first = said("import random", "a = random.random()", "a, random.random()")
    assert first == said("import random", "a = random.random()", "a, random.random()")
    session = Session()
    session.run("import random\na = random.random()")
    assert session.run("a") == session.run("a")


@needs_sandbox
@pytest.mark.parametrize(
    ("cell", "why"),
    [
        ("while True: pass", "no result in 0.4 s"),
        ("import time\ntime.sleep(60)", "no result in 0.4 s"),
        ("import os\nos._exit(0)", "it ended the interpreter"),
        ("import os\nos.kill(os.getpid(), 9)", "it ended the interpreter"),
        ("import ctypes\nctypes.string_at(0)", "it ended the interpreter"),
        ("while True: print('long ' * 1000)", "it prints too much"),
    ],
)
def test_a_cell_that_is_ended_is_undone(cell: str, why: str) -> None:
    session = Session(Limits(wall_s=0.4, output_bytes=10_000))
    session.run("x = 1")
    answer = session.run(f"x = 2\n{cell}")
    assert answer.endswith(f"Error: {why}; what this call did is undone")
    assert session.run("x") == "1"
    assert session.cells == ("x = 1", "x")


@needs_sandbox
def test_too_much_memory_is_an_error_as_any_other() -> None:
    assert said("x = 1", "'a' * 10**10", "x") == [
        "(no output)",
        "cell 2, line 1: MemoryError: ",
        "1",
    ]


@needs_sandbox
def test_a_session_has_so_much_time_and_no_more() -> None:
    session = Session(most_seconds=0.3)
    session.run("import time\ntime.sleep(0.4)")
    assert session.run("1") == "Error: the session has used its 0.3 s"


@needs_sandbox
def test_the_sandbox_is_around_it(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("open")
    read, write, connect, environment = said(
        f"open({str(secret)!r}).read()",
        f"open({str(tmp_path / 'new')!r}, 'w')",
        "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
        "import os\nsorted(os.environ)",
    )
    assert "PermissionError" in read
    assert "PermissionError" in write or "FileNotFoundError" in write
    assert "Error" in connect
    assert not set(eval(environment)) - {"PATH", "LANG", "PYTHONHASHSEED", "HOME", "TMPDIR"}


def block(code: str) -> str:
    return f"```python\n{code}\n```"


def tool_text(env: PythonEnv, action: str) -> str:
    observation, *_ = env.step(action)
    return "\n".join(message["content"] for message in as_messages(observation))


@needs_sandbox
def test_an_episode_is_a_session() -> None:
    env = PythonEnv()
    env.reset(seed=0)
    assert (
        tool_text(env, f"I count first.\n{block('n = 41')}\nThen\n{block('n + 1')}")
        == "(no output)\n42"
    )
    assert tool_text(env, block("n")) == "41"
    env.reset(seed=0)
    assert "NameError" in tool_text(env, block("n"))


@needs_sandbox
def test_two_environments_have_two_sessions() -> None:
    first, second = PythonEnv(), PythonEnv()
    for number, env in enumerate((first, second)):
        env.reset(seed=0)
        env.step(block(f"n = {number}"))
    assert (tool_text(first, block("n")), tool_text(second, block("n"))) == ("0", "1")


@needs_sandbox
def test_an_episode_under_way_can_be_copied() -> None:
    env = PythonEnv()
    env.reset(seed=0)
    env.step(block("n = 1"))
    session = pickle.loads(pickle.dumps(copy.deepcopy(env.session)))
    assert session.run("n += 1\nn") == "2"
    assert tool_text(env, block("n")) == "1"


@needs_sandbox
def test_no_process_is_left_behind() -> None:
    env = PythonEnv(call_seconds=0.3)
    env.reset(seed=0)
    env.step(block("1"))  # the sandbox's server is there from now on
    before = children()
    env.step(block("while True: pass"))
    env.step(block("x = 1"))
    assert children() == before
    env.close()
    assert children() == before


def children() -> set[str]:
    found = set()
    for task in Path(f"/proc/{os.getpid()}/task").iterdir():
        found |= set((task / "children").read_text().split())
    return found


@needs_sandbox
def test_long_output_is_cut() -> None:
    env = PythonEnv(max_output=100)
    env.reset(seed=0)
    assert tool_text(env, block("print('a' * 500)")).startswith("a" * 100 + "... [")


@needs_sandbox
def test_a_call_beside_the_answer_is_a_call() -> None:
    env = PythonEnv()
    env.reset(seed=0)
    assert env.task is not None
    _, reward, terminated, *_ = env.step(f"\\boxed{{{env.task.answer}}}\n{block('1')}")
    assert (reward, terminated) == (0.0, False)
    _, reward, terminated, *_ = env.step(f"\\boxed{{{env.task.answer}}}")
    assert (reward, terminated) == (1.0, True)


@needs_sandbox
def test_problems_of_your_own_have_the_tool_too() -> None:
    env = PythonEnv(path=SAMPLES / "MathDataset-v0.jsonl")
    for id in env.tasks.task_ids("train") or ():
        for play, reward in ((env.solution, 1.0), (lambda t: env.mistakes(t, RNG), 0.0)):
            env.reset(options={"task_id": id})
            assert env.task is not None
            assert tool_text(env, block("6 * 7")) == "42"
            (answer,) = play(env.task)
            assert env.step(answer)[1] == reward


def test_without_a_sandbox_nothing_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(paths: Any) -> Any:
        raise SandboxError("not on this machine")

    for name in backends.SAFE:
        monkeypatch.setitem(backends.MAKERS, name, broken)
    backends.chosen.cache_clear()
    try:
        with pytest.raises(SandboxError, match=r"no sandbox works here .*not on this machine"):
            PythonEnv()
    finally:
        backends.chosen.cache_clear()


@needs_sandbox
def test_a_sandbox_that_breaks_in_an_episode_is_no_answer_to_the_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    env = PythonEnv()
    env.reset(seed=0)

    def broken(self: Session, source: str) -> str:
        raise SandboxError("the server ended")

    monkeypatch.setattr(Session, "run", broken)
    with pytest.raises(SandboxError, match="the server ended"):
        env.step(block("1"))


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"level": 0}, "level must be between 1 and 3"),
        ({"level": 4}, "level must be between 1 and 3"),
        ({"call_seconds": 0}, "call_seconds must be positive"),
        ({"session_seconds": float("inf")}, "session_seconds must be positive"),
        ({"memory_mb": 1}, "memory_mb must be 64 at least"),
        ({"sandbox": "none"}, "there is no sandbox"),
    ],
)
def test_wrong_arguments_are_told(kwargs: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        PythonEnv(**kwargs)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.answer.__name__)
@pytest.mark.parametrize("level", range(1, LEVELS + 1))
def test_the_cells_agree_with_the_answer(
    kind: Kind, level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grpo_envs.tools.python_questions.KINDS", (kind,))
    for seed in range(2):
        text, answer, metadata = question(np.random.default_rng(seed), level)
        assert "{" not in text
        scope: dict[str, Any] = {}
        *lines, last = "\n".join(metadata["cells"]).split("\n")
        exec("\n".join(lines), scope)
        assert str(eval(last, scope)) == answer


def test_higher_levels_have_larger_numbers() -> None:
    for seed in range(20):
        sizes = []
        for level in range(1, LEVELS + 1):
            text, *_ = question(np.random.default_rng(seed), level)
            sizes.append(
                max(int("".join(filter(str.isdigit, word)) or 0) for word in text.split()[:20])
            )
        assert sizes == sorted(sizes)
