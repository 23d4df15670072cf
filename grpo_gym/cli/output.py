"""Where commands write."""

import os
import sys

from rich.console import Console

from grpo_gym.launch import is_first


class Output(Console):
    """The terminal. When the reader of a pipe leaves, a command goes on without being heard.

    A training run is worth more than the pager that looked at its first lines.
    """

    def on_broken_pipe(self) -> None:
        """Write to nowhere from now on."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def say(self, text: str) -> None:
        """Print a line as it is: no markup, no colours, no wrapping."""
        self.print(text, markup=False, highlight=False, soft_wrap=True)


def complain(error: object) -> None:
    """Say on stderr, in one line, what went wrong."""
    remark(f"error: {error}")


def remark(text: object) -> None:
    """Say something on stderr, in one line, once for all the processes of a run."""
    if is_first():
        print(f"grpo-gym: {' '.join(str(text).split())}", file=sys.stderr, flush=True)
