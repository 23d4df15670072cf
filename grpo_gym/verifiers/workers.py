"""A small pool of warm worker processes, each call with a wall deadline.

A worker speaks JSON lines over its pipes, one answer for each request. It ends when its stdin ends, so it never
outlives the process that started it; a call that passes its deadline costs that worker (SIGKILL, respawn)
and nothing else.
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
    """The worker ended, or could not be started."""


class Worker:
    """One process. Not for two threads at once; the pool sees to that."""

    def __init__(self, module: str) -> None:
        root = str(Path(__file__).resolve().parents[2])
        paths = [root, *(path for path in sys.path if path)]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
            "OMP_NUM_THREADS": "1",
        }
        self.process = subprocess.Popen(
            # -P keeps the working directory, where anything may lie, off the path.
            [sys.executable, "-P", "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env=environment,
            start_new_session=True,  # Ctrl-C is for the parent
        )
        self.ready = False
        self.pending = b""

    def read_line(self, deadline: float) -> bytes | None:
        """The next line of output; None when the clock passes `deadline`."""
        assert self.process.stdout is not None
        descriptor = self.process.stdout.fileno()
        poll = select.poll()  # select() cannot watch descriptors above 1023
        poll.register(descriptor, select.POLLIN)
        while b"\n" not in self.pending:
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            if poll.poll(left * 1000):
                chunk = os.read(descriptor, 65536)
                if not chunk:
                    raise WorkerDied
                self.pending += chunk
        line, _, self.pending = self.pending.partition(b"\n")
        return line

    def call(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any] | None:
        """The answer to a request; None when it did not come in time.

        Raises:
            WorkerDied: the process ended, or never became ready.
        """
        if not self.ready:
            if self.read_line(time.monotonic() + START_S) is None:
                raise WorkerDied
            self.ready = True
        assert self.process.stdin is not None
        deadline = time.monotonic() + seconds
        try:
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
        except OSError as error:
            raise WorkerDied from error
        line = self.read_line(deadline)
        if line is None:
            return None
        answer: dict[str, Any] = json.loads(line)
        return answer

    def forget(self) -> None:
        """Close this process's ends of the pipes."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def kill(self) -> None:
        """End the process and reap it."""
        self.process.kill()
        self.process.wait()
        self.forget()


class Pool:
    """At most `size` workers, started on demand and kept warm. Any thread may call."""

    def __init__(self, module: str, size: int) -> None:
        self.module = module
        self.size = size
        self.free: list[Worker] = []
        self.all: set[Worker] = set()
        self.closed = False
        self.slots = threading.Semaphore(size)
        self.lock = threading.Lock()

    def start(self) -> Worker:
        """A fresh worker; it imports while nobody waits."""
        worker = Worker(self.module)
        with self.lock:
            self.all.add(worker)
        return worker

    def replace(self, worker: Worker) -> Worker | None:
        """Kill a worker and start another."""
        worker.kill()
        with self.lock:
            self.all.discard(worker)
        if self.closed:
            return None
        try:
            return self.start()
        except OSError:
            logger.exception("cannot start a %s process", self.module)
            return None

    def call(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any] | None:
        """The answer to a request; None when it did not come within `seconds` of a worker taking it.

        A worker that turns out to have died is replaced and the request is tried once more.

        Raises:
            WorkerDied: no worker could be started, or two died of this request.
        """
        with self.slots:
            with self.lock:
                if self.closed:
                    raise WorkerDied
                worker = self.free.pop() if self.free else None
            answered = False
            try:
                for attempt in range(2):
                    if worker is None:
                        try:
                            worker = self.start()
                        except OSError as error:
                            raise WorkerDied from error
                    try:
                        answer = worker.call(request, seconds)
                        answered = answer is not None
                        return answer
                    except WorkerDied:
                        if attempt:
                            raise
                        worker = self.replace(worker)
                raise WorkerDied
            finally:
                # Also on an interrupt: a worker that still owes an answer must not serve another call.
                if worker is not None and not answered:
                    worker = self.replace(worker)
                if worker is not None:
                    with self.lock:
                        self.free.append(worker)

    def close(self) -> None:
        """End every worker."""
        self.closed = True
        with self.lock:
            workers, self.all, self.free = self.all, set(), []
        for worker in workers:
            worker.kill()

    def forget(self) -> None:
        """Let go of the workers without ending them: after a fork they are the parent's."""
        for worker in self.all:
            worker.forget()


_pools: dict[str, Pool] = {}
_lock = threading.Lock()


def shared_pool(module: str) -> Pool:
    """This process's pool for a worker module: two workers, or one on a single core."""
    with _lock:
        if module not in _pools:
            _pools[module] = Pool(module, min(2, os.cpu_count() or 1))
        return _pools[module]


def close_pools() -> None:
    """End all workers of this process; later calls start fresh ones."""
    with _lock:
        pools = list(_pools.values())
        _pools.clear()
    for pool in pools:
        pool.close()


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    for pool in _pools.values():
        pool.forget()
    _pools.clear()


atexit.register(close_pools)
os.register_at_fork(after_in_child=_after_fork)
