"""Programs are graded by what their functions return and what they print, whatever else they do."""

import math

import pytest

from grpo_gym.errors import UsageError
from grpo_gym.sandbox import SAFE, Limits, SandboxError, judge, probe, run
from grpo_gym.verifiers.code import (
    Case,
    extract_program,
    report_asserts,
    report_stdio,
    verify_asserts,
    verify_many,
    verify_stdio,
)
from tests.attacks.cheats import CHEATS, TESTS

QUICK = Limits(wall_s=10.0, cpu_s=1.0, memory_mb=256)
BACKENDS = [
    pytest.param(name, marks=pytest.mark.skipif(probe(name) is not None, reason=f"no {name} here"))
    for name in SAFE
]
pytestmark = pytest.mark.skipif(all(probe(name) for name in SAFE), reason="no sandbox works here")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", CHEATS)
def test_a_cheat_does_not_succeed(name: str, backend: str) -> None:
    score = verify_asserts(CHEATS[name], TESTS, limits=QUICK, backend=backend)

    assert not score.success
    assert score.value == 0.0


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_right_program_succeeds(backend: str) -> None:
    score = verify_asserts("def add(a, b): return a + b", TESTS, limits=QUICK, backend=backend)

    assert score.success
    assert score.value == 1.0


@pytest.mark.parametrize(
    ("program", "test"),
    [
        ("def f(x): x.sort()", "x = [3, 1, 2]\nf(x)\nassert x == [1, 2, 3]"),
        ("def f(d): d['a'] = 1", "d = {}\nf(d)\nassert d == {'a': 1}"),
        ("def f(n):\n    yield from range(n)", "assert list(f(3)) == [0, 1, 2]"),
        ("def f(): return 10**5000", "assert f() == 10**5000"),
        (
            "def f(): return (1, {2}, {'k': [None, 1.5, b'x']})",
            "assert f() == (1, {2}, {'k': [None, 1.5, b'x']})",
        ),
        ("def f(): return float('inf')", "import math\nassert f() == math.inf"),
        ("import math\ndef f(): return 2.0", "assert math.isclose(f(), 2.0)"),
        ("def f(g, x): return g(g(x))", "assert f(lambda v: v * 3, 2) == 18"),
        (
            "def f(key, xs): return sorted(xs, key=key)",
            "assert f(lambda v: -v, [1, 3, 2]) == [3, 2, 1]",
        ),
        (
            "def f(xs, kind): return [x for x in xs if type(x) is kind]",
            "assert f([1, 'a'], int) == [1]",
        ),
        (
            "class Stack:\n    def __init__(self): self.xs = []\n    def push(self, x): self.xs.append(x)\n"
            "    def pop(self): return self.xs.pop()\n    def __len__(self): return len(self.xs)",
            "s = Stack()\ns.push(4)\nassert len(s) == 1\nassert s.pop() == 4",
        ),
        (
            "class Node:\n    def __init__(self, v): self.v, self.next = v, None\n"
            "def total(n): return n.v + (total(n.next) if n.next else 0)",
            "a = Node(1)\na.next = Node(2)\nassert total(a) == 3",
        ),
        (
            "def f(x):\n    if x < 0: raise ValueError('negative')",
            "try:\n    f(-1)\nexcept ValueError as e:\n    assert str(e) == 'negative'\n"
            "else:\n    assert False",
        ),
        ("def f(*, a, b=2): return a - b", "assert f(a=5) == 3"),
        (
            "import collections\nPoint = collections.namedtuple('Point', 'x y')\ndef f(): return Point(1, 2)",
            "assert f() == (1, 2)",
        ),
        ("def f(s): return s[::-1]", "assert f('h\\ud800\\u00e9') == '\\u00e9\\ud800h'"),
        ("LIMIT = 7", "assert LIMIT == 7"),
        (
            "from functools import cache\n@cache\ndef f(n): return n if n < 2 else f(n-1) + f(n-2)",
            "assert f(80) == 23416728348467685",
        ),
    ],
)
def test_ordinary_python_is_judged_as_python_would(program: str, test: str) -> None:
    report = report_asserts(program, test, limits=QUICK)

    assert report.score.success, report


def test_an_argument_is_changed_only_by_a_function_that_returns_nothing() -> None:
    # Otherwise a program could empty the list from which the test computes what is right.
    cheat = "def f(x):\n    x.clear()\n    return []"

    assert not verify_asserts(cheat, "x = [2, 1]\nassert f(x) == sorted(x)", limits=QUICK).success


def test_names_of_the_setup_are_not_the_programs() -> None:
    setup = "def poly(x): return x * x - 4\ndef find_zero(): ..."
    test = "assert abs(poly(find_zero())) < 1e-6"
    cheat = "def poly(x): return 0\ndef find_zero(): return 1.0"
    right = "def find_zero(): return 2.0"

    for program, success in ((cheat, False), (right, True)):
        score = verify_asserts(program, test, setup=setup, entry_points=["find_zero"], limits=QUICK)
        assert score.success is success


def test_an_entry_point_may_be_called_like_a_builtin() -> None:
    program = "def sum(a, b): return a + b"

    assert verify_asserts(
        program, "assert sum(2, 3) == 5", entry_points=["sum"], limits=QUICK
    ).success
    assert not verify_asserts(program, "assert sum(2, 3) == 5", limits=QUICK).success


def test_the_end_of_the_program_is_no_exception_that_a_test_can_swallow() -> None:
    test = "try:\n    f()\nexcept Exception:\n    pass"

    assert not verify_asserts("import os\ndef f(): os._exit(0)", test, limits=QUICK).success


def test_the_share_of_passed_tests_is_given_on_request() -> None:
    program = "def add(a, b): return 5"
    whole = verify_asserts(program, TESTS, limits=QUICK)
    part = verify_asserts(program, TESTS, limits=QUICK, partial=True)

    assert (whole.value, part.value) == (0.0, pytest.approx(1 / 3))
    assert not whole.success
    assert not part.success
    assert part.components["passed"] == pytest.approx(1 / 3)


def test_a_failure_is_told() -> None:
    report = report_asserts(
        "def add(a, b): return a + b",
        ["assert add(1, 1) == 2", "assert add(1, 1) == 3, 'three'"],
        limits=QUICK,
    )

    assert report.first_failure == 1
    assert report.message == "AssertionError: three"


def test_a_program_that_does_not_load_is_told_with_its_last_line() -> None:
    assert "ZeroDivisionError" in report_asserts("1 / 0", TESTS, limits=QUICK).message


@pytest.mark.parametrize(
    ("setup", "test"),
    [
        ("1 / 0", "assert f() == 1"),
        ("", "class A: pass\nassert f(A()) == 1"),
        ("", "assert f(exec) == 1"),
    ],
)
def test_tests_that_cannot_be_run_say_nothing_of_the_program(setup: str, test: str) -> None:
    score = verify_asserts("def f(*a): return 1", test, setup=setup, limits=QUICK)

    assert math.isnan(score.value)
    assert not score.success


def test_what_the_tests_print_does_not_matter() -> None:
    test = "print('x' * 100_000, end='')\nassert f() == 1\nprint('{')"

    assert verify_asserts("def f(): return 1", test, limits=QUICK).success


def test_a_timeout_is_a_failure_that_is_counted() -> None:
    score = verify_asserts("def f():\n    while True: pass", "f()", limits=QUICK)

    assert score.value == 0.0
    assert score.components["timed_out"] == 1.0


@pytest.mark.parametrize("tests", ["", [], ["", " "]])
def test_no_test_at_all_is_a_mistake(tests: str | list[str]) -> None:
    with pytest.raises(UsageError, match="at least one"):
        verify_asserts("def f(): pass", tests)


CASES = [Case("1 2\n", "3\n"), Case("10 -4\n", "6\n")]
SUM = "a, b = map(int, input().split())\nprint(a + b)"


@pytest.mark.parametrize(
    ("program", "success"),
    [
        (SUM, True),
        (SUM + "\nimport sys; sys.exit(0)", True),
        ("print(3)", False),
        ("print('PASS')", False),
        (SUM + "\nimport sys; sys.exit(1)", False),
        (SUM + "\nprint()\nprint('  ')", True),
        (SUM + "\nprint('more')", False),
        ("print('3\\n6')", False),
        ("", False),
        ("import os; os._exit(0)", False),
        ("while True: pass", False),
        ("while True: print(3)", False),
    ],
)
def test_printed_output_is_compared_outside(program: str, success: bool) -> None:
    limits = Limits(wall_s=10.0, cpu_s=1.0, memory_mb=256, output_bytes=10_000)

    assert verify_stdio(program, CASES, limits=limits).success is success


@pytest.mark.parametrize(
    ("answer", "right", "same"),
    [
        ("0.3333333333", "0.33333333333", True),
        ("0.34", "0.33", False),
        ("1e-12", "0.0", True),
        ("3.0", "3", False),
        ("nan", "1.0", False),
        ("1.0", "one.", False),
    ],
)
def test_numbers_with_a_point_may_differ_by_rounding(answer: str, right: str, same: bool) -> None:
    report = report_stdio(f"print({answer!r})", [Case("", right)], limits=QUICK)

    assert report.score.success is same


def test_a_share_of_cases() -> None:
    score = verify_stdio("print(3)", CASES, limits=QUICK, partial=True)

    assert (score.value, score.success) == (0.5, False)


@pytest.mark.parametrize(
    ("completion", "program"),
    [
        ("x = 1", "x = 1"),
        ("So:\n```python\nx = 1\n```\nDone.", "x = 1\n"),
        ("```\nx = 1\n```", "x = 1\n"),
        ("```python\nx = 1\n```\nbetter:\n```py\nx = 2\n```", "x = 2\n"),
        ("```python\nx = 1\n```\n```bash\nls\n```", "x = 1\n"),
        ("```python\nx = 1", "x = 1"),
        ("```python\n```", "```python\n```"),
        ("", ""),
    ],
)
def test_the_program_is_the_last_python_block(completion: str, program: str) -> None:
    assert extract_program(completion) == program


def test_many_are_graded_in_their_order() -> None:
    programs = [f"def add(a, b): return a + b + {n}" for n in (0, 1, 0, 2)]
    scores = verify_many(lambda program: verify_asserts(program, TESTS, limits=QUICK), programs)

    assert [score.success for score in scores] == [True, False, True, False]


def test_without_a_sandbox_nothing_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    from grpo_gym.sandbox import backends

    monkeypatch.setattr(backends, "SAFE", ())
    backends.chosen.cache_clear()
    try:
        with pytest.raises(SandboxError, match="install"):
            verify_asserts("def f(): return 1", "assert f() == 1")
        with pytest.raises(SandboxError):
            run("print(1)")
        with pytest.raises(SandboxError):
            judge("", ["1"])
    finally:
        backends.chosen.cache_clear()
