"""Processes that run programs: one that is warm and forks, or a fresh one for every run."""

import atexit
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Protocol

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
    """Send on `target`, receive from `source`; raises UsageError if a message is too large."""
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
    except (wire.Closed, OSError):
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


class Warm:
    """A server process that forks for every run. It is started by the first one, and ends with this process.

    Args:
        confinement: see `inside.serve.prepare`.
        paths: folders that programs may import from.
    """

    def __init__(self, confinement: str, paths: Sequence[str] = ()) -> None:
        self.confinement = confinement
        self.paths = tuple(paths)
        self.lock = threading.Lock()
        self.owner = 0
        self.process: subprocess.Popen[bytes] | None = None
        self.control: socket.socket | None = None
        self.folder: Path | None = None
        self.notes: IO[bytes] | None = None

    def exchange(self, messages: Sequence[Any], wall_s: float) -> dict[str, Any] | None:
        """See `Server`. Raises SandboxError if the server cannot be started."""
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                self.hand_over(theirs)
            # A timeout would make the descriptor non-blocking; this one is the kernel's.
            seconds = int(wall_s + GRACE_S)
            ours.setsockopt(
                socket.SOL_SOCKET, socket.SO_RCVTIMEO, seconds.to_bytes(8, sys.byteorder) + bytes(8)
            )
            return talk(ours.fileno(), ours.fileno(), messages)

    def hand_over(self, theirs: socket.socket) -> None:
        """Give the server one end of a connection; start it, or start it again, if need be."""
        with self.lock:
            for attempt in range(2):
                if self.owner != os.getpid() or self.process is None:
                    self.start()
                assert self.control
                try:
                    socket.send_fds(self.control, [b"r"], [theirs.fileno()])
                    return
                except OSError as error:
                    notes = self.stop()
                    if attempt:
                        raise SandboxError(f"the sandbox's server ended: {notes}") from error

    def start(self) -> None:
        """Start the server process and wait until it is ready."""
        self.owner = os.getpid()
        self.folder = Path(tempfile.mkdtemp(prefix=f"sandbox-{secrets.token_hex(4)}-")).resolve()
        self.folder.chmod(0o711)
        self.notes = tempfile.TemporaryFile()  # noqa: SIM115 (closed by stop)
        self.control, theirs = socket.socketpair()
        argv = command(
            base_python(), home(), "many", str(self.folder), self.confinement, self.paths
        )
        with theirs:
            self.process = subprocess.Popen(
                argv,
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=self.notes,
                env={
                    **ENVIRONMENT,
                    "LD_BIND_NOW": "1",
                },  # look functions up once, not after each fork
                cwd="/",
                start_new_session=True,
            )
        if self.control.recv(1) != b"+":
            notes = self.stop()
            raise SandboxError(f"the sandbox's server did not start: {notes}")
        atexit.register(self.stop)

    def stop(self) -> str:
        """End the server and the runs that are under way; the last line that it wrote on stderr."""
        last = ""
        if (
            self.owner == os.getpid()
            and self.process
            and self.control
            and self.notes
            and self.folder
        ):
            self.control.close()
            self.process.wait()
            with self.notes:
                self.notes.seek(0)
                last = last_line(self.notes.read())
            scratch.remove_all(self.folder)  # where the server could not
        self.process = self.control = self.notes = self.folder = None
        atexit.unregister(self.stop)
        return last
