"""What the tests said of a program."""

import json
from dataclasses import dataclass
from typing import Any

from grpo_gym.sandbox.limits import Result


@dataclass(frozen=True)
class Verdict:
    """The outcome of tests.

    Attributes:
        success: every test passed, there was at least one, and the program answered to the end.
        passed: for each test, whether it passed; a test that was not reached did not.
        message: what the first failing test raised, or why the tests did not end; "" on success.
        first_failure: index of the first test that failed; None on success, or if none was run.
        usable: False where this says nothing about the program: the tests' own setup failed, a test would
            hand over what is no data, or the supervisor was lost.
        program: what became of the program's process, with its output.
    """

    success: bool
    passed: tuple[bool, ...]
    message: str
    first_failure: int | None
    usable: bool
    program: Result


def read_verdict(reply: dict[str, Any] | None, program: Result, nonce: str, count: int) -> Verdict:
    """The verdict from the lines that the tests' process wrote; lines without the nonce count for nothing."""
    lines = list(signed_lines("" if reply is None else str(reply.get("verdict", "")), nonce))
    passed = [False] * count
    message = ""
    for line in lines:
        number = line.get("test")
        if isinstance(number, int) and 0 <= number < count:
            passed[number] = line.get("passed") is True
        if line.get("passed") is False and not message:
            message = str(line.get("message", "")) or ending(program)
    done = bool(lines) and lines[-1].get("done") is True
    unusable = program.status == "lost" or any(line.get("unusable") for line in lines)
    if not done and not message:
        message = ending(program)
    unfit = str(lines[-1].get("unfit", "")) if lines else ""
    if unfit:
        unusable, message = True, unfit
    success = done and not unfit and all(passed) and count > 0
    failure = passed.index(False) if not all(passed) else None
    return Verdict(success, tuple(passed), message, failure, not unusable, program)


def signed_lines(text: str, nonce: str) -> list[dict[str, Any]]:
    """The JSON objects, one a line, that carry the nonce."""
    found = []
    for line in text.splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and row.get("nonce") == nonce:
            found.append(row)
    return found


def ending(program: Result) -> str:
    """Why the tests did not come to their end."""
    if program.status in ("timeout", "output", "disk", "memory"):
        return f"the program hit a limit: {program.status}"
    last = program.stderr.rstrip().rsplit("\n", 1)[-1]
    return last[:400] or "the program ended before the tests did"
