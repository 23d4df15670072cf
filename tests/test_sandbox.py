"""What a sandbox promises to whoever calls it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from grpo_gym.errors import UsageError
from grpo_gym.sandbox import SAFE, Limits, SandboxError, backends, probe, run, server
from grpo_gym.sandbox.inside import landlock, scratch, seccomp
from grpo_gym.sandbox.server import Warm

QUICK = Limits(wall_s=3.0, memory_mb=256)
BACKENDS = [
    pytest.param(name, marks=pytest.mark.skipif(probe(name) is not None, reason=f"no {name} here"))
    for name in SAFE
]
landlock_here = pytest.mark.skipif(probe("landlock") is not None, reason="no Landlock here")


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
    assert 0 < result.seconds < 3


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_command_runs(backend: str) -> None:
    limits = Limits(wall_s=3.0, memory_mb=256, processes=2)
    result = run(["sh", "-c", "cat; echo $0; exit 7"], stdin="in\n", limits=limits, backend=backend)

    assert (result.status, result.exit_code) == ("exit", 7)
    assert result.stdout == "in\nsh\n"


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_program_may_have_children_up_to_its_limit(backend: str) -> None:
    limits = Limits(wall_s=3.0, memory_mb=256, processes=4)
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


def served(pid: int) -> bool:
    """Whether a process is a server of the sandbox, or was forked by one."""
    try:
        return b"inside.serve" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def processes() -> set[int]:
    """Processes of our sandboxes, orphans among them; tests beside this one have their own."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and served(int(entry.name)):
            top = parent(int(entry.name))
            while served(top):
                top = parent(top)
            if top in (os.getpid(), 1):
                found.add(int(entry.name))
    return found


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("source", "status"), [(DAEMON, "ok"), (BOMB, "timeout")])
def test_no_process_outlives_its_run(source: str, status: str, backend: str) -> None:
    run("print()", backend=backend, limits=QUICK)
    time.sleep(0.3)
    before = processes()
    limits = Limits(wall_s=1.0, cpu_s=2, memory_mb=256, processes=8)

    result = run(source, limits=limits, backend=backend)

    assert result.status == status, result
    deadline = time.monotonic() + 5
    while processes() - before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not processes() - before


@pytest.mark.parametrize("backend", BACKENDS)
def test_runs_at_the_same_time_do_not_meet(backend: str) -> None:
    source = (
        "import os, time\nopen('mine', 'w').write('x')\n"
        "try: os.kill(-1, 9)\nexcept OSError: pass\n"
        "time.sleep(0.3); print(os.listdir('.'))"
    )
    limits = Limits(wall_s=8.0, memory_mb=256)
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


@pytest.fixture
def warm() -> Iterator[Warm]:
    warm = Warm("landlock")
    yield warm
    warm.stop()


def request(source: str, wall_s: float = 3.0, **limits: Any) -> dict[str, Any]:
    """The message of a run."""
    values = {**vars(Limits(wall_s=wall_s, memory_mb=256, **limits)), "tasks_before": 4096}
    base = {"argv": [], "judged": False, "stdin": "", "files": {}}
    return {**base, "source": source, "limits": values}


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
def test_a_run_ends_when_its_server_is_stopped(warm: Warm) -> None:
    answers: list[Any] = []

    def wait() -> None:
        answers.append(warm.exchange([request("while True: pass", 20.0)], 20.0))

    thread = threading.Thread(target=wait)
    before = processes()
    thread.start()
    time.sleep(0.7)
    assert warm.process
    # The supervisor and the program go too, as the kernel would have it if short of memory.
    for pid in [warm.process.pid, *(processes() - before - {warm.process.pid})]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    thread.join(5)

    assert answers == [None]


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


CONTAINER = """#!{python}
import json, os, sys
arguments = sys.argv[1:]
with open({log!r}, "w") as log:
    json.dump(arguments, log)
volume = next(a for a in arguments if a.startswith("--volume")).split("=", 1)[1].split(":")
volume = [os.path.dirname(part) for part in volume]
command = arguments[arguments.index("image:1") + 1 :]
command = [{python!r}, *(word.replace(volume[1], volume[0]) for word in command[1:])]
os.execv(command[0], command)
"""


@landlock_here
def test_a_container_is_started_without_network_or_privileges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "arguments"
    tool = tmp_path / "tool"
    tool.write_text(CONTAINER.format(python=server.base_python(), log=str(log)))
    tool.chmod(0o755)
    monkeypatch.setenv("GRPO_GYM_CONTAINER", f"{tool} image:1")
    container = backends.MAKERS["container"](())

    reply = container.exchange([request("print(input())")], 3.0)

    assert reply
    assert reply.get("status") == 256, reply  # input() at the end of an empty input
    arguments = json.loads(log.read_text())
    assert arguments[:3] == ["run", "--rm", "--interactive"]
    wanted = {"--network=none", "--read-only", "--cap-drop=ALL", "--user=65534:65534"}
    assert wanted | {"--security-opt=no-new-privileges", "--pids-limit=256"} <= set(arguments)


@pytest.mark.parametrize("value", ["", "docker", "no-such-program image:1"])
def test_without_a_container_program_there_is_no_container(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRPO_GYM_CONTAINER", value)

    with pytest.raises(SandboxError, match="GRPO_GYM_CONTAINER"):
        backends.MAKERS["container"](())


@landlock_here
def test_too_much_to_send_is_a_mistake(warm: Warm) -> None:
    with pytest.raises(UsageError, match="64 MiB"):
        warm.exchange([request("x" * (65 << 20))], 3.0)


@landlock_here
def test_odd_text_goes_in_and_comes_out() -> None:
    result = run("import sys; print(ascii(sys.stdin.read()))", stdin="\udc80\u00e9", limits=QUICK)
    assert result.stdout == "'\\udc80\\xe9'\n" or result.status == "exit"
    assert run("print('\ud800')", limits=QUICK).status == "exit"
    assert run("print(1)\0", limits=QUICK).status == "exit"
    assert run("(" * 100_000, limits=QUICK).status == "exit"
    assert run(["echo", "a\0b"], limits=QUICK).exit_code == 127
