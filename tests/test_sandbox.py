"""What a sandbox promises to whoever calls it."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from grpo_gym.errors import UsageError
from grpo_gym.sandbox import SAFE, Limits, SandboxError, backends, probe, run
from grpo_gym.sandbox.inside import landlock, scratch, seccomp
from grpo_gym.sandbox.run import outcome
from grpo_gym.sandbox.warm import Warm
from tests.sandboxes import BACKENDS, QUICK, landlock_here, own_or_orphaned


@pytest.mark.skipif(
    not landlock.abi() or not seccomp.supported(), reason="no Landlock in this kernel"
)
def test_landlock_works_wherever_the_kernel_has_it() -> None:
    assert probe("landlock") is None


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_ordinary_program_runs(backend: str) -> None:
    source = (
        "import asyncio, json, sqlite3, subprocess, sys, tempfile, threading\n"
        "async def f(): await asyncio.sleep(0.01); return 1\n"
        "thread = threading.Thread(target=print, args=('thread',)); thread.start(); thread.join()\n"
        "with tempfile.TemporaryFile('w+') as t: t.write('x'); t.seek(0); print(t.read())\n"
        "open('own', 'w').write('mine'); print(open('own').read(), open('given/a.txt').read())\n"
        "print(asyncio.run(f()), input(), sys.stdin.read().split(), __name__)\n"
        "print('bad', file=sys.stderr)"
    )
    result = run(
        source,
        stdin="line\nmore words\n",
        files={"given/a.txt": "gift"},
        limits=QUICK,
        backend=backend,
    )

    assert result.ok, result
    assert result.stdout.split("\n")[:3] == ["thread", "x", "mine gift"]
    assert result.stdout.split("\n")[3] == "1 line ['more', 'words'] __main__"
    assert result.stderr == "bad\n"
    assert 0 < result.seconds < 10


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_command_runs(backend: str) -> None:
    limits = Limits(wall_s=10.0, memory_mb=256, processes=2)
    result = run(["sh", "-c", "cat; echo $0; exit 7"], stdin="in\n", limits=limits, backend=backend)

    assert (result.status, result.exit_code) == ("exit", 7)
    assert result.stdout == "in\nsh\n"


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_program_may_have_children_up_to_its_limit(backend: str) -> None:
    limits = Limits(wall_s=10.0, memory_mb=256, processes=4)
    source = (
        "import subprocess; print(subprocess.run(['echo', 'child'], capture_output=True).stdout)"
    )

    assert run(source, limits=limits, backend=backend).stdout == "b'child\\n'\n"


DAEMON = """
import os, signal, time
for s in range(1, 65):
    try: signal.signal(s, signal.SIG_IGN)
    except (OSError, ValueError): pass
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(600)
        os._exit(0)
print("left")
"""
BOMB = """
import json
import os
while True:
    try: os.fork()
    except OSError: pass
"""


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("source", "status", "wall_s"), [(DAEMON, "ok", 10.0), (BOMB, "timeout", 1.0)]
)
def test_no_process_outlives_its_run(source: str, status: str, wall_s: float, backend: str) -> None:
    run("print()", backend=backend, limits=QUICK)
    time.sleep(0.3)
    before = own_or_orphaned()
    limits = Limits(wall_s=wall_s, cpu_s=2, memory_mb=256, processes=8)

    result = run(source, limits=limits, backend=backend)

    assert result.status == status, result
    deadline = time.monotonic() + 20  # orphans of other tests go as well
    while (left := own_or_orphaned() - before) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left


@pytest.mark.parametrize("backend", BACKENDS)
def test_runs_at_the_same_time_do_not_meet(backend: str) -> None:
    source = (
        "import os, time\nopen('mine', 'w').write('x')\n"
        "try: os.kill(-1, 9)\nexcept OSError: pass\n"
        "time.sleep(0.3); print(os.listdir('.'))"
    )
    limits = Limits(wall_s=20.0, memory_mb=256)
    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(lambda _: run(source, limits=limits, backend=backend), range(3)))

    assert [result.stdout for result in results] == ["['mine']\n"] * 3, results


@pytest.mark.parametrize("backend", BACKENDS)
def test_packages_come_only_from_the_folders_that_are_named(backend: str, tmp_path: Path) -> None:
    (tmp_path / "given_module.py").write_text("VALUE = 5")
    for folder in (tmp_path, *tmp_path.parents[:-2]):
        folder.chmod(folder.stat().st_mode | 0o055)
    source = "import given_module; print(given_module.VALUE)"

    assert run(source, backend=backend, paths=[str(tmp_path)], limits=QUICK).stdout == "5\n"
    assert "ModuleNotFoundError" in run(source, backend=backend, limits=QUICK).stderr


@pytest.mark.parametrize(
    "change",
    [
        {"wall_s": 0},
        {"wall_s": -1},
        {"wall_s": float("nan")},
        {"wall_s": float("inf")},
        {"wall_s": "5"},
        {"processes": 0},
        {"processes": 1.5},
        {"processes": True},
        {"memory_mb": 8},
        {"output_bytes": -5},
    ],
)
def test_a_limit_that_is_none_is_a_mistake(change: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(change))):
        Limits(**change)


@pytest.mark.parametrize("name", ["/etc/x", "../x", "a/../../x", "", "a\0b"])
def test_a_file_outside_the_folder_is_a_mistake(name: str) -> None:
    with pytest.raises(UsageError, match="relative path"):
        run("", files={name: ""})


def test_an_empty_command_or_an_unknown_back_end_is_a_mistake() -> None:
    with pytest.raises(UsageError, match="at least one word"):
        run([])
    with pytest.raises(UsageError, match="choose auto, landlock"):
        run("", backend="safe")


def test_unsafe_is_never_chosen_by_itself() -> None:
    assert "unsafe" not in SAFE
    assert run("print(1)", backend="unsafe", limits=QUICK).stdout == "1\n"


class Leaky:
    """A server that runs what it is given with nothing around it."""

    def __init__(self, answer: dict[str, Any] | None) -> None:
        self.answer = answer

    def exchange(self, messages: Any, wall_s: float) -> dict[str, Any] | None:
        return self.answer


@pytest.mark.parametrize(
    "answer",
    [
        None,
        {"refused": "no"},
        {"stdout": "open\nsilent\nkept\n", "stderr": "", "status": 0},
        {"stdout": "closed\nnetwork\nkept\n", "stderr": "", "status": 0},
        {"stdout": "closed\nsilent\nwritten\n", "stderr": "", "status": 0},
        {"stdout": "", "stderr": "", "status": 0},
        {"stdout": "closed\nsilent\nkept\n", "stderr": "", "status": 9},
    ],
)
def test_a_sandbox_that_does_not_hold_is_not_used(answer: dict[str, Any] | None) -> None:
    with pytest.raises(SandboxError):
        backends.check("leaky", Leaky(answer))


def test_limits_alone_do_not_pass_for_a_sandbox() -> None:
    warm = Warm("none")
    try:
        with pytest.raises(SandboxError, match="not confined"):
            backends.check("unsafe", warm)
    finally:
        warm.stop()


def test_the_size_of_a_folder_is_known_in_time_whatever_its_shape(tmp_path: Path) -> None:
    for name in ("a", "a/b", "c"):
        (tmp_path / name).mkdir()
    (tmp_path / "a/b/file").write_bytes(b"x" * 50_000)
    used = scratch.bytes_used(tmp_path, 1 << 20)
    assert 53_000 <= used <= 80_000
    assert scratch.bytes_used(tmp_path, 10_000) > 10_000

    deep = tmp_path / "/".join("d" * (scratch.DEEPEST - 1))
    deep.mkdir(parents=True)
    assert scratch.bytes_used(tmp_path, 1 << 30) <= 1 << 30
    (deep / "d/d").mkdir(parents=True)
    assert scratch.bytes_used(tmp_path, 1 << 30) > 1 << 30


def test_a_folder_of_any_shape_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    here = Path.cwd()
    try:
        os.chdir(folder)
        for _ in range(300):
            os.mkdir("x" * 100)  # noqa: PTH102
            os.chdir("x" * 100)
    finally:
        os.chdir(here)
    (folder / "closed").mkdir()
    (folder / "closed" / "file").write_text("x")
    (folder / "closed").chmod(0)
    (folder / "link").symlink_to(tmp_path)
    (tmp_path / "kept").write_text("x")

    scratch.remove(folder)

    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


@pytest.mark.parametrize("backend", [*BACKENDS, "unsafe"])
@pytest.mark.parametrize("end", ["exit(0)", "os._exit(0)", "os.kill(os.getpid(), 9)"])
def test_nothing_is_left_behind_however_the_caller_ends(
    end: str, backend: str, tmp_path: Path
) -> None:
    for folder in (tmp_path, *tmp_path.parents[:-2]):
        folder.chmod(folder.stat().st_mode | 0o055)
    code = (
        "import os\nfrom grpo_gym.sandbox import run\n"
        f"assert run(\"open('f', 'w').write('x')\", backend={backend!r}).ok\n{end}"
    )
    environment = {**os.environ, "PYTHONPATH": ":".join(sys.path), "TMPDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], timeout=60, env=environment)

    deadline = time.monotonic() + 5
    while list(tmp_path.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not list(tmp_path.iterdir())


@landlock_here
def test_odd_text_goes_in_and_comes_out() -> None:
    result = run("import sys; print(ascii(sys.stdin.read()))", stdin="\udc80\u00e9", limits=QUICK)
    assert result.stdout == "'\\udc80\\xe9'\n" or result.status == "exit"
    assert run("print('\ud800')", limits=QUICK).status == "exit"
    assert run("print(1)\0", limits=QUICK).status == "exit"
    assert run("(" * 100_000, limits=QUICK).status == "exit"
    assert run(["echo", "a\0b"], limits=QUICK).exit_code == 127


@pytest.mark.parametrize(
    ("ended", "wait_status", "status"),
    [
        ("done", signal.SIGXCPU, "timeout"),
        ("done", signal.SIGSEGV, "signal"),
        ("done", signal.SIGKILL, "ok"),
        ("done", 0, "ok"),
        (None, signal.SIGXCPU, "timeout"),
        ("abandoned", signal.SIGXCPU, "lost"),
    ],
)
def test_a_death_that_the_judge_hears_of_first_is_still_one(
    ended: str | None, wait_status: int, status: str
) -> None:
    """A dying program closes its channel a moment before it is seen to be dead."""
    assert outcome(ended, wait_status, "")[0] == status
