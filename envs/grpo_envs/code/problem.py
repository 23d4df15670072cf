"""What a program is tested by, how it is graded, and what may be told of a failure."""

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass

from grpo_envs.code.completion import after
from grpo_gym.sandbox import Limits
from grpo_gym.verifiers.code import Case, CodeReport, report_asserts, report_stdio

NO_DETAIL = "AssertionError"
LONGEST_DETAIL = 400
_ADDRESS = re.compile(r" at 0x[0-9a-f]+>")


@dataclass(frozen=True)
class Problem:
    """The tests of a program: `tests`, or else `cases`.

    Attributes:
        tests: pieces of Python source, each of which passes if it raises nothing.
        cases: inputs and right outputs of a whole program.
        setup: source to run before the tests; its names are the tests' own.
        entry_points: names that the tests take from the program in any case.
        before: source that is put before every program.
        after: source that is put after every program.
        solution: source of a program that passes; "" if none is known.
        public: how many tests, from the first on, the model may see.
    """

    tests: tuple[str, ...] = ()
    cases: tuple[Case, ...] = ()
    setup: str = ""
    entry_points: tuple[str, ...] = ()
    before: str = ""
    after: str = ""
    solution: str = ""
    public: int = 0


@dataclass(frozen=True)
class Grader:
    """How programs are run; see `grpo_gym.verifiers.code` for the fields."""

    limits: Limits
    partial: bool = False
    backend: str = "auto"
    paths: tuple[str, ...] = ()

    def report(self, problem: Problem, program: str) -> CodeReport:
        """The score of a program, and its first failure.

        Raises:
            SandboxError: Programs cannot be confined here; none was run.
        """
        source = f"{after(problem.before, program)}\n{problem.after}"
        if problem.tests:
            return report_asserts(
                source,
                [telling(test) for test in problem.tests],
                setup=problem.setup,
                entry_points=problem.entry_points,
                limits=self.limits,
                partial=self.partial,
                backend=self.backend,
                paths=self.paths,
            )
        return report_stdio(
            source,
            problem.cases,
            limits=self.limits,
            partial=self.partial,
            backend=self.backend,
            paths=self.paths,
        )


def telling(test: str) -> str:
    """The test, with an assertion `a == b` made to say what `a` was.

    Anything else stays as it is, as does an assertion that has a message of its own.
    """
    try:
        body = ast.parse(test).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return test  # the sandbox says what is wrong with it
    match body:
        case [
            ast.Assert(test=ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]), msg=None)
        ]:
            value = "_got_value"
            return (
                f"{value} = {ast.unparse(left)}\n"
                f"assert {value} == ({ast.unparse(right)}), 'got ' + repr({value})[:200]"
            )
    return test


def feedback(problem: Problem, report: CodeReport) -> str:
    """What the model is told of a program that failed.

    Of the first failing test the source (or input and output) and the message, if it is a public one;
    of the others only that one failed.
    """
    number = report.first_failure
    if number is None:
        return f"The program cannot be tested: {report.message[:LONGEST_DETAIL]}"
    if number >= problem.public:
        known = "The tests that you know pass, but a" if problem.public else "A"
        return f"{known} hidden test fails. Think of other inputs, and write the program again."
    if problem.tests:
        what = f"This test fails:\n{problem.tests[number]}"
    else:
        case = problem.cases[number]
        what = f"This test fails:\ninput:\n{case.stdin}\nright output:\n{case.stdout}"
    # Where an object lies differs from run to run, and the model has no use for it.
    message = _ADDRESS.sub(" at 0x...>", report.message)
    detail = message.removeprefix("AssertionError: ")[:LONGEST_DETAIL]
    return f"{what}\n{detail}".rstrip() if detail != NO_DETAIL else what


def fenced(source: str) -> str:
    """A program as a fenced block."""
    return f"```python\n{source.strip()}\n```"


def names_under_test(source: str, tests: Iterable[str]) -> tuple[str, ...]:
    """The functions and classes that a program defines and its tests name, in order of definition."""
    defined = re.findall(r"^(?:async +def|def|class) +(\w+)", source, re.MULTILINE)
    text = "\n".join(tests)
    return tuple(name for name in dict.fromkeys(defined) if re.search(rf"\b{name}\b", text))
