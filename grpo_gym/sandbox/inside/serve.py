"""The server: a small interpreter that forks a supervisor for every run.

It hands descriptors on and never reads a request, so that no run finds another's program or tests in its
memory. Started as `python -s -S -P -c "..." MODE PARENT CONFINEMENT PATH...`, see `grpo_gym.sandbox.start`.
"""

import array
import gc
import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

from . import identity, landlock, roots, scratch, seccomp, supervisor
from .confine import ENVIRONMENT, Host, hide

COMMON = (
    "bisect collections dataclasses decimal enum fractions functools heapq itertools json math operator "
    "random re statistics string typing"
)
"""Modules that programs often import: loaded once, before any run."""


def prepare(parent: Path, confinement: str, paths: list[Path]) -> Host:
    """Find out what this kernel and this user can do, and confine the server's reach on files.

    Args:
        parent: folder in which the runs' folders are made.
        confinement: "landlock": it is this process's to confine, and both Landlock and seccomp must be
            there; "outer": something outside confines already, and what is there is added; "namespace":
            that, and all processes inside end when this one does; "none": limits alone.
        paths: folders to import from.

    Raises:
        OSError: Something that is needed is missing.
    """
    sys.path[:0] = map(str, paths)
    abi = landlock.abi() if confinement != "none" else 0
    if confinement == "landlock":
        if not abi:
            raise OSError("the kernel offers no Landlock")
        if not seccomp.supported():
            raise OSError(f"there is no table of system calls for {os.uname().machine}")
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(
            "800"
        )  # short of memory, end a run and not its caller
    alone = identity.alone_in_namespace()
    capabilities = 0
    if os.geteuid() == 0 and not alone:
        capabilities = identity.needed_to_read_python(paths)
    readable = tuple(landlock.open_rules(roots.coarse_rules(paths))) if abi else ()
    if abi:
        own = (parent, landlock.all_rights(abi))
        beside = (parent.parent, landlock.REMOVE_DIR)  # to remove `parent` itself in the end
        restrict_files(abi, [*roots.precise_rules(paths), own, beside])
    return Host(
        abi=abi,
        readable=readable,
        capabilities=capabilities,
        alone=alone,
        filters=filters() if confinement != "none" and seccomp.supported() else None,
        gathers=abi >= landlock.SIGNALS_SINCE or confinement in ("namespace", "none"),
    )


def restrict_files(abi: int, rules: list[tuple[Path, int]]) -> None:
    """Confine the server's own reach, and that of all that it starts, to these paths."""
    opened = landlock.closing(landlock.open_rules(rules))
    landlock.enforce(landlock.ruleset(abi, opened, signals=False))


def filters() -> tuple[bytes, bytes]:
    """The filters of system calls without and with forks, for where signals stay inside anyway."""
    return (
        seccomp.compiled(forks=False, signal_only=None),
        seccomp.compiled(forks=True, signal_only=None),
    )


def forget() -> None:
    """Take the modules of this package out of the programs' sight, and the server's environment."""
    for name in [name for name in sys.modules if name.split(".")[0] == "inside"]:
        del sys.modules[name]
    os.environ.clear()
    os.environ.update(ENVIRONMENT)


def receive_fd(control: socket.socket) -> int | None:
    """The descriptor that comes with the next message; None when the client has gone."""
    fds = array.array("i")
    message, ancillary, _, _ = control.recvmsg(1, socket.CMSG_SPACE(fds.itemsize))
    if not message:
        return None
    for _, kind, data in ancillary:
        if kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: fds.itemsize])
    return fds[0]


def serve(host: Host, control: socket.socket, parent: Path) -> None:
    """Fork a supervisor for every descriptor that comes, until the client has gone."""
    for name in COMMON.split():
        __import__(name)
    gc.freeze()  # what is loaded stays in shared pages
    control.sendall(b"+")
    while (fd := receive_fd(control)) is not None:
        if os.fork() == 0:
            control.close()
            try:
                supervisor.supervise(host, fd, fd, parent)
            finally:
                os._exit(0)
        os.close(fd)
        reap(os.WNOHANG)
    reap(0)  # the last supervisor has cleaned up then
    scratch.remove_all(parent)


def reap(options: int) -> None:
    """Wait for the supervisors that have ended, or with options 0 for all of them."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, options)[0]:
            pass


def main() -> None:
    """Serve runs on descriptor 0: many, or one whose answer goes to descriptor 1."""
    mode, parent, confinement, *paths = sys.argv[1:]
    source, target = os.dup(0), os.dup(1)
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    # Whatever the caller ignores would be ignored here, and by the programs, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGCHLD, signal.SIGXCPU, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    host = prepare(Path(parent), confinement, [Path(path) for path in paths])
    hide(host)
    forget()
    if mode == "many":
        serve(host, socket.socket(fileno=source), Path(parent))
    else:
        supervisor.supervise(host, source, target, Path(parent))
