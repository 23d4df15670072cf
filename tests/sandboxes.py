"""What the tests of sandboxes share."""

import os
from pathlib import Path
from typing import Any

import pytest

from grpo_gym.sandbox import SAFE, Limits, probe

QUICK = Limits(wall_s=10.0, memory_mb=256)
BACKENDS = [
    pytest.param(name, marks=pytest.mark.skipif(probe(name) is not None, reason=f"no {name} here"))
    for name in SAFE
]
landlock_here = pytest.mark.skipif(probe("landlock") is not None, reason="no Landlock here")


def served(pid: int) -> bool:
    """Whether a process is a server of the sandbox, or was forked by one."""
    try:
        return b"inside.serve" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def ancestors(pid: int) -> list[int]:
    """Its parent, the parent's parent, and so on up to process 1 if all can be read."""
    found: list[int] = []
    while pid > 1:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            break
        pid = int(stat.rpartition(")")[2].split()[1])
        found.append(pid)
    return found


def processes() -> dict[int, list[int]]:
    """All processes of sandboxes on this machine, with their ancestors; those of other tests too."""
    numbers = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal())
    return {pid: ancestors(pid) for pid in numbers if served(pid)}


def started_by(pid: int) -> set[int]:
    """Processes of sandboxes that descend from this process."""
    return {found for found, above in processes().items() if pid in above}


def own_or_orphaned() -> set[int]:
    """Processes of this process's sandboxes, and of those whose caller has gone, whosever they were."""
    everyone = processes()
    own = {pid for pid, above in everyone.items() if os.getpid() in above}
    return own | {pid for pid, above in everyone.items() if not set(above) - set(everyone) - {0, 1}}


def request(source: str, wall_s: float = 3.0, **limits: Any) -> dict[str, Any]:
    """The message of a run."""
    values = {**vars(Limits(wall_s=wall_s, memory_mb=256, **limits)), "tasks_before": 4096}
    base = {"argv": [], "judged": False, "stdin": "", "files": {}}
    return {**base, "source": source, "limits": values}
