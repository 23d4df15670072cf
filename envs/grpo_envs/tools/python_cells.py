"""What runs in the sandbox: earlier cells once more, in silence, and then a new one, as in a notebook.

This file's text is the program, so that it imports nothing but the standard library.
"""

import ast
import contextlib
import json
import os
import random
import sys
from types import ModuleType
from typing import Any


def main() -> None:
    """Read the cells and the mark of the end from stdin; show the last cell's output on stdout.

    The mark is written on stderr once the last cell is done, whether or not it raised something.
    """
    work = json.load(sys.stdin)
    shown, end = os.dup(1), os.dup(2)
    silence = os.open(os.devnull, os.O_WRONLY)
    random.seed(0)  # equal cells give equal results when they run again
    module = ModuleType("__main__")
    sys.modules["__main__"] = module
    *earlier, new = [(f"cell {number}", cell) for number, cell in enumerate(work["cells"], 1)]
    redirect(silence)
    for name, source in earlier:
        run_cell(source, name, module.__dict__)
    redirect(shown)
    error = run_cell(new[1], new[0], module.__dict__)
    if error:
        sys.stdout = open(1, "w", errors="backslashreplace", closefd=False)  # noqa: SIM115
        print(error)
    redirect(silence)
    os.write(end, work["mark"].encode())
    os._exit(0)  # no thread that a cell has started is waited for


def redirect(target: int) -> None:
    """Let what is printed from now on, errors included, go to a descriptor."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        with contextlib.suppress(Exception):  # a cell may have closed it, or put anything there
            getattr(sys, name).flush()
        os.dup2(target, number)
        setattr(sys, name, open(number, "w", buffering=1, closefd=False))  # noqa: SIM115


def run_cell(source: str, name: str, scope: dict[str, Any]) -> str:
    """Run a cell and print the value of its last line if that is an expression; what was raised, or ""."""
    try:
        tree = ast.parse(source, name)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, name, "exec"), scope)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), name, "eval"), scope)
            if value is not None:
                print(repr(value))
    except BaseException as error:  # whatever a cell raises is shown, and the session goes on
        return describe(error)
    return ""


def describe(error: BaseException) -> str:
    """Where in the cells an exception was raised, its type and its message."""
    place = ""
    frame = error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename.startswith("cell "):
            place = f"{frame.tb_frame.f_code.co_filename}, line {frame.tb_lineno}: "
        frame = frame.tb_next
    try:
        return f"{place}{type(error).__name__}: {error}"
    except BaseException:
        return f"{place}{type(error).__name__}"
