"""The steps by which a process becomes the program: none may fail, and none can be taken back."""

import os
import resource
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import identity, kernel, landlock, seccomp

MEBIBYTE = 1 << 20
THREADS = 64
OPEN_FILES = 128
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}


@dataclass(frozen=True)
class Host:
    """What the server found when it started.

    Attributes:
        abi: version of Landlock; 0 for none, or where another back end confines.
        readable: what may be read, as Landlock's rules; open for as long as the server lives.
        capabilities: what the program keeps to be able to read Python.
        alone: whether no other user can be taken on.
        filters: filter of system calls without and with forks; None where none is put on. Where the kernel
            does not keep signals inside, each process has one of its own instead.
        gathers: whether every process of a run can be killed even if it lets its children loose.
    """

    abi: int
    readable: tuple[landlock.Rule, ...]
    capabilities: int
    alone: bool
    filters: tuple[bytes, bytes] | None
    gathers: bool

    @property
    def scoped(self) -> bool:
        """Whether the kernel keeps signals inside."""
        return self.abi >= landlock.SIGNALS_SINCE


def hide(host: Host) -> None:
    """Close this process's memory in /proc to others of the same user.

    Another sandbox around this one may forbid that. Then Landlock, which closes /proc, must be there.
    """
    try:
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    except PermissionError:
        if not host.abi:
            raise


def limit(kind: int, value: int) -> None:
    """Set a limit, within what is allowed already."""
    hard = resource.getrlimit(kind)[1]
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(kind, (value, value))


def set_limits(limits: dict[str, Any]) -> None:
    """The resource limits of one process of the program."""
    seconds = max(1, int(-(-float(limits["cpu_s"]) // 1)))
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    if hard == resource.RLIM_INFINITY or hard > seconds:
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    limit(resource.RLIMIT_CORE, 0)
    limit(resource.RLIMIT_FSIZE, limits["file_mb"] * MEBIBYTE)
    limit(resource.RLIMIT_NOFILE, OPEN_FILES)
    limit(resource.RLIMIT_NPROC, limits["tasks_before"] + limits["processes"] + THREADS)
    limit(resource.RLIMIT_AS, limits["memory_mb"] * MEBIBYTE)


def walls(host: Host, folder: Path | None) -> int | None:
    """Landlock's rules for one process, which may write in its folder alone; None where others confine.

    They are made before it is forked, where the paths are open already.

    Raises:
        OSError: The kernel refused, or the folder is gone.
    """
    if not host.abi:
        return None
    if folder is None:
        return landlock.ruleset(host.abi, host.readable, signals=True)
    own = os.open(folder, os.O_PATH | os.O_CLOEXEC)
    try:
        rules = (*host.readable, (own, landlock.write_rights(host.abi)))
        return landlock.ruleset(host.abi, rules, signals=True)
    finally:
        os.close(own)


def confine(
    host: Host, limits: dict[str, Any], folder: Path | None, uid: int, ruleset: int | None
) -> None:
    """Make this process, and all that it starts, unable to harm.

    Args:
        host: what is there to do it with.
        limits: see `grpo_gym.sandbox.Limits`.
        folder: of the program.
        uid: whom to become.
        ruleset: from `walls`; it is closed.

    Raises:
        OSError: A step was refused; the program must not run then.
    """
    if limits["processes"] > 1 and not host.gathers:
        raise OSError(
            "more than one process needs Linux 6.12 or bubblewrap, to be able to end them all"
        )
    if folder:
        os.environ["HOME"] = os.environ["TMPDIR"] = str(folder)
    os.umask(0o077)
    set_limits(limits)
    if ruleset is not None:
        landlock.enforce(ruleset)
    identity.drop(uid, host.capabilities)
    kernel.prctl(kernel.PR_SET_PDEATHSIG, 9)
    hide(host)
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    if host.filters:
        forks = limits["processes"] > 1
        if host.scoped:
            seccomp.install(host.filters[forks])
        else:
            seccomp.install(seccomp.compiled(forks=forks, signal_only=os.getpid()))
