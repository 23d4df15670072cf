"""One run: starts the program and perhaps its judge, watches them, kills all that they started, reports.

The supervisor is a process of its own for every run. It reads the program first and forks; only then does
it read the tests, so that the program's memory never held them.
"""

import os
import select
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import identity, judge, kernel, landlock, program, scratch, wire
from .confine import MEBIBYTE, Host, confine, hide

PIECE = 1 << 16
DISK_CHECK_S = 0.05
VERDICT_BYTES = 8 << 20


class Refused(Exception):
    """The program was not run, because its confinement failed."""


@dataclass
class Child:
    """A process of the run.

    Attributes:
        pid: its id.
        watch: a descriptor that can be read when the process has ended.
        pipes: descriptors to read from, by name.
    """

    pid: int
    watch: int
    pipes: dict[str, int]
    status: int | None = None
    cpu_s: float = 0.0


@dataclass
class Run:
    """What is known of a run so far."""

    limits: dict[str, Any]
    started: float
    output: dict[str, bytearray] = field(default_factory=dict)
    ended: str | None = None


@dataclass(frozen=True)
class Body:
    """What a process of the run is to do.

    Attributes:
        outputs: names of its descriptors 1 and 2.
        inputs: its descriptor 0, then 3 and on.
        work: the function that it runs; it does not return.
    """

    outputs: tuple[str, str]
    inputs: tuple[int, ...]
    work: Callable[[], None]


def supervise(host: Host, source: int, target: int, parent: Path) -> None:
    """Serve one request, read from `source`, and answer on `target`."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    hide(host)
    if host.scoped:
        landlock.restrict(host.abi, None, signals=True)
    request = wire.receive(source)
    uids = [identity.own_uid(2 * os.getpid() + side, host.alone) for side in (0, 1)]
    folder = scratch.make(parent, request["files"], uids[0])
    children: list[Child] = []
    try:
        try:
            reply = play(host, request, source, folder, uids, children)
        except Refused as refusal:
            reply = {"refused": str(refusal)}
        finally:
            end_all(host, children)
        wire.send(target, reply)
    except wire.Closed:
        pass  # nobody waits for the answer any more
    finally:
        scratch.remove(folder)


def play(
    host: Host,
    request: dict[str, Any],
    source: int,
    folder: Path,
    uids: list[int],
    children: list[Child],
) -> dict[str, Any]:
    """Start what the request names, watch it to its end, and describe the end."""
    limits = request["limits"]
    link, other = socket.socketpair()
    with link, other, Path(os.devnull).open("rb") as nothing:

        def program_body() -> None:
            if request["judged"]:
                judge.answer_calls(3, request["source"])
            if request["argv"]:
                program.run_command(request["argv"])
            program.run_source(request["source"])

        stdin = readable_file(request["stdin"])
        connection = (other.fileno(),) if request["judged"] else ()
        body = Body(("stdout", "stderr"), (stdin, *connection), program_body)
        children.append(start(host, limits, folder, uids[0], body))
        os.close(stdin)
        if request["judged"]:
            tests = wire.receive(source)
            fds = (nothing.fileno(), link.fileno())
            body = Body(("verdict", "notes"), fds, lambda: judge.judge(3, 1, tests))
            children.append(start(host, limits, None, uids[1], body))
    run = Run(limits, time.monotonic())
    watch(run, children, source, folder)
    if request["judged"] and not over(children[0]):
        run.ended = run.ended or "done"
    end_all(host, children)
    for child in children:
        for name, fd in child.pipes.items():
            drain(run, name, fd)
    first = children[0]
    text = {name: bytes(data).decode("latin-1") for name, data in run.output.items()}
    return {
        "ended": run.ended,
        "status": first.status,
        "seconds": time.monotonic() - run.started,
        "cpu_s": first.cpu_s,
        **text,
    }


def readable_file(text: str) -> int:
    """A descriptor to read this text from."""
    fd = os.memfd_create("stdin")
    rest = memoryview(text.encode("utf-8", "surrogateescape"))
    while rest:
        rest = rest[os.write(fd, rest) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def start(host: Host, limits: dict[str, Any], folder: Path | None, uid: int, body: Body) -> Child:
    """Fork a confined process; returns when its confinement is complete. Without a folder it cannot write.

    Raises:
        Refused: A step of the confinement failed.
    """
    pipes = {name: os.pipe() for name in body.outputs}
    ready, told = os.pipe()
    stdin, *extra = body.inputs
    pid = os.fork()
    if pid == 0:
        try:
            program.take_over(stdin, *(write for _, write in pipes.values()), *extra, told)
            enter(host, limits, folder, uid, told=3 + len(extra))
            body.work()
        finally:
            os._exit(1)
    for _, write in pipes.values():
        os.close(write)
    os.close(told)
    answer = os.read(ready, 4096)
    os.close(ready)
    child = Child(pid, os.pidfd_open(pid), {name: read for name, (read, _) in pipes.items()})
    if answer != b"ready":
        raise Refused(answer.decode(errors="replace") or "the process died while it was confined")
    for fd in child.pipes.values():
        os.set_blocking(fd, False)
    return child


def enter(host: Host, limits: dict[str, Any], folder: Path | None, uid: int, told: int) -> None:
    """In the forked process: confine it and say so on `told`; exits if that fails."""
    try:
        os.setsid()
        os.chdir(folder or "/")
        signal.signal(signal.SIGINT, signal.default_int_handler)
        confine(host, limits, folder, uid)
        program.forget()
        os.write(told, b"ready")
        os.close(told)
    except BaseException as error:
        os.write(told, f"{type(error).__name__}: {error}".encode())
        os._exit(1)


def watch(run: Run, children: list[Child], source: int, folder: Path) -> None:
    """Collect output until the last child has ended or a limit is hit, which `run.ended` then names."""
    poll = select.poll()
    names: dict[int, str] = {}
    for child in children:
        poll.register(child.watch, select.POLLIN)
        for name, fd in child.pipes.items():
            poll.register(fd, select.POLLIN)
            names[fd] = name
    poll.register(source, select.POLLRDHUP)
    deadline = run.started + run.limits["wall_s"]
    disk = run.limits["disk_mb"] * MEBIBYTE
    check = run.started + DISK_CHECK_S
    while run.ended is None:
        now = time.monotonic()
        if now >= deadline:
            run.ended = "timeout"
            return
        if now >= check:
            check = now + DISK_CHECK_S
            if scratch.bytes_used(folder, disk) > disk:
                run.ended = "disk"
                return
        for fd, event in poll.poll(1000 * (min(deadline, check) - now) + 1):
            if fd == source:
                if event & (select.POLLRDHUP | select.POLLHUP | select.POLLERR):
                    run.ended = "abandoned"
            elif fd == children[-1].watch:
                return
            elif fd not in names or (not drain(run, names[fd], fd)):
                poll.unregister(fd)


def drain(run: Run, name: str, fd: int) -> bool:
    """Read what a pipe holds now; False when it has been closed. Too much ends the run."""
    data = run.output.setdefault(name, bytearray())
    most = VERDICT_BYTES if name == "verdict" else run.limits["output_bytes"]
    while len(data) <= most:
        try:
            piece = os.read(fd, PIECE)
        except BlockingIOError:
            return True
        if not piece:
            return False
        data += piece
    del data[most:]
    run.ended = run.ended or "output"
    return False


def end_all(host: Host, children: list[Child]) -> None:
    """Kill every process of the run and wait until none is left."""
    for child in children:
        if child.status is None and not over(child):
            signal.pidfd_send_signal(child.watch, signal.SIGKILL)
    if host.scoped and signals_stay_inside():
        # Reaches exactly the processes that this run started, all of them at one instant.
        with suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
    for child in children:
        if child.status is None:
            _, child.status, usage = os.wait4(child.pid, 0)
            child.cpu_s = usage.ru_utime + usage.ru_stime
    while orphans := adopted():
        for pid in orphans:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    if host.scoped:
        with suppress(ChildProcessError):
            while True:
                os.waitpid(-1, 0)


def adopted() -> list[int]:
    """Processes whose parents have died, where /proc can be read."""
    try:
        return [
            int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        ]
    except OSError:
        return []


def over(child: Child) -> bool:
    """Whether the process has ended, waited for or not."""
    return bool(select.select([child.watch], [], [], 0)[0])


def signals_stay_inside() -> bool:
    """Whether the kernel really keeps this process from signalling its parent.

    Without that, a signal to all would reach the whole machine.
    """
    try:
        os.kill(os.getppid(), 0)
    except PermissionError:
        return True
    return False
