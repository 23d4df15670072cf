"""The two sides of a judged run: the program, which answers calls, and the tests, which make them.

The tests run in a process of their own. They see the program's functions as proxies; arguments and
results cross as data. Nothing that the program does to its own process reaches the tests'.
"""

import ast
import builtins
import importlib
import json
import os
import sys
from contextlib import suppress
from typing import Any, NoReturn

from . import plain, program, wire
from .answers import Answers
from .remote import Link

MESSAGE = 400
BUILTINS = frozenset(dir(builtins))


def answer_calls(fd: int, source: str) -> NoReturn:
    """The program's side: run its source, then answer until the tests have ended."""
    try:
        names = program.execute(source, "program")
    except SystemExit as error:
        program.leave(program.exit_code(error.code))
    except BaseException as error:
        program.report(error)
        program.leave(1)
    with suppress(wire.Closed):
        Answers(fd, names).until_reply()
    program.leave(0)


def judge(fd: int, target: int, work: dict[str, Any]) -> NoReturn:
    """The tests' side: run each test, write one line for each, and a last one when all have been run.

    Args:
        fd: connection to the program.
        target: where the lines go; every one carries the nonce.
        work: "nonce", "setup" (source), "tests" (sources), "entry_points" (names).
    """

    def say(**fields: Any) -> None:
        line = json.dumps({"nonce": work["nonce"], **fields}) + "\n"
        os.write(target, line.encode())

    target = os.dup(target)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what the tests print is nobody's
    link = Link(fd)
    scope: dict[str, Any] = {"__name__": "tests", "__builtins__": builtins}
    try:
        run_part(work["setup"], "setup", scope, link, work["entry_points"])
        for name in work["entry_points"]:
            scope[name] = link.look_up(name)
    except BaseException as error:
        # A setup that fails without having asked the program for anything is no fault of the program.
        say(test=-1, passed=False, message=describe(error), unusable=not link.asked)
        os._exit(0)
    for number, test in enumerate(work["tests"]):
        try:
            run_part(test, f"test {number}", scope, link, work["entry_points"])
        except BaseException as error:
            say(test=number, passed=False, message=describe(error))
        else:
            say(test=number, passed=True)
    say(done=not link.broken, unfit=link.unfit)
    os._exit(0)


def run_part(
    source: str, name: str, scope: dict[str, Any], link: Link, entry_points: list[str]
) -> None:
    """Run a piece of test code in the common scope, with the names that it lacks put there first."""
    tree = ast.parse(source, name)
    for missing in missing_names(tree, scope):
        if missing in entry_points:
            continue
        if missing in called_names(tree) or missing not in sys.stdlib_module_names:
            try:
                scope[missing] = link.look_up(missing)
            except NameError:
                continue
        else:
            scope[missing] = importlib.import_module(missing)
    exec(compile(tree, name, "exec"), scope)


def missing_names(tree: ast.AST, scope: dict[str, Any]) -> list[str]:
    """Names that the code reads but neither defines, nor finds in the scope or among the builtins."""
    read, bound = [], set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Load):
                read.append(node.id)
            else:
                bound.add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            bound.update((alias.asname or alias.name).split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            bound.add(node.name)
    known = bound | set(scope)
    return [name for name in dict.fromkeys(read) if name not in known and name not in BUILTINS]


def called_names(tree: ast.AST) -> set[str]:
    """Names that are called as they stand."""
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return {function.id for function in calls if isinstance(function, ast.Name)}


def describe(error: BaseException) -> str:
    """The exception in one short line; nothing where the program has ended, which others can tell better."""
    if isinstance(error, wire.Closed):
        return ""
    if isinstance(error, plain.NotPlain):
        return f"the program and the tests cannot exchange this: {error}"[:MESSAGE]
    try:
        return f"{type(error).__name__}: {error}"[:MESSAGE].strip(": ")
    except BaseException:
        return type(error).__name__
