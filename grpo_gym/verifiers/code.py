"""Verifiers of programs: by assertions on their functions, or by what they print for given input.

The comparisons happen outside the program's process, see `docs/sandbox.md`: what the program prints, how it
exits, and what it does to its own interpreter cannot make a verdict.
"""

import math
import os
import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from grpo_gym.errors import UsageError
from grpo_gym.rewards import Score
from grpo_gym.sandbox import Limits, Verdict, judge, run

FENCE = re.compile(r"```[ \t]*([\w+-]*)[ \t]*\r?\n(.*?)(?:```|\Z)", re.DOTALL)
PYTHON = ("python", "py", "python3", "")
TOLERANCE = 1e-9

Item = TypeVar("Item")
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Case:
    """Input of a program and the output that is right."""

    stdin: str
    stdout: str


@dataclass(frozen=True)
class CodeReport:
    """A score and, for whoever shows it to the model, what went wrong first.

    Attributes:
        score: value 1.0 or 0.0, or the share of passed tests where that was asked for; nan if nothing can be
            said of the program. `components` has "correct", "passed" (share) and "timed_out".
        message: what the first failing test said; "" on success.
        first_failure: index of that test; None on success, or if no test was reached.
    """

    score: Score
    message: str
    first_failure: int | None


def extract_program(completion: str) -> str:
    """The program in a completion: its last fenced Python block that is not empty, or else all of it."""
    blocks = [body for language, body in FENCE.findall(completion) if language.lower() in PYTHON]
    full = [block for block in blocks if block.strip()]
    return full[-1] if full else completion


def verify_asserts(
    program: str,
    tests: str | Sequence[str],
    *,
    setup: str = "",
    entry_points: Sequence[str] = (),
    limits: Limits | None = None,
    partial: bool = False,
    backend: str = "auto",
    paths: Sequence[str] = (),
) -> Score:
    """Whether tests hold of a program's functions.

    Args:
        program: Python source; see `extract_program` for taking it out of a completion.
        tests: one piece of Python source or several, each of which passes if it raises nothing.
        setup: source to run before the tests; the names that it defines are not the program's.
        entry_points: names that are the program's even where `setup` or the builtins have them too.
        limits: what program and tests may use.
        partial: give the share of passed tests as the value. Success is all of them in any case.
        backend: of the sandbox.
        paths: folders that both may import from.

    Returns:
        A score with components "correct", "passed" and "timed_out"; its value is nan if the tests' own
        setup fails.

    Raises:
        SandboxError: No back end confines programs on this machine; none was run.
        UsageError: There is no test.
    """
    return report_asserts(
        program,
        tests,
        setup=setup,
        entry_points=entry_points,
        limits=limits,
        partial=partial,
        backend=backend,
        paths=paths,
    ).score


def report_asserts(
    program: str,
    tests: str | Sequence[str],
    *,
    setup: str = "",
    entry_points: Sequence[str] = (),
    limits: Limits | None = None,
    partial: bool = False,
    backend: str = "auto",
    paths: Sequence[str] = (),
) -> CodeReport:
    """As `verify_asserts`, with the first failure told."""
    pieces = [tests] if isinstance(tests, str) else list(tests)
    if not any(piece.strip() for piece in pieces):
        raise UsageError("tests: there must be at least one test that is not empty")
    verdict = judge(
        program,
        pieces,
        setup=setup,
        entry_points=entry_points,
        limits=limits,
        backend=backend,
        paths=paths,
    )
    return CodeReport(score_of(verdict, partial), verdict.message, verdict.first_failure)


def score_of(verdict: Verdict, partial: bool) -> Score:
    """The score that a verdict means."""
    share = sum(verdict.passed) / len(verdict.passed)
    timed_out = verdict.program.status == "timeout"
    if not verdict.usable:
        return make_score(math.nan, 0.0, False)
    if not verdict.success:
        share = min(share, 1 - 1 / len(verdict.passed))
    return make_score(share if partial else float(verdict.success), share, timed_out)


def make_score(value: float, share: float, timed_out: bool) -> Score:
    """A score with the components of this module."""
    solved = share == 1.0 and value == 1.0
    parts = {"correct": float(solved), "passed": share, "timed_out": float(timed_out)}
    return Score(value, solved, parts)


def verify_stdio(
    program: str,
    cases: Sequence[Case],
    *,
    limits: Limits | None = None,
    partial: bool = False,
    tolerance: float = TOLERANCE,
    backend: str = "auto",
    paths: Sequence[str] = (),
) -> Score:
    """Whether a program prints what it should for every input.

    Lines and words are compared, so that spacing at ends of lines and empty lines at the end do not
    matter; a word with a decimal point or exponent is right within `tolerance`, relative or absolute.

    Args:
        program: Python source.
        cases: inputs and right outputs. Each is a process of its own, with the limits of its own.
        limits: what one process may use.
        partial: run every case, and give the share of passed ones as the value. Otherwise the first
            failure ends it.
        tolerance: of numbers that are not whole.
        backend: of the sandbox.
        paths: folders that the program may import from.

    Returns:
        A score as from `verify_asserts`; nan if the sandbox lost the program.

    Raises:
        SandboxError: No back end confines programs on this machine; none was run.
        UsageError: There is no case.
    """
    return report_stdio(
        program,
        cases,
        limits=limits,
        partial=partial,
        tolerance=tolerance,
        backend=backend,
        paths=paths,
    ).score


def report_stdio(
    program: str,
    cases: Sequence[Case],
    *,
    limits: Limits | None = None,
    partial: bool = False,
    tolerance: float = TOLERANCE,
    backend: str = "auto",
    paths: Sequence[str] = (),
) -> CodeReport:
    """As `verify_stdio`, with the first failure told."""
    if not cases:
        raise UsageError("cases: there must be at least one")
    passed, message, failure, timed_out = 0, "", None, False
    for number, case in enumerate(cases):
        result = run(program, stdin=case.stdin, limits=limits, backend=backend, paths=paths)
        if result.status == "lost":
            return CodeReport(make_score(math.nan, 0.0, False), "the program was lost", number)
        if result.ok and same_output(result.stdout, case.stdout, tolerance):
            passed += 1
            continue
        timed_out |= result.status == "timeout"
        if failure is None:
            failure = number
            last = result.stderr.rstrip().rsplit("\n", 1)[-1][:400]
            message = "wrong output" if result.ok else last or f"the program ended: {result.status}"
        if not partial:
            break
    share = passed / len(cases)
    score = make_score(share if partial else float(share == 1), share, timed_out)
    return CodeReport(score, message, failure)


def same_output(answer: str, right: str, tolerance: float) -> bool:
    """Whether two outputs have the same words in the same lines."""
    got, wanted = lines_of(answer), lines_of(right)
    return len(got) == len(wanted) and all(
        len(a) == len(b) and all(same_word(x, y, tolerance) for x, y in zip(a, b, strict=True))
        for a, b in zip(got, wanted, strict=True)
    )


def lines_of(text: str) -> list[list[str]]:
    """The words of each line, without empty lines at the end."""
    return [line.split() for line in text.rstrip().splitlines()]


def same_word(answer: str, right: str, tolerance: float) -> bool:
    """Whether two words are equal, or numbers that differ by rounding only."""
    if answer == right:
        return True
    if not re.search(r"[.eE]", right):
        return False
    try:
        a, b = float(answer), float(right)
    except ValueError:
        return False
    return math.isclose(a, b, rel_tol=tolerance, abs_tol=tolerance)


def verify_many(
    verify: Callable[[Item], Answer], items: Iterable[Item], *, workers: int | None = None
) -> list[Answer]:
    """The answers to many items, several at a time; the work is done in other processes.

    Args:
        verify: grades one item, for example `lambda program: verify_asserts(program, tests)`.
        items: what to grade.
        workers: how many at a time; as many as processors by default.
    """
    with ThreadPoolExecutor(workers or os.cpu_count() or 1) as pool:
        return list(pool.map(verify, items))
