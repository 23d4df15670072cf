"""What a program may read: the interpreter, its standard library, shared libraries; no installed package.

Packages are left out because they hold what a program should not see: data sets with their tests, and
the project itself.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from . import landlock

PACKAGES = ("site-packages", "dist-packages")
SYSTEM = (
    "/lib",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
    "/usr/local/lib",
    "/bin",
    "/usr/bin",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/usr/share/zoneinfo",
)
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")


def python_roots() -> list[Path]:
    """Where the interpreter and its standard library lie."""
    library = Path(sys.base_prefix, "lib")
    platform = Path(sys.base_exec_prefix, sys.platlibdir)
    return [Path(sys.executable).resolve(), library, platform, Path(os.__file__).parent]


def mapped_files() -> list[Path]:
    """The shared libraries that this process has loaded, wherever they lie; none if /proc is closed."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    fields = [line.split(maxsplit=5) for line in lines]
    return [Path(field[5]) for field in fields if len(field) == 6 and field[5].startswith("/")]


def readable(paths: Sequence[Path]) -> list[Path]:
    """Files and folders of the system and of Python, and `paths`; real paths, without repeats."""
    named = [*map(Path, SYSTEM), *python_roots(), *mapped_files(), *paths]
    real = [path.resolve() for path in named if path.exists()]
    return [path for path in dict.fromkeys(real) if path != Path("/")]


def without_packages(folder: Path) -> Iterator[Path]:
    """The folder itself, or the parts of it that leave out the installed packages."""
    if folder.name in PACKAGES:
        return
    if not folder.is_dir():
        yield folder
        return
    entries = sorted(folder.iterdir())
    if any(entry.name in PACKAGES for entry in entries):
        yield from (entry for entry in entries if entry.name not in PACKAGES)
    elif any(entry.name.startswith("python") and entry.is_dir() for entry in entries):
        for entry in entries:
            if entry.name.startswith("python") and not entry.is_symlink():
                yield from without_packages(entry)
            else:
                yield entry
    else:
        yield folder


def precise_rules(paths: Sequence[Path]) -> list[tuple[Path, int]]:
    """Rules for reading, file by file where packages have to be left out; hundreds of them."""
    rules = [(part, landlock.READ) for root in readable(()) for part in without_packages(root)]
    return rules + [(path.resolve(), landlock.READ) for path in paths] + device_rules()


def coarse_rules(paths: Sequence[Path]) -> list[tuple[Path, int]]:
    """The same in a few rules: correct only within a process that the precise ones confine."""
    roots = readable(paths)
    widest = [root for root in roots if not any(root.is_relative_to(r) for r in roots if r != root)]
    devices = (Path("/dev"), landlock.READ_FILE | landlock.WRITE_FILE)
    return [*((root, landlock.READ) for root in widest), devices]


def device_rules() -> list[tuple[Path, int]]:
    """Reading and writing of the harmless devices."""
    rights = landlock.READ_FILE | landlock.WRITE_FILE
    return [(Path(device), rights) for device in DEVICES]
