"""System calls that Python has no name for, by ctypes."""

import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_KEEPCAPS = 8
PR_SET_SECCOMP = 22
PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47


def checked(result: int, what: str) -> int:
    """The result of a call, or an OSError that says which call failed."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def prctl(option: int, *arguments: int) -> int:
    """`prctl(2)`; raises OSError."""
    padded = [ctypes.c_ulong(value) for value in (*arguments, 0, 0, 0, 0)[:4]]
    return checked(libc.prctl(ctypes.c_int(option), *padded), f"prctl {option}")


def syscall(number: int, *arguments: object) -> int:
    """`syscall(2)`; raises OSError. Integers are passed as 64 bits, anything else as it is."""
    values = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return checked(libc.syscall(ctypes.c_long(number), *values), f"system call {number}")
