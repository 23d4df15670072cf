"""The untrusted program, in its own process, once that is confined."""

import atexit
import fcntl
import os
import sys
import types
from typing import Any, NoReturn

NAME = "program.py"
FREE = 100
"""Descriptors from here on are nobody's."""


def take_over(*fds: int) -> None:
    """Make these descriptors 0, 1, 2, 3, ..., and close all the rest."""
    copies = [fcntl.fcntl(fd, fcntl.F_DUPFD, FREE) for fd in fds]
    for target, fd in enumerate(copies):
        os.dup2(fd, target)
    os.closerange(len(fds), 1 << 20)


def execute(source: str, name: str) -> dict[str, Any]:
    """Run the source as a module called `name`; its names. Whatever it raises comes out."""
    module = types.ModuleType(name)
    sys.modules[name] = module
    sys.argv = [NAME]
    exec(compile(source, NAME, "exec"), module.__dict__)
    return module.__dict__


def report(error: BaseException) -> None:
    """Print the traceback, from the program's first line on."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename != NAME:
        frames = frames.tb_next
    sys.excepthook(type(error), error.with_traceback(frames), frames)


def run(source: str, argv: list[str]) -> NoReturn:
    """Become the command of these words; without any, run a Python program, and end as Python would."""
    if argv:
        run_command(argv)
    try:
        execute(source, "__main__")
    except SystemExit as error:
        leave(exit_code(error.code))
    except BaseException as error:
        report(error)
        leave(1)
    leave(0)


def exit_code(code: object) -> int:
    """The process's exit status for the argument of `sys.exit`."""
    if code is None:
        return 0
    if isinstance(code, int):
        return int(code) & 0xFF
    print(code, file=sys.stderr)
    return 1


def leave(code: int) -> NoReturn:
    """Wait for the threads, run what was registered for the end, write what is buffered, and exit."""
    try:
        threading: Any = sys.modules.get("threading")
        if threading is not None:
            threading._shutdown()
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except BaseException:
        code = code or 120
    os._exit(code)


def run_command(argv: list[str]) -> NoReturn:
    """Become another program."""
    try:
        os.execvpe(argv[0], argv, dict(os.environ))
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{argv[0]}: {error}\n")
        leave(127)
