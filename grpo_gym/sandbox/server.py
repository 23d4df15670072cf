"""Processes that run programs: how they are started and spoken to, and a fresh one for every run."""

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from grpo_gym.errors import UsageError
from grpo_gym.sandbox.errors import SandboxError
from grpo_gym.sandbox.inside import scratch, wire

BOOT = "import sys; sys.path.insert(0, {home!r}); from inside.serve import main; del sys.path[0]; main()"
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}
GRACE_S = 30.0
"""Seconds over the program's own deadline after which a server that does not answer is given up."""


class Server(Protocol):
    """Something that takes the messages of one run and gives its answer."""

    def exchange(self, messages: Sequence[Any], wall_s: float) -> dict[str, Any] | None:
        """Send the messages, wait for the answer; None when it was lost."""
        ...


def command(
    python: str, home: str, mode: str, parent: str, confinement: str, paths: Sequence[str]
) -> list[str]:
    """The command line of a server.

    Args:
        python: the interpreter.
        home: the folder that holds `inside`.
        mode: "many" or "once".
        parent: folder for the runs' folders.
        confinement: see `inside.serve.prepare`.
        paths: folders that programs may import from.
    """
    boot = BOOT.format(home=home)
    flags = ["-s", "-S", "-P", "-B", "-X", "utf8"]
    return [python, *flags, "-c", boot, mode, parent, confinement, *paths]


def base_python() -> str:
    """The interpreter itself, not a virtual environment's link to it."""
    return os.path.realpath(sys.executable)


def home() -> str:
    """The folder that holds `inside`."""
    return str(Path(__file__).parent.resolve())


def talk(source: int, target: int, messages: Sequence[Any]) -> dict[str, Any] | None:
    """Send on `target`, receive from `source`; None if the other side has closed.

    Raises:
        UsageError: A message is too large.
        BlockingIOError: There was no answer for as long as the descriptor waits.
    """
    try:
        for message in messages:
            wire.send(target, message)
    except wire.TooLarge:
        raise UsageError(
            "program, tests and input of a run must not exceed 64 MiB together"
        ) from None
    except wire.Closed:
        pass  # the answer may say why
    try:
        answer = wire.receive(source)
    except wire.Closed:
        return None
    return answer if isinstance(answer, dict) else None


class Fresh:
    """A new process for every run.

    Args:
        argv: gives its command line, for the path of an empty folder that only this run has. Messages
            go to its stdin, the answer comes from its stdout.
        own_environment: whether the process gets this one's environment, which it must not hand on.
    """

    def __init__(self, argv: Callable[[str], list[str]], *, own_environment: bool = False) -> None:
        self.argv = argv
        self.environment = None if own_environment else ENVIRONMENT

    def exchange(self, messages: Sequence[Any], wall_s: float) -> dict[str, Any] | None:
        """See `Server`. Raises SandboxError if the process cannot be started."""
        folder = Path(tempfile.mkdtemp(prefix="sandbox-")).resolve()
        folder.chmod(0o711)
        try:
            return self.exchange_in(str(folder), messages, wall_s)
        finally:
            scratch.remove_all(folder)

    def exchange_in(
        self, folder: str, messages: Sequence[Any], wall_s: float
    ) -> dict[str, Any] | None:
        """One run that may write in `folder`."""
        argv = self.argv(folder)
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self.environment,
                start_new_session=True,
            )
        except OSError as error:
            raise SandboxError(f"cannot start {argv[0]}: {error.strerror}") from error
        assert process.stdin
        assert process.stdout
        assert process.stderr
        timer = threading.Timer(wall_s + GRACE_S, process.kill)
        timer.start()
        with process.stdin, process.stdout, process.stderr:
            answer = talk(process.stdout.fileno(), process.stdin.fileno(), messages)
            with suppress(OSError):
                process.stdin.close()
            notes = b"" if answer else process.stderr.read(2000)
            process.wait()
        timer.cancel()
        if answer is None and process.returncode not in (0, -9):
            return {"refused": last_line(notes) or f"it ended with status {process.returncode}"}
        return answer


def last_line(notes: bytes) -> str:
    """The last line that is not empty."""
    lines = notes.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""
