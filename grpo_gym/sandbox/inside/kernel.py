"""System calls that Python has no name for, by ctypes."""

import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
libc.prctl.argtypes = (ctypes.c_int, *[ctypes.c_ulong] * 4)
libc.syscall.argtypes = (ctypes.c_long,) * 5
libc.syscall.restype = ctypes.c_long

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_KEEPCAPS = 8
PR_SET_SECCOMP = 22
PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47


def checked(result: int, what: str, detail: int = 0) -> int:
    """The result of a call, or an OSError that says which call failed."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what} {detail or ''}: {os.strerror(number)}")
    return result


def prctl(option: int, first: int = 0, second: int = 0) -> int:
    """`prctl(2)`; raises OSError."""
    return checked(libc.prctl(option, first, second, 0, 0), "prctl", option)


def syscall(number: int, first: int = 0, second: int = 0, third: int = 0, fourth: int = 0) -> int:
    """`syscall(2)`, with structures by their address; raises OSError."""
    return checked(libc.syscall(number, first, second, third, fourth), "system call", number)
