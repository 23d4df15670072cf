"""Run a program, or judge its functions by tests, in a sandbox."""

import os
import secrets
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from grpo_gym.errors import UsageError
from grpo_gym.sandbox.backends import backend as server_of
from grpo_gym.sandbox.errors import SandboxError
from grpo_gym.sandbox.limits import Limits, Result, Status
from grpo_gym.sandbox.verdict import Verdict, read_verdict

COUNT_EVERY_S = 1.0
SPARE_TASKS = 64


def run(
    program: str | Sequence[str],
    *,
    stdin: str = "",
    files: Mapping[str, str] | None = None,
    limits: Limits | None = None,
    backend: str = "auto",
    paths: Sequence[str] = (),
) -> Result:
    """Run an untrusted program; never raises for what it does.

    Args:
        program: the source of a Python program, or the words of a command.
        stdin: what it reads.
        files: texts by relative name, to be found in its folder, which is otherwise empty and is removed
            afterwards.
        limits: what it may use.
        backend: see `grpo_gym.sandbox.backend`.
        paths: folders that a Python program may import from; without them it has the standard library.

    Returns:
        What became of it.

    Raises:
        SandboxError: It could not be confined, and was not run.
        UsageError: An argument is wrong.
    """
    limits = limits or Limits()
    request = make_request(program, stdin, files or {}, limits, judged=False)
    return as_result(exchange([request], limits, backend, paths), limits.cpu_s)


def judge(
    program: str,
    tests: Sequence[str],
    *,
    setup: str = "",
    entry_points: Sequence[str] = (),
    limits: Limits | None = None,
    backend: str = "auto",
    paths: Sequence[str] = (),
) -> Verdict:
    """Run tests against the functions of an untrusted program.

    The program and the tests run in two processes. A call's arguments and result cross as data, and the
    tests compare builtin values that the program cannot have tampered with; see `docs/sandbox.md`.

    Args:
        program: Python source that defines what the tests use.
        tests: pieces of Python source, each of which passes if it raises nothing.
        setup: source to run before the tests; its names are the tests' own, and not the program's.
        entry_points: names that are the program's even where `setup` or the builtins have them too. A
            name that neither the tests, nor `setup`, nor the builtins know is looked up in the program.
        limits: what each of the two processes may use; the time is for both together.
        backend: see `grpo_gym.sandbox.backend`.
        paths: folders that both may import from.

    Raises:
        SandboxError: It could not be confined, and was not run.
        UsageError: An argument is wrong.
    """
    limits = limits or Limits()
    nonce = secrets.token_hex(16)
    request = make_request(program, "", {}, limits, judged=True)
    work = {
        "nonce": nonce,
        "setup": setup,
        "tests": list(tests),
        "entry_points": list(entry_points),
    }
    reply = exchange([request, work], limits, backend, paths)
    return read_verdict(reply, as_result(reply, limits.cpu_s), nonce, len(tests))


def make_request(
    program: str | Sequence[str],
    stdin: str,
    files: Mapping[str, str],
    limits: Limits,
    *,
    judged: bool,
) -> dict[str, Any]:
    """The message that starts a run; raises UsageError where it cannot be meant."""
    for name in files:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name:
            raise UsageError(f"files: {name!r} must be a relative path below the program's folder")
    source, argv = (program, []) if isinstance(program, str) else ("", list(program))
    if not source and not argv and not isinstance(program, str):
        raise UsageError("program: a command needs at least one word")
    return {
        "source": source,
        "argv": argv,
        "judged": judged,
        "stdin": stdin,
        "files": dict(files),
        "limits": {**vars(limits), "tasks_before": tasks_of_this_user()},
    }


def exchange(
    messages: Sequence[Any], limits: Limits, backend: str, paths: Sequence[str]
) -> dict[str, Any] | None:
    """The server's answer; None when the supervisor was lost."""
    folders = tuple(str(Path(path).resolve()) for path in paths)
    reply = server_of(backend, folders).exchange(messages, limits.wall_s)
    if reply is not None and "refused" in reply:
        raise SandboxError(f"the program was not run: {reply['refused']}")
    return reply


def as_result(reply: dict[str, Any] | None, cpu_s: float) -> Result:
    """A `Result` from the supervisor's answer."""
    if reply is None:
        return Result("lost")
    text = {
        name: str(reply.get(name, "")).encode("latin-1").decode("utf-8", "replace")
        for name in ("stdout", "stderr")
    }
    status, code = outcome(reply["ended"], int(reply["status"]), text["stderr"])
    if code == -signal.SIGKILL and reply["cpu_s"] >= cpu_s:
        status, code = "timeout", None  # it held out past the first warning
    return Result(status, code, **text, seconds=reply["seconds"], cpu_s=reply["cpu_s"])


def outcome(ended: str | None, wait_status: int, stderr: str) -> tuple[Status, int | None]:
    """The status and the exit code."""
    if ended in ("timeout", "output", "disk"):
        return ended, None  # type: ignore[return-value]
    code = os.waitstatus_to_exitcode(wait_status)
    if ended == "done" and (code >= 0 or code == -signal.SIGKILL):
        return "ok", None
    # Its judge may hear of a program's death before the supervisor does: "done" is no proof of life.
    if ended not in (None, "done"):
        return "lost", None
    if code == -signal.SIGXCPU:
        return "timeout", None
    if code < 0:
        return "signal", code
    last = stderr.rstrip().rsplit("\n", 1)[-1]
    if code == 1 and last.split(":")[0] == "MemoryError":
        return "memory", code
    return ("exit" if code else "ok"), code


@dataclass
class TaskCount:
    """How many tasks this user had, and when they were counted."""

    count: int = 0
    at: float = -COUNT_EVERY_S


counted = TaskCount()


def tasks_of_this_user() -> int:
    """Tasks that RLIMIT_NPROC counts already: none where every run has a user of its own."""
    if os.geteuid() == 0:
        return 0
    now = time.monotonic()
    if now - counted.at >= COUNT_EVERY_S:
        counted.count, counted.at = count_tasks(os.geteuid()) + SPARE_TASKS, now
    return counted.count


def count_tasks(uid: int) -> int:
    """Processes and threads of a user, from /proc."""
    total = 0
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and entry.stat().st_uid == uid:
                total += (entry / "task").stat().st_nlink - 2
        except OSError:
            continue  # it has ended
    return total
