"""The command line: `grpo-gym train`, `grpo-gym eval` and the other names of `COMMANDS`.

Heavy imports stand inside the commands, so that listing and help are quick.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from grpo_gym.cli.commands import COMMANDS, SHARED
from grpo_gym.cli.output import Output, complain, remark
from grpo_gym.config import nearest
from grpo_gym.errors import UsageError
from grpo_gym.interrupts import not_dropped
from grpo_gym.launch import is_first

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status.

    0: done. 1: the run failed. 2: a mistake in what was given. 130: interrupted.

    Args:
        arguments: words of the command line; those of the process if not given.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with not_dropped():
            status = _run(words, Output(quiet=not is_first()))
        sys.stdout.flush()
        return status
    except SystemExit as stop:  # how the parser ends after --help
        return stop.code if isinstance(stop.code, int) else 0
    except UsageError as error:
        complain(error)
        return 2
    except BrokenPipeError:  # the reader of our output has left, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # a full disk, a file that has gone
        complain(error)
        return 1
    except KeyboardInterrupt:
        remark("interrupted")
        return 130


def _run(words: list[str], output: Output) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        _print_help(output)
        return 0 if words else 2
    if words[0] == "--version":
        from grpo_gym import __version__

        output.say(__version__)
        return 0
    folder = str(Path.cwd())
    if not {"", folder} & set(sys.path):
        # Where a user's module:Class is; last, so that it shadows nothing.
        sys.path.append(folder)
    command = COMMANDS.get(words[0])
    if command is None:
        near = nearest(words[0], COMMANDS) or f"; there is {', '.join(COMMANDS)}"
        raise UsageError(f"no command {words[0]!r}{near}")
    if not is_first() and words[0] not in SHARED:
        return 0
    return command(words[1:], output)


def _print_help(output: Output) -> None:
    output.say("usage: grpo-gym COMMAND [OPTIONS]   (grpo-gym COMMAND --help lists the options)\n")
    for name, command in COMMANDS.items():
        output.say(f"  {name:9}{(command.__doc__ or '').splitlines()[0]}")
    output.say("\ntrain, eval and rollout also take --config FILE, a TOML file of options.")
