"""Worker processes: a hang costs one of them its life, and nobody else anything."""

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from grpo_gym.verifiers import math as math_verifier
from grpo_gym.verifiers import workers
from grpo_gym.verifiers.math import WORKER, verify_math
from grpo_gym.verifiers.worker import MEMORY_BYTES, SPARE_S
from grpo_gym.verifiers.workers import CannotStart, Pool, WorkerDied, close_pools
from tests.commands import ended

HANG = {
    "kind": "math",
    "answer": r"\sum_{k=1}^{3} 5^{5^{5^{5^5}}}",
    "reference": "5",
    "seconds": 30.0,
}
QUICK = {"kind": "math", "answer": "x+1", "reference": "1+x", "seconds": 30.0}


@pytest.fixture
def pool() -> Iterator[Pool]:
    pool = Pool(WORKER, 2)
    yield pool
    pool.close()


def pids(pool: Pool) -> set[int]:
    return {worker.process.pid for worker in pool.all}


def alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def gone_within(pid: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while alive(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def run_script(tmp_path: Path, text: str) -> subprocess.Popen[str]:
    """A program without a __main__ guard, started in another directory."""
    script = tmp_path / "program.py"
    script.write_text(text)
    paths = os.pathsep.join(path for path in sys.path if path)
    return subprocess.Popen(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_hang_costs_its_deadline_and_the_next_call_is_right(pool: Pool) -> None:
    assert pool.call(QUICK, 5.0) == {"verdict": True}
    start = time.monotonic()
    assert pool.call(HANG, 0.5) is None
    assert 0.5 <= time.monotonic() - start < 2.0
    assert pool.call(QUICK, 5.0) == {"verdict": True}


def test_the_verifier_scores_a_hang_0_and_says_that_it_timed_out() -> None:
    score = verify_math(rf"\boxed{{{HANG['answer']}}}", "5", deadline_s=0.3)
    assert score.value == 0.0
    assert score.components == {"correct": 0.0, "answered": 1.0, "timed_out": 1.0}


def test_eight_threads_are_not_held_up_by_a_hang_beyond_one_worker(pool: Pool) -> None:
    hung = threading.Thread(target=pool.call, args=(HANG, 4.0))
    pool.call(QUICK, 5.0)
    hung.start()
    time.sleep(0.1)
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: pool.call(QUICK, 5.0), range(40)))
    assert answers == [{"verdict": True}] * 40
    assert hung.is_alive()
    hung.join()
    assert len(pool.all) <= 2


def test_threads_get_the_verdicts_of_their_own_answers() -> None:
    def graded(number: int) -> bool:
        return verify_math(rf"\boxed{{{number}+x}}", f"x+{number % 3}").success

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(graded, range(60))) == [number < 3 for number in range(60)]


def test_a_killed_worker_is_replaced_unnoticed(pool: Pool) -> None:
    pool.call(QUICK, 5.0)
    (pid,) = pids(pool)
    os.kill(pid, signal.SIGKILL)
    assert pool.call(QUICK, 5.0) == {"verdict": True}
    assert pid not in pids(pool)


def test_a_request_that_kills_its_worker_twice_is_given_up(pool: Pool) -> None:
    # The worker's own alarm stands in for a crash: it ends the process in the middle of the request.
    deadly = {**HANG, "seconds": -SPARE_S + 0.05}
    with pytest.raises(WorkerDied):
        pool.call(deadly, 30.0)
    assert pool.call(QUICK, 5.0) == {"verdict": True}


def test_an_interrupted_call_leaves_no_worker_that_owes_an_answer(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool.call(QUICK, 5.0)
    (pid,) = pids(pool)
    with monkeypatch.context() as patch:

        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        patch.setattr(workers.Worker, "read_line", interrupt)
        with pytest.raises(KeyboardInterrupt):
            pool.call(QUICK, 5.0)
    assert gone_within(pid, 1.0)
    assert pool.call(QUICK, 5.0) == {"verdict": True}


def test_close_leaves_no_process_even_one_at_work(pool: Pool) -> None:
    def hang() -> None:
        with pytest.raises((WorkerDied, CannotStart)):
            pool.call(HANG, 30.0)

    pool.call(QUICK, 5.0)
    busy = threading.Thread(target=hang)
    busy.start()
    time.sleep(0.2)
    pool.call(QUICK, 5.0)
    before = pids(pool)
    assert len(before) == 2
    pool.close()
    busy.join(5.0)
    assert not busy.is_alive()
    assert not any(Path(f"/proc/{pid}").exists() for pid in before)
    with pytest.raises(CannotStart):
        pool.call(QUICK, 5.0)


def test_after_close_pools_a_call_starts_afresh() -> None:
    assert verify_math(r"\boxed{x+1}", "1+x").success
    close_pools()
    assert verify_math(r"\boxed{x+1}", "1+x").success


def test_a_worker_has_bounded_memory_and_loads_no_torch(pool: Pool) -> None:
    pool.call(QUICK, 5.0)
    (pid,) = pids(pool)
    assert resource.prlimit(pid, resource.RLIMIT_AS)[0] == MEMORY_BYTES
    maps = Path(f"/proc/{pid}/maps").read_text()
    assert "torch" not in maps
    assert "numpy" not in maps


def test_without_workers_the_verdict_is_nan_not_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(math_verifier, "WORKER", "grpo_gym.verifiers.no_such_module")
    score = verify_math(r"\boxed{x+1}", "1+x")
    assert score.value != score.value
    assert not score.success
    assert verify_math(r"\boxed{5}", "5").value == 1.0
    close_pools()


USE = """
import os, sys
from grpo_gym.verifiers import workers
from grpo_gym.verifiers.math import verify_math
assert verify_math(r"\\boxed{x+1}", "1+x").success
(worker,) = workers.shared_pool("grpo_gym.verifiers.worker").all
print(worker.process.pid, flush=True)
"""


def test_workers_end_with_a_program_that_has_no_main_guard(tmp_path: Path) -> None:
    with run_script(tmp_path, USE) as program:
        output = ended(program)[0]
    assert program.returncode == 0
    assert gone_within(int(output), 2.0)


def test_idle_workers_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    with run_script(tmp_path, USE + "import time; time.sleep(60)") as program:
        assert program.stdout is not None
        pid = int(program.stdout.readline())
        assert alive(pid)
        program.kill()
    assert gone_within(pid, 3.0)


def test_a_worker_at_work_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    hang = f"verify_math(r'\\boxed{{{HANG['answer']}}}', '5', deadline_s=1.0)"
    with run_script(tmp_path, USE + hang) as program:
        assert program.stdout is not None
        pid = int(program.stdout.readline())
        time.sleep(0.3)
        assert alive(pid)
        program.kill()
    assert gone_within(pid, 1.0 + SPARE_S + 2.0)


FORK = """
child = os.fork()
assert verify_math(r"\\boxed{x+2}", "2+x").success
if child == 0:
    (own,) = workers.shared_pool("grpo_gym.verifiers.worker").all
    assert own.process.pid != worker.process.pid
    os._exit(7)
assert os.waitpid(child, 0)[1] >> 8 == 7
assert verify_math(r"\\boxed{x+3}", "3+x").success
assert workers.shared_pool("grpo_gym.verifiers.worker").all == {worker}
"""


def test_a_forked_child_uses_workers_of_its_own(tmp_path: Path) -> None:
    with run_script(tmp_path, USE + FORK) as program:
        output = ended(program)[0]
    assert program.returncode == 0
    assert gone_within(int(output), 2.0)


def test_a_module_lying_in_the_working_directory_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sympy.py").write_text("raise SystemExit('wrong module')")
    monkeypatch.chdir(tmp_path)
    pool = Pool(WORKER, 1)
    assert pool.call(QUICK, 5.0) == {"verdict": True}
    pool.close()
