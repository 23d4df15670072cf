"""Cost of a verdict on code: start-up against a bare Python, and many submissions one by one and together.

    python benchmarks/sandbox.py [--repeats 30]

The cases take turns in one run. Start-up is compared in processor seconds of all processes that take part,
this one too; two workers in wall time, beside two plain processes at the same moments, which is what the
machine has to give just then. Prints one line of JSON for each case.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from grpo_gym.sandbox import SAFE, backend, probe, run
from grpo_gym.sandbox.server import Server, base_python
from grpo_gym.sandbox.warm import Warm
from grpo_gym.verifiers.code import verify_asserts, verify_many

RUNS = 20
"""Runs between two readings of a server's clock, which goes in hundredths of a second."""

BARE = [base_python(), "-I", "-S", "-c"]
PROGRAM = "def total(n):\n    return sum(i * i % 7 for i in range(n))"
TESTS = ["assert total(3) == 5", "assert total(200_000) == 400_001"]
SUBMISSIONS = 64
BURN = "sum(i * i % 7 for i in range(5_000_000))"


def bare() -> None:
    subprocess.run([*BARE, "print(1)"], capture_output=True, check=True)


def cpu_s(servers: list[Server]) -> float:
    """Processor seconds so far: of this process, of its children, and of servers with their children."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    total = sum(usage.ru_utime + usage.ru_stime for usage in usages)
    for server in servers:
        if isinstance(server, Warm) and server.process:
            text = Path(f"/proc/{server.process.pid}/stat").read_text()
            ticks = map(int, text.rpartition(")")[2].split()[11:15])
            total += sum(ticks) / os.sysconf("SC_CLK_TCK")
    return total


def start_up(repeats: int) -> None:
    names = [name for name in SAFE if probe(name) is None]
    calls: dict[str, Callable[[], object]] = {"python -I -S": bare}
    for name in names:
        calls[f"run, {name}"] = lambda name=name: run("print(1)", backend=name)  # type: ignore[misc]
    calls["verify_asserts"] = lambda: verify_asserts("def f(): return 1", "assert f() == 1")
    servers = [backend(name) for name in names]
    cpu, wall = dict.fromkeys(calls, 0.0), dict.fromkeys(calls, 0.0)
    for _ in range(repeats):
        for name, call in calls.items():
            before, start = cpu_s(servers), time.perf_counter()
            for _ in range(RUNS):
                call()
            wall[name] += time.perf_counter() - start
            cpu[name] += cpu_s(servers) - before
    for name in calls:
        each = 1000 / (repeats * RUNS)
        row = {"cpu_ms": round(cpu[name] * each, 2), "wall_ms": round(wall[name] * each, 2)}
        times = round(cpu[name] / cpu["python -I -S"], 2)
        print(json.dumps({"case": name, **row, "times_bare": times}), flush=True)


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def burn(processes: int) -> None:
    started = [subprocess.Popen([*BARE, BURN]) for _ in range(processes)]
    for process in started:
        process.wait()


def submissions(repeats: int) -> None:
    def grade(_: int) -> bool:
        return verify_asserts(PROGRAM, TESTS).success

    alone, together, ratios, ceilings = [], [], [], []
    for _ in range(repeats):
        alone.append(seconds(lambda: [grade(n) for n in range(SUBMISSIONS)]))
        together.append(seconds(lambda: verify_many(grade, range(SUBMISSIONS), workers=2)))
        ratios.append(alone[-1] / together[-1])
        ceilings.append(2 * seconds(lambda: burn(1)) / seconds(lambda: burn(2)))
    row = {
        "one_by_one_s": round(statistics.median(alone), 2),
        "two_workers_s": round(statistics.median(together), 2),
        "times_faster": round(statistics.median(ratios), 2),
        "two_plain_processes": round(statistics.median(ceilings), 2),
    }
    print(json.dumps({"case": f"{SUBMISSIONS} submissions", **row}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=30)
    arguments = parser.parse_args()
    start_up(arguments.repeats)
    submissions(max(3, arguments.repeats // 4))
