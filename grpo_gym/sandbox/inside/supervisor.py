"""One run: starts the program and perhaps its judge, watches them, kills all that they started, reports.

The supervisor is a process of its own for every run. It reads the program first and forks; only then does
it read the tests, so that the program's memory never held them.
"""

import os
import select
import signal
import socket
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import identity, judge, kernel, landlock, program, scratch, wire
from .child import Body, Child, Refused, await_confinement, over, start
from .confine import MEBIBYTE, Host, hide

PROGRAM, JUDGE = ("stdout", "stderr"), ("verdict", "notes")
PIECE = 1 << 16
DISK_CHECK_S = 0.05
VERDICT_BYTES = 8 << 20


@dataclass
class Run:
    """What is known of a run so far."""

    limits: dict[str, Any]
    started: float
    output: dict[str, bytearray] = field(default_factory=dict)
    ended: str | None = None


def supervise(host: Host, source: int, target: int, parent: Path) -> None:
    """Serve one request, read from `source`, and answer on `target`."""
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    hide(host)
    if host.scoped:
        landlock.enforce(landlock.ruleset(host.abi, None, signals=True))
    request = wire.receive(source)
    uids = [identity.own_uid(2 * os.getpid() + side, host.alone) for side in (0, 1)]
    folder = parent / scratch.new_name()
    children: list[Child] = []
    try:
        scratch.make(folder, request["files"], uids[0])
        reply = play(host, request, source, folder, uids, children)
    except (Refused, OSError) as error:
        reply = {"refused": str(error)}
    try:
        end_all(host, children)
        with suppress(wire.Closed):  # nobody may wait for the answer any more
            wire.send(target, reply)
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
    stdin = readable_file(request["stdin"])
    if request["judged"]:
        ours, theirs = (end.detach() for end in socket.socketpair())
        body = Body(PROGRAM, (stdin, theirs), lambda: judge.answer_calls(3, request["source"]))
        children.append(start(host, limits, folder, uids[0], body))
        tests = wire.receive(source)  # only now, so that the program's process has never held them
        body = Body(
            JUDGE, (os.open(os.devnull, os.O_RDONLY), ours), lambda: judge.judge(3, 1, tests)
        )
        children.append(start(host, limits, None, uids[1], body))
    else:
        body = Body(PROGRAM, (stdin,), lambda: program.run(request["source"], request["argv"]))
        children.append(start(host, limits, folder, uids[0], body))
    for child in children:
        await_confinement(child)
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
    rest = memoryview(wire.encoded(text))
    while rest:
        rest = rest[os.write(fd, rest) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


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
            if scratch.bytes_used(folder, disk) > disk:
                run.ended = "disk"
                return
            check = time.monotonic() + DISK_CHECK_S
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
    everyone = host.scoped and signals_stay_inside()
    if everyone:
        # Reaches exactly the processes that this run started, all of them at one instant.
        with suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
    for child in children:
        if child.status is None:
            _, child.status, usage = os.wait4(child.pid, 0)
            child.cpu_s = usage.ru_utime + usage.ru_stime
    while not everyone and (orphans := adopted()):
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


def signals_stay_inside() -> bool:
    """Whether the kernel really keeps this process from signalling its parent.

    Without that, a signal to all would reach the whole machine.
    """
    try:
        os.kill(os.getppid(), 0)
    except PermissionError:
        return True
    return False
