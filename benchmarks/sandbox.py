"""Cost of a verdict on code: start-up of each back end, and many submissions one by one and together.

    python benchmarks/sandbox.py [--repeats 30]

The cases run in turn; milliseconds are medians (and the smallest) of the repeats. Prints one line of JSON
for each measurement.
"""

import argparse
import json
import statistics
import subprocess
import time
from collections.abc import Callable

from grpo_gym.sandbox import SAFE, probe, run
from grpo_gym.sandbox.server import base_python
from grpo_gym.verifiers.code import verify_asserts, verify_many

PROGRAM = "def total(n):\n    return sum(i * i % 7 for i in range(n))"
TESTS = ["assert total(3) == 5", "assert total(200_000) == 400_001"]
SUBMISSIONS = 64


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def bare() -> None:
    argv = [base_python(), "-I", "-S", "-c", "print(1)"]
    subprocess.run(argv, capture_output=True, check=True)


def start_up(repeats: int) -> None:
    calls: dict[str, Callable[[], object]] = {"python -I -S": bare}
    for name in SAFE:
        if probe(name) is None:
            calls[f"run, {name}"] = lambda name=name: run("print(1)", backend=name)  # type: ignore[misc]
    calls["verify_asserts"] = lambda: verify_asserts("def f(): return 1", "assert f() == 1")
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            taken[name].append(1000 * seconds(call))
    base = statistics.median(taken["python -I -S"])
    for name, values in taken.items():
        median = statistics.median(values)
        row = {"median_ms": round(median, 1), "least_ms": round(min(values), 1)}
        print(json.dumps({"case": name, **row, "times_bare": round(median / base, 2)}), flush=True)


def submissions(repeats: int) -> None:
    def grade(_: int) -> bool:
        return verify_asserts(PROGRAM, TESTS).success

    alone, together = [], []
    for _ in range(repeats):
        alone.append(seconds(lambda: [grade(n) for n in range(SUBMISSIONS)]))
        together.append(seconds(lambda: verify_many(grade, range(SUBMISSIONS), workers=2)))
    times = min(alone) / min(together)
    row = {"one_by_one_s": round(min(alone), 2), "two_workers_s": round(min(together), 2)}
    print(
        json.dumps({"case": f"{SUBMISSIONS} submissions", **row, "times_faster": round(times, 2)})
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=30)
    arguments = parser.parse_args()
    start_up(arguments.repeats)
    submissions(max(1, arguments.repeats // 10))
