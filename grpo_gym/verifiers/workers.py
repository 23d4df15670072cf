"""A small pool of warm worker processes, each call with a wall deadline.

A worker speaks JSON lines over its pipes, one answer for each request. It ends when its stdin ends,
so it never outlives the process that started it. A call that passes its deadline costs that worker
(SIGKILL, respawn) and nothing else.
"""

import atexit
import contextlib
import json
import logging
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

START_S = 60.0
"""How long a fresh worker may take to import what it needs, on a busy machine."""


class WorkerDied(Exception):
    """The worker ended in the middle of a request."""


class CannotStart(Exception):
    """No worker can be started; the message says how to find out why."""


class Worker:
    """One process. Not for two threads at once; the pool sees to that."""

    def __init__(self, module: str) -> None:
        self.module = module
        self.ready = False
        self.pending = b""
        root = str(Path(__file__).resolve().parents[2])
        # The parent's own search path: the package may be installed, or a bare checkout.
        paths = dict.fromkeys([*(str(Path(path).absolute()) for path in sys.path if path), root])
        # -P keeps the working directory, where anything may lie, off the path.
        command = [sys.executable, "-P", "-W", "ignore", "-m", module]
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
                start_new_session=True,  # Ctrl-C is for the parent
            )
        except OSError as error:
            raise CannotStart(f"cannot start {command}: {error}") from error
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.requests = self.process.stdin.fileno()
        self.answers = self.process.stdout.fileno()
        os.set_blocking(self.requests, False)

    def write(self, data: bytes, deadline: float) -> bool:
        """Send all of `data`; False when the clock passes `deadline` first."""
        while data:
            if not wait_for(self.requests, select.POLLOUT, deadline):
                return False
            with contextlib.suppress(BlockingIOError):
                data = data[os.write(self.requests, data) :]
        return True

    def read_line(self, deadline: float) -> bytes | None:
        """The next line of output; None when the clock passes `deadline` first."""
        while b"\n" not in self.pending:
            if not wait_for(self.answers, select.POLLIN, deadline):
                return None
            chunk = os.read(self.answers, 65536)
            if not chunk:
                raise WorkerDied
            self.pending += chunk
        line, _, self.pending = self.pending.partition(b"\n")
        return line

    def call(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any] | None:
        """The answer to a request; None when it did not come in time.

        Raises:
            CannotStart: the process never became ready.
            WorkerDied: the process ended.
        """
        if not self.ready:
            try:
                greeting = self.read_line(time.monotonic() + START_S)
            except WorkerDied:
                greeting = None
            if greeting is None:
                raise CannotStart(
                    f"the {self.module} process did not start; run `{sys.executable} -m {self.module}`"
                    " and see why"
                )
            self.ready = True
        deadline = time.monotonic() + seconds
        try:
            sent = self.write(json.dumps(request).encode() + b"\n", deadline)
        except OSError as error:
            raise WorkerDied from error
        line = self.read_line(deadline) if sent else None
        if line is None:
            return None
        answer: dict[str, Any] = json.loads(line)
        return answer

    def kill(self) -> None:
        """End the process, reap it and close the pipes."""
        self.process.kill()
        self.process.wait()
        self.let_go()

    def let_go(self) -> None:
        """Close this process's ends of the pipes."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


def wait_for(descriptor: int, event: int, deadline: float) -> bool:
    """Whether a descriptor is ready before the clock passes `deadline`."""
    poll = select.poll()  # select() cannot watch descriptors above 1023
    poll.register(descriptor, event)
    left = deadline - time.monotonic()
    return left > 0 and bool(poll.poll(left * 1000))


class Pool:
    """At most `size` workers, started on demand and kept warm. Any thread may call."""

    def __init__(self, module: str, size: int) -> None:
        self.module = module
        self.slots = threading.Semaphore(size)
        self.lock = threading.Lock()
        self.free: list[Worker] = []
        self.all: set[Worker] = set()
        self.closed = False

    def take(self) -> Worker:
        """A free worker, or a fresh one."""
        with self.lock:
            if self.closed:
                raise CannotStart("the pool of workers is closed")
            if self.free:
                return self.free.pop()
            worker = Worker(self.module)
            self.all.add(worker)
            return worker

    def drop(self, worker: Worker) -> None:
        """Kill a worker that may not be used again."""
        worker.kill()
        with self.lock:
            self.all.discard(worker)

    def give_back(self, worker: Worker) -> None:
        """Put a worker back for the next call."""
        with self.lock:
            if not self.closed:
                self.free.append(worker)
                return
        self.drop(worker)

    def call(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any] | None:
        """The answer to a request; None when it did not come within `seconds` of a worker taking it.

        A worker may have been killed while it waited, so the request is tried a second time.

        Raises:
            CannotStart: there is no worker.
            WorkerDied: two workers died of this request.
        """
        with self.slots:
            try:
                return self.attempt(request, seconds)
            except WorkerDied:
                return self.attempt(request, seconds)

    def attempt(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any] | None:
        """One try at a request."""
        worker = self.take()
        answer = None
        try:
            answer = worker.call(request, seconds)
            return answer
        finally:
            # Also on an interrupt: a worker that still owes an answer must not serve another call.
            if answer is not None:
                self.give_back(worker)
            else:
                self.drop(worker)
                with contextlib.suppress(CannotStart):
                    self.give_back(self.take())  # the next one imports while nobody waits

    def close(self) -> None:
        """End every worker; those at work are reaped by the threads that wait for them."""
        with self.lock:
            self.closed = True
            free, self.free = self.free, []
            busy = self.all - set(free)
        for worker in busy:
            worker.process.kill()
        for worker in free:
            self.drop(worker)

    def disown(self) -> None:
        """Let go of the workers without ending them: after a fork they are the parent's."""
        for worker in self.all:
            worker.let_go()
            worker.process.returncode = 0  # not this process's child: nothing to wait for


_pools: dict[str, Pool] = {}
_lock = threading.Lock()


def shared_pool(module: str) -> Pool:
    """This process's pool for a worker module: two workers, or one on a single core."""
    with _lock:
        if module not in _pools:
            _pools[module] = Pool(module, min(2, os.cpu_count() or 1))
        return _pools[module]


def close_pools() -> None:
    """End all workers of this process; a later call starts fresh ones."""
    with _lock:
        pools = list(_pools.values())
        _pools.clear()
    for pool in pools:
        pool.close()


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    for pool in _pools.values():
        pool.disown()
    _pools.clear()


atexit.register(close_pools)
os.register_at_fork(after_in_child=_after_fork)
