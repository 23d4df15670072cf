"""Who the program runs as: an unprivileged user without capabilities."""

import ctypes
import errno
import os
import stat
import sys
from pathlib import Path

from . import kernel

DAC_OVERRIDE, DAC_READ_SEARCH = 1, 2
FIRST_UID, UIDS = 61_440, 3_000
VERSION_3 = 0x20080522


class Header(ctypes.Structure):
    """`struct __user_cap_header_struct`."""

    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class Data(ctypes.Structure):
    """`struct __user_cap_data_struct`."""

    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


Capabilities = Data * 2


def permitted() -> int:
    """The first 32 capabilities that this process may have, as bits."""
    data = Capabilities()
    header = Header(VERSION_3, 0)
    kernel.checked(kernel.libc.capget(ctypes.byref(header), data), "capget")
    return int(data[0].permitted)


def keep_only(capabilities: int) -> None:
    """Give up every capability but these bits, which survive `execve` too."""
    data = Capabilities()
    data[0] = Data(capabilities, capabilities, capabilities)
    header = Header(VERSION_3, 0)
    kernel.checked(kernel.libc.capset(ctypes.byref(header), data), "capset")
    for number in range(capabilities.bit_length()):
        if capabilities >> number & 1:
            kernel.prctl(kernel.PR_CAP_AMBIENT, 2, number)


def open_to_all(path: Path) -> bool:
    """Whether any user can reach and read what lies at `path`."""
    if any(not folder.stat().st_mode & stat.S_IXOTH for folder in path.parents):
        return False
    return bool(path.stat().st_mode & stat.S_IROTH)


def needed_to_read_python(paths: list[Path]) -> int:
    """The one capability without which another user could not read this interpreter; 0 if none.

    An interpreter below /root is closed to others. Landlock still decides what can be read: the
    capability only lifts the owner's permissions from the few folders that it allows.
    """
    python = [Path(os.__file__).resolve(), Path(sys.executable).resolve(), *paths]
    if all(open_to_all(path) for path in python):
        return 0
    have = permitted()
    for number in (DAC_READ_SEARCH, DAC_OVERRIDE):
        if have >> number & 1:
            return 1 << number
    raise OSError(
        errno.EACCES, f"other users cannot read {sys.executable}; install Python outside /root"
    )


def alone_in_namespace() -> bool:
    """Whether this is a user namespace with a single user, in which no other can be taken on.

    Where that cannot be read, another user is tried, and the run refused if there is none.
    """
    try:
        rows = Path("/proc/self/uid_map").read_text().splitlines()
    except OSError:
        return False
    return [row.split()[2] for row in rows] == ["1"]


def own_uid(pid: int, alone: bool) -> int:
    """The user that a run belongs to: one of its own where this process is root.

    In a user namespace that maps no other user, root is an ordinary user outside; it stays.
    """
    return FIRST_UID + pid % UIDS if os.geteuid() == 0 and not alone else os.geteuid()


def drop(uid: int, capabilities: int) -> None:
    """Become `uid`, if that is somebody else, and give up all but `capabilities`.

    Raises:
        OSError: The kernel refused.
    """
    if uid != os.geteuid():
        kernel.prctl(kernel.PR_SET_KEEPCAPS, 1)
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    keep_only(capabilities)
