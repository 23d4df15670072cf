"""A Python session in the sandbox, whose state is its history."""

import json
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from grpo_gym.sandbox import Limits, Result, run

SLACK_S = 0.5
# Where an object lies differs from run to run.
_ADDRESS = re.compile(r" at 0x[0-9a-f]+>")
ENDINGS = {
    "timeout": "no result in {seconds:g} s",
    "memory": "it needs more than {memory} MB",
    "output": "it prints too much",
    "disk": "it writes too much",
}


@dataclass
class Session:
    """Cells that share their names, as in a notebook.

    No process waits between two calls: the earlier cells run once more, in silence, before the new one. So
    thousands of sessions may be open, none can be left behind, and a cell that had to be ended leaves the
    state as it was before it. It costs the time of the earlier cells again, which `most_seconds` bounds.

    Attributes:
        limits: what one cell may use.
        most_seconds: how long the cells of the session may take together.
        backend: of the sandbox.
        paths: folders to import from.
        cells: those that have been run to their end.
        seconds: how long they take together.
    """

    limits: Limits = field(default_factory=Limits)
    most_seconds: float = 20.0
    backend: str = "auto"
    paths: Sequence[str] = ()
    cells: tuple[str, ...] = ()
    seconds: float = 0.0

    def run(self, source: str) -> str:
        """What a cell prints, the value of its last line, and what it raised.

        A cell that is ended by a limit, or that ends the interpreter, is told so and leaves no trace.

        Raises:
            SandboxError: It cannot be confined here, and was not run.
        """
        if self.seconds >= self.most_seconds:
            return f"Error: the session has used its {self.most_seconds:g} s"
        again = SLACK_S + 2 * self.seconds if self.cells else 0.0
        limits = replace(
            self.limits, wall_s=self.limits.wall_s + again, cpu_s=self.limits.cpu_s + again
        )
        mark = secrets.token_hex(8)
        result = run(
            driver(),
            stdin=json.dumps({"cells": [*self.cells, source], "mark": mark}),
            limits=limits,
            backend=self.backend,
            paths=self.paths,
        )
        if not result.stderr.endswith(mark):
            return f"{result.stdout}Error: {self._ending(result)}; what this call did is undone"
        self.cells = (*self.cells, source)
        self.seconds = result.seconds
        shown = _ADDRESS.sub(" at 0x...>", result.stdout.rstrip("\n"))
        return shown or "(no output)"

    def _ending(self, result: Result) -> str:
        text = ENDINGS.get(result.status, "it ended the interpreter")
        return text.format(seconds=self.limits.wall_s, memory=self.limits.memory_mb)


@cache
def driver() -> str:
    """The program that runs cells."""
    source = Path(__file__).with_name("python_cells.py").read_text(encoding="utf-8")
    return f"{source}\n\nmain()\n"
