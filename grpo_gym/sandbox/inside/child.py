"""A confined process of a run."""

import os
import select
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import program
from .confine import Host, confine, walls


class Refused(Exception):
    """The program was not run, because its confinement failed."""


@dataclass
class Child:
    """A process of the run.

    Attributes:
        pid: its id.
        watch: a descriptor that can be read when the process has ended.
        ready: a descriptor from which its confinement is told.
        pipes: descriptors to read from, by name.
        status: what `wait` said of it, once it has been waited for.
        cpu_s: the processor time that it took.
    """

    pid: int
    watch: int
    ready: int
    pipes: dict[str, int]
    status: int | None = None
    cpu_s: float = 0.0


@dataclass(frozen=True)
class Body:
    """What a process of the run is to do.

    Attributes:
        outputs: names of its descriptors 1 and 2.
        inputs: its descriptor 0, then 3 and on; closed here when it has been started.
        work: the function that it runs; it does not return.
    """

    outputs: tuple[str, str]
    inputs: tuple[int, ...]
    work: Callable[[], None]


def start(host: Host, limits: dict[str, Any], folder: Path | None, uid: int, body: Body) -> Child:
    """Fork a process that confines itself and then does its work. Without a folder it cannot write."""
    pipes = {name: os.pipe() for name in body.outputs}
    ready, told = os.pipe()
    stdin, *extra = body.inputs
    outputs = [write for _, write in pipes.values()]
    ruleset = walls(host, folder)
    rules = [] if ruleset is None else [ruleset]
    pid = os.fork()
    if pid == 0:
        try:
            program.take_over(stdin, *outputs, *extra, told, *rules)
            last = 3 + len(extra)
            enter(host, limits, folder, uid, told=last, ruleset=last + 1 if rules else None)
            body.work()
        finally:
            os._exit(1)
    for fd in (*outputs, *body.inputs, told, *rules):
        os.close(fd)
    for read, _ in pipes.values():
        os.set_blocking(read, False)
    return Child(pid, os.pidfd_open(pid), ready, {name: read for name, (read, _) in pipes.items()})


def await_confinement(child: Child) -> None:
    """Wait until the process is confined, and is about to begin its work.

    Raises:
        Refused: A step of the confinement failed; it has not begun.
    """
    answer = os.read(child.ready, 4096)
    os.close(child.ready)
    if answer != b"ready":
        raise Refused(answer.decode(errors="replace") or "the process died while it was confined")


def enter(
    host: Host,
    limits: dict[str, Any],
    folder: Path | None,
    uid: int,
    *,
    told: int,
    ruleset: int | None,
) -> None:
    """In the forked process: confine it and say so on `told`; exits if that fails."""
    try:
        os.setsid()
        os.chdir(folder or "/")
        confine(host, limits, folder, uid, ruleset)
        os.write(told, b"ready")
        os.close(told)
    except BaseException as error:
        os.write(told, f"{type(error).__name__}: {error}".encode())
        os._exit(1)


def over(child: Child) -> bool:
    """Whether the process has ended, waited for or not."""
    return bool(select.select([child.watch], [], [], 0)[0])
