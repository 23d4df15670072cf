"""The container back end with a real engine, and the command line that it gets."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from grpo_gym.sandbox import SandboxError, backends, judge, probe, run, server
from grpo_gym.sandbox.limits import Limits
from tests.attacks.programs import ATTACKS, prepared
from tests.sandboxes import landlock_here, request

IMAGE = f"localhost/grpo-gym-sandbox-test:{os.getpid()}"
PATIENT = Limits(wall_s=10.0, memory_mb=256)
LEFT_OUT = {"site-packages", "__pycache__", "test", "idlelib", "tkinter"}


def engine() -> str | None:
    """A container engine that answers here."""
    for tool in ("podman", "docker"):
        if (
            shutil.which(tool)
            and not subprocess.run([tool, "info"], capture_output=True).returncode
        ):
            return tool
    return None


def libraries(program: Path) -> set[Path]:
    """The shared libraries that a file names."""
    said = subprocess.run(["ldd", program], capture_output=True, text=True).stdout
    return {Path(word) for word in said.split() if word.startswith("/")}


def keep(item: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if LEFT_OUT & set(Path(item.name).parts) or item.name.endswith(".a") else item


def write_root(target: Path) -> None:
    """The root file system of an image with this interpreter, as a tar archive."""
    python, library = Path(server.base_python()), Path(os.__file__).parent
    needed = libraries(python).union(*map(libraries, (library / "lib-dynload").glob("*.so")))
    with tarfile.open(target, "w") as tar:
        tar.add(python, "usr/local/bin/python3")
        tar.add(library, f"usr/local/lib/{library.name}", filter=keep)
        for path in needed:
            loader = path.name.startswith("ld-")
            tar.add(path.resolve(), str(path).lstrip("/") if loader else f"usr/lib/{path.name}")
        for name in ("tmp", "proc", "dev", "sys", "etc"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            tar.addfile(folder)


@pytest.fixture(scope="module")
def real_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A back end over a real engine, with an image of this interpreter made for it."""
    tool = engine()
    if tool is None or not sys.platform.startswith("linux"):
        pytest.skip("no container engine answers here")
    archive = tmp_path_factory.mktemp("image") / "root.tar"
    write_root(archive)
    subprocess.run([tool, "import", archive, IMAGE], check=True, capture_output=True)
    archive.unlink()
    trial = [tool, "run", "--rm", "--network=none", IMAGE, "python3", "-c", ""]
    said = subprocess.run(trial, capture_output=True, text=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRPO_GYM_CONTAINER", f"{tool} {IMAGE}")
        if said.returncode == 0:
            yield tool
    subprocess.run([tool, "rmi", "--force", IMAGE], check=True, capture_output=True)
    if said.returncode:
        pytest.skip(f"{tool} starts no container here: {said.stderr.strip()}")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_real_engine_holds_programs(real_engine: str, tmp_path: Path) -> None:
    assert probe("container") is None
    assert run("print(input())", stdin="in\n", limits=PATIENT, backend="container").stdout == "in\n"
    right = "def add(a, b): return a + b"
    assert judge(right, ["assert add(1, 2) == 3"], limits=PATIENT, backend="container").success
    secret = tmp_path / "secret"
    secret.write_text("the hidden tests")
    wrong = {}
    for attack in ATTACKS:
        source = prepared(attack.source, secret)
        result = run(source, limits=attack.limits, backend="container")
        if not attack.right(result):
            wrong[attack.name] = result

    assert wrong == {}
    assert secret.read_text() == "the hidden tests"
    left = [real_engine, "ps", "--all", "--quiet", "--filter", f"ancestor={IMAGE}"]
    assert subprocess.run(left, capture_output=True, text=True).stdout == ""


STAND_IN = """#!{python}
import json, os, sys
arguments = sys.argv[1:]
with open({log!r}, "w") as log:
    json.dump([arguments, os.environ.get("DOCKER_HOST")], log)
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
    tool.write_text(STAND_IN.format(python=server.base_python(), log=str(log)))
    tool.chmod(0o755)
    monkeypatch.setenv("GRPO_GYM_CONTAINER", f"{tool} image:1")
    monkeypatch.setenv("DOCKER_HOST", "unix:///elsewhere")
    container = backends.MAKERS["container"](())

    reply = container.exchange([request("print(input())")], 3.0)

    assert reply
    assert reply.get("status") == 256, reply  # input() at the end of an empty input
    arguments, host = json.loads(log.read_text())
    assert arguments[:3] == ["run", "--rm", "--interactive"]
    wanted = {"--network=none", "--read-only", "--cap-drop=ALL", "--user=65534:65534"}
    assert wanted | {"--security-opt=no-new-privileges", "--pids-limit=256"} <= set(arguments)
    assert host == "unix:///elsewhere", "the client does not find its engine"


@pytest.mark.parametrize("value", ["", "docker", "no-such-program image:1"])
def test_without_a_container_program_there_is_no_container(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRPO_GYM_CONTAINER", value)

    with pytest.raises(SandboxError, match="GRPO_GYM_CONTAINER"):
        backends.MAKERS["container"](())
