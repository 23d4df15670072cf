"""Landlock: rules on files, TCP and signals that a process puts on itself and its descendants.

The interface is that of the kernel's documentation (userspace-api/landlock); the three system calls have
the same number on every architecture.
"""

import ctypes
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from . import kernel

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
REMOVE_DIR = 1 << 4
MAKE_CHAR, MAKE_SOCK, MAKE_BLOCK = 1 << 6, 1 << 9, 1 << 11
TRUNCATE, IOCTL_DEV = 1 << 14, 1 << 15
SCOPE_ABSTRACT_UNIX, SCOPE_SIGNAL = 1 << 0, 1 << 1

READ = EXECUTE | READ_FILE | READ_DIR
ON_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
"""The rights that a rule on a plain file may name; the others are for folders."""

Rule = tuple[int, int]
"""A descriptor of a file or folder, and the rights on and below it."""

SIGNALS_SINCE = 6
"""First ABI that can keep signals inside."""


class RulesetAttributes(ctypes.Structure):
    """`struct landlock_ruleset_attr`."""

    _fields_ = (("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class PathBeneath(ctypes.Structure):
    """`struct landlock_path_beneath_attr`, packed."""

    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def abi() -> int:
    """Version of Landlock that the kernel offers; 0 for none."""
    try:
        return kernel.syscall(CREATE_RULESET, 0, 0, 1)
    except OSError:
        return 0


def all_rights(version: int) -> int:
    """Every right on files that ABI `version` knows of."""
    bits = {1: 13, 2: 14, 3: 15, 4: 15}.get(version, 16)
    return (1 << bits) - 1


def write_rights(version: int) -> int:
    """What a program may do in its own folder: everything but making devices and sockets."""
    return all_rights(version) & ~(MAKE_CHAR | MAKE_BLOCK | MAKE_SOCK | IOCTL_DEV)


def open_rules(rules: Iterable[tuple[Path, int]]) -> Iterator[Rule]:
    """Descriptors of paths, with the rights on and below them; a path that does not exist is left out."""
    for path, rights in rules:
        try:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            continue
        folder = stat.S_ISDIR(os.fstat(fd).st_mode)
        yield fd, rights if folder else rights & ON_FILES


def closing(rules: Iterable[Rule]) -> Iterator[Rule]:
    """The rules one by one, each closed when the next is asked for: there can be more than descriptors."""
    for fd, rights in rules:
        try:
            yield fd, rights
        finally:
            os.close(fd)


def ruleset(version: int, rules: Iterable[Rule] | None, *, signals: bool) -> int:
    """A descriptor of a set of rules, for `enforce`.

    Args:
        version: the kernel's ABI, 1 or more.
        rules: what is allowed; all else on files is denied, and TCP too, where the kernel can. None leaves
            files and TCP as they are.
        signals: also keep signals and abstract sockets inside, where the kernel can.

    Raises:
        OSError: The kernel refused.
    """
    handled = 0 if rules is None else all_rights(version)
    attributes = RulesetAttributes(fs=handled)
    size = 8
    if version >= 4:
        size, attributes.net = 16, 0 if rules is None else 3
    if version >= SIGNALS_SINCE:
        size, attributes.scoped = 24, (SCOPE_ABSTRACT_UNIX | SCOPE_SIGNAL) if signals else 0
    made = kernel.syscall(CREATE_RULESET, ctypes.addressof(attributes), size)
    try:
        for parent, rights in rules or ():
            rule = PathBeneath(allowed=rights & handled, parent=parent)
            kernel.syscall(ADD_RULE, made, 1, ctypes.addressof(rule))
    except OSError:
        os.close(made)
        raise
    return made


def enforce(ruleset: int) -> None:
    """Confine this process and all that it starts to the rules, and close them; there is no way back.

    Raises:
        OSError: The kernel refused.
    """
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    kernel.syscall(RESTRICT_SELF, ruleset)
    os.close(ruleset)
