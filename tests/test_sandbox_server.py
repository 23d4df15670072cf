"""The warm server of a sandbox: what becomes of it and its runs when processes die or steps fail."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from grpo_gym.errors import UsageError
from grpo_gym.sandbox import Limits, SandboxError, backends, judge, run, server
from grpo_gym.sandbox.warm import Warm
from tests.sandboxes import QUICK, landlock_here, request, started_by


@pytest.fixture
def warm() -> Iterator[Warm]:
    warm = Warm("landlock")
    yield warm
    warm.stop()


@landlock_here
def test_a_server_that_was_killed_is_started_again(warm: Warm) -> None:
    assert warm.exchange([request("print(1)")], 3.0)
    assert warm.process
    warm.process.kill()
    warm.process.wait()
    reply = warm.exchange([request("print(2)")], 3.0)

    assert reply
    assert reply["stdout"] == "2\n"


@landlock_here
def test_a_server_that_does_not_answer_is_killed_and_started_again(
    warm: Warm, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert warm.exchange([request("print(1)")], 3.0)
    stuck = warm.process
    assert stuck
    os.kill(stuck.pid, signal.SIGSTOP)
    monkeypatch.setattr("grpo_gym.sandbox.warm.GRACE_S", 0.5)

    assert warm.exchange([request("print(2)")], 1.0) is None
    assert stuck.returncode == -signal.SIGKILL

    monkeypatch.undo()
    reply = warm.exchange([request("print(3)")], 3.0)
    assert reply
    assert reply["stdout"] == "3\n"


@landlock_here
def test_a_run_ends_when_its_server_is_stopped(warm: Warm) -> None:
    answers: list[Any] = []

    def wait() -> None:
        answers.append(warm.exchange([request("while True: pass", 20.0)], 20.0))

    thread = threading.Thread(target=wait)
    thread.start()
    runs: set[int] = set()
    deadline = time.monotonic() + 20
    while len(runs) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
        runs = started_by(warm.process.pid) if warm.process else set()
    assert warm.process
    # The supervisor and the program go too, as the kernel would have it if short of memory.
    for pid in [warm.process.pid, *runs]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    thread.join(15)

    assert answers == [None]
    assert len(runs) == 2


@landlock_here
def test_a_forked_process_gets_a_server_of_its_own() -> None:
    assert run("print(1)", limits=QUICK).ok
    code = (
        "import os\nfrom grpo_gym.sandbox import run\nassert run('print(1)').ok\n"
        "pid = os.fork()\nif pid == 0:\n    os._exit(0 if run('print(2)').stdout == '2\\n' else 3)\n"
        "assert os.waitpid(pid, 0)[1] == 0\nassert run('print(3)').ok\n"
    )
    subprocess.run(
        [sys.executable, "-c", code], check=True, timeout=60, env={**os.environ, "PYTHONPATH": "."}
    )


@landlock_here
def test_a_low_limit_of_descriptors_suffices() -> None:
    code = (
        "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))\n"
        "from grpo_gym.sandbox import run\nprint(run('import decimal, sqlite3').status)"
    )
    environment = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment)
    assert said.stdout == b"ok\n", said.stderr


@landlock_here
def test_signals_that_the_caller_ignores_are_not_ignored_inside() -> None:
    code = (
        "import signal, sys\nfrom grpo_gym.sandbox import Limits, judge, run\n"
        "for name in ('SIGCHLD', 'SIGINT', 'SIGTERM', 'SIGXCPU'):\n"
        "    signal.signal(getattr(signal, name), signal.SIG_IGN)\n"
        "print(run('import os; os.kill(os.getpid(), 15)').exit_code)\n"
        "print('KeyboardInterrupt' in run('import signal; signal.raise_signal(2)').stderr)\n"
        "print(run('while True: pass', limits=Limits(wall_s=60, cpu_s=1)).status)\n"
        "print(judge('def f(): return 1', ['assert f() == 1']).success)\n"
    )
    environment = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environment
    )

    assert said.stdout.split() == ["-15", "True", "timeout", "True"], said.stderr


def descriptors(limit: int = 200) -> str:
    """A program that names the descriptors that it has."""
    return (
        f"import os\nfor fd in range({limit}):\n"
        "    try: os.fstat(fd); print(fd)\n    except OSError: pass"
    )


@landlock_here
def test_a_program_inherits_three_descriptors_and_a_small_environment() -> None:
    assert run(descriptors(), limits=QUICK).stdout.split() == ["0", "1", "2"]
    judged = "found = []\n" + descriptors().replace("print(fd)", "found.append(fd)")
    verdict = judge(f"{judged}\ndef f(): return found", ["assert f() == [0, 1, 2, 3], f()"])
    assert verdict.success, verdict
    found = run("import os; print(*sorted(os.environ))", limits=QUICK).stdout.split()
    assert found == ["HOME", "LANG", "PATH", "PYTHONHASHSEED", "TMPDIR"]
    command = ["sh", "-c", "env | cut -d= -f1 | sort"]
    said = run(command, limits=Limits(wall_s=5.0, memory_mb=256, processes=5)).stdout.split()
    assert set(said) - {"PWD", "_", "SHLVL", "OLDPWD"} == set(found)


@landlock_here
@pytest.mark.parametrize("abi", [1, 3, 4, 5])
def test_older_kernels_are_confined_as_well(abi: int, monkeypatch: pytest.MonkeyPatch) -> None:
    older = f"from inside import landlock; landlock.abi = lambda: {abi}; from inside.serve"
    monkeypatch.setattr(server, "BOOT", server.BOOT.replace("from inside.serve", older))
    warm = Warm("landlock")
    try:
        backends.check("landlock", warm)
        attacks = {
            "kill": "os.kill(os.getppid(), 9)",
            "kill all": "os.kill(-1, 9)",
            "thread kill": "ctypes.CDLL(None).syscall(200, os.getppid(), 9) and 1 / 0",
            "truncate": "os.truncate(os.__file__, 0)",
            "fork": "os.fork()",
        }
        for name, statement in attacks.items():
            source = f"import os, ctypes\ntry: {statement}\nexcept Exception: print('denied')"
            reply = warm.exchange([request(source)], 3.0)
            assert reply, name
            assert reply["stdout"] == "denied\n", name
        reply = warm.exchange([request("import os, signal; os.kill(os.getpid(), 15)")], 3.0)
        assert reply
        assert reply["status"] == 15
        reply = warm.exchange([request("print(1)", processes=2)], 3.0)
        assert reply
        assert "6.12" in reply["refused"]
    finally:
        warm.stop()


@landlock_here
def test_a_failing_step_of_the_confinement_stops_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = "from inside import seccomp; seccomp.install = lambda code: 1 / 0; from inside.serve"
    monkeypatch.setattr(server, "BOOT", server.BOOT.replace("from inside.serve", broken))
    warm = Warm("landlock")
    try:
        reply = warm.exchange([request("print(1)")], 3.0)
        assert reply == {"refused": "ZeroDivisionError: division by zero"}
    finally:
        warm.stop()


@landlock_here
def test_a_server_that_does_not_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "BOOT", "raise OSError('no such kernel')")
    with pytest.raises(SandboxError, match="no such kernel"):
        Warm("landlock").exchange([request("print(1)")], 3.0)


@landlock_here
def test_a_server_that_hangs_while_it_starts_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "BOOT", "import time; time.sleep(600)")
    monkeypatch.setattr("grpo_gym.sandbox.warm.GRACE_S", 1.0)
    with pytest.raises(SandboxError, match="did not start"):
        Warm("landlock").exchange([request("print(1)")], 3.0)


@landlock_here
def test_too_much_to_send_is_a_mistake(warm: Warm) -> None:
    with pytest.raises(UsageError, match="64 MiB"):
        warm.exchange([request("x" * (65 << 20))], 3.0)
