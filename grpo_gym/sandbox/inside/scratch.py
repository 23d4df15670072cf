"""The program's folder: made empty, measured while it runs, and removed whatever lies in it."""

import os
import stat
from contextlib import suppress
from pathlib import Path

from . import wire

DEEPEST = 100
"""Folders in one another, beyond which the program's folder counts as full."""


def new_name() -> str:
    """A name that nobody can guess."""
    return os.urandom(8).hex()


def make(folder: Path, files: dict[str, str], uid: int) -> None:
    """Make the folder, which is `uid`'s, with these files in it, which are `uid`'s as well."""
    os.mkdir(folder, 0o700)  # noqa: PTH102 (here and in `own`: a run without files stays quick)
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(wire.encoded(text))
    if uid != os.geteuid():
        os.chown(folder, uid, uid)
        for path in folder.rglob("*") if files else ():
            os.chown(path, uid, uid)


def bytes_used(folder: Path, enough: int) -> int:
    """Bytes on the disk below `folder`; stops counting at `enough`.

    Every entry counts 1 KiB at least, and a folder below `DEEPEST` others more than enough, since the
    kernel takes the longer for a path the deeper it goes.
    """
    total, pending = 0, [(str(folder), 0)]
    while pending and total <= enough:
        path, depth = pending.pop()
        if depth > DEEPEST:
            return enough + 1
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    total += max(1024, entry.stat(follow_symlinks=False).st_blocks * 512)
                    if entry.is_dir(follow_symlinks=False):
                        pending.append((entry.path, depth + 1))
                    if total > enough:
                        break
        except OSError:
            continue  # removed or closed by the program meanwhile
    return total


def remove(folder: Path) -> None:
    """Remove the folder when no process of the program is left.

    Goes down and up one step at a time, so that neither the depth of what the program made nor the
    length of its paths matters.
    """
    fd = open_folder(folder.name, os.open(folder.parent, os.O_PATH))
    left = [os.listdir(fd)]  # noqa: PTH208 (a descriptor has no path)
    names = [folder.name]
    while left:
        if left[-1]:
            name = left[-1].pop()
            if stat.S_ISDIR(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
                fd = open_folder(name, fd)
                left.append(os.listdir(fd))  # noqa: PTH208
                names.append(name)
            else:
                os.unlink(name, dir_fd=fd)
        else:
            above = os.open("..", os.O_PATH, dir_fd=fd)
            os.close(fd)
            fd = above
            os.rmdir(names.pop(), dir_fd=fd)
            left.pop()
    os.close(fd)


def open_folder(name: str, base: int) -> int:
    """The folder of this name in the folder `base`, which is closed; its owner may then do all in it."""
    try:
        os.chmod(name, 0o700, dir_fd=base)
        return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=base)
    finally:
        os.close(base)


def remove_all(parent: Path) -> None:
    """Remove a server's folder with what runs have left there; what cannot be removed stays."""
    with suppress(OSError):
        remove(parent)
