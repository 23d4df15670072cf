"""What a program may use, and what became of it."""

from dataclasses import dataclass, fields
from typing import Literal

from grpo_gym.errors import UsageError

Status = Literal["ok", "exit", "signal", "timeout", "memory", "output", "disk", "lost"]

LEAST_MEMORY_MB = 64
"""With less, Python itself does not start."""


@dataclass(frozen=True)
class Limits:
    """What one run may use.

    Attributes:
        wall_s: seconds from the program's start to its end, after which everything it started is killed.
        cpu_s: processor seconds of one process; rounded up to a whole number.
        memory_mb: address space of one process, the interpreter's own included; 64 at least.
        processes: processes at one time. With 1 the program cannot fork at all; more are counted together
            with 64 threads.
        output_bytes: bytes on each of stdout and stderr; more ends the run.
        file_mb: size of one file.
        disk_mb: size of everything in the program's folder; more ends the run.

    Raises:
        UsageError: A limit is not a positive number, or there is no memory for Python itself.
    """

    wall_s: float = 5.0
    cpu_s: float = 5.0
    memory_mb: int = 512
    processes: int = 1
    output_bytes: int = 1_000_000
    file_mb: int = 16
    disk_mb: int = 64

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            whole = item.name not in ("wall_s", "cpu_s")
            if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
                kind = "a whole number" if whole else "a number"
                raise UsageError(f"{item.name} must be {kind}, got {value!r}")
            if not 0 < value < 1 << 40:
                raise UsageError(f"{item.name} must be positive and finite, got {value!r}")
        if self.memory_mb < LEAST_MEMORY_MB:
            raise UsageError(f"memory_mb must be {LEAST_MEMORY_MB} at least, got {self.memory_mb}")


@dataclass(frozen=True)
class Result:
    """What became of a program.

    Attributes:
        status: "ok" (exit status 0); "exit" (another exit status); "signal" (it died of one);
            "timeout" (of wall or processor time); "memory" (a MemoryError ended it); "output", "disk" (more
            than the limit); "lost" (the supervisor itself was killed: out of memory, most likely).
        exit_code: the exit status, or minus the number of the signal; None where the run was ended before.
        stdout: what it wrote, at most `output_bytes` of it; bytes that are no UTF-8 are replaced.
        stderr: the same.
        seconds: from its start to its end.
        cpu_s: processor time of the program's first process and of the children it waited for.
    """

    status: Status
    exit_code: int | None = None
    stdout: str = ""
    stderr: str = ""
    seconds: float = 0.0
    cpu_s: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether the program ended by itself with exit status 0."""
        return self.status == "ok"
