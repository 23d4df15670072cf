"""A process that is warm, and forks for every run."""

import atexit
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from grpo_gym.sandbox.errors import SandboxError
from grpo_gym.sandbox.inside import scratch
from grpo_gym.sandbox.server import (
    ENVIRONMENT,
    GRACE_S,
    base_python,
    command,
    home,
    last_line,
    talk,
)


def wait_at_most(connection: socket.socket, seconds: int) -> None:
    """Let sending and receiving fail with BlockingIOError after this time.

    The kernel's own timeout; that of Python's sockets would make the descriptor non-blocking.
    """
    value = seconds.to_bytes(8, sys.byteorder) + bytes(8)
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        connection.setsockopt(socket.SOL_SOCKET, option, value)


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
                server = self.hand_over(theirs)
            wait_at_most(ours, int(wall_s + GRACE_S))
            try:
                return talk(ours.fileno(), ours.fileno(), messages)
            except BlockingIOError:
                self.kill(server)
                return None

    def kill(self, server: subprocess.Popen[bytes]) -> None:
        """End a server that does not answer, with all its runs; the next run starts another."""
        with self.lock:
            if self.owner == os.getpid() and server is self.process:
                os.killpg(server.pid, signal.SIGKILL)
                self.stop()

    def hand_over(self, theirs: socket.socket) -> subprocess.Popen[bytes]:
        """Give the server one end of a connection; start it, or start it again, if need be."""
        with self.lock:
            for attempt in range(2):
                if self.owner != os.getpid() or self.process is None:
                    self.start()
                assert self.control
                assert self.process
                try:
                    socket.send_fds(self.control, [b"r"], [theirs.fileno()])
                    return self.process
                except OSError as error:
                    notes = self.stop()
                    if attempt:
                        raise SandboxError(f"the sandbox's server ended: {notes}") from error
            raise AssertionError("the second attempt returns or raises")

    def start(self) -> None:
        """Start the server process and wait until it is ready."""
        self.owner = os.getpid()
        self.folder = Path(tempfile.mkdtemp(prefix=f"sandbox-{secrets.token_hex(4)}-")).resolve()
        self.folder.chmod(0o711)
        self.notes = tempfile.TemporaryFile()  # noqa: SIM115 (closed by stop)
        self.control, theirs = socket.socketpair()
        wait_at_most(self.control, int(GRACE_S))
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
        try:
            started = self.control.recv(1) == b"+"
        except BlockingIOError:
            started = False
        if not started:
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
            try:
                self.process.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
            with self.notes:
                self.notes.seek(0)
                last = last_line(self.notes.read())
            scratch.remove_all(self.folder)  # where the server could not
        self.process = self.control = self.notes = self.folder = None
        atexit.unregister(self.stop)
        return last
