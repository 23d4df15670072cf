"""Hostile programs: each has its right outcome on every back end of this machine."""

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from grpo_gym.sandbox import SAFE, probe, run
from grpo_gym.sandbox.inside.identity import open_to_all
from tests.attacks.programs import ATTACKS, Attack, prepared

ROOT = Path(__file__).parents[1]
BACKENDS = [
    pytest.param(name, marks=pytest.mark.skipif(probe(name) is not None, reason=f"no {name} here"))
    for name in SAFE
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_an_attack_has_its_right_outcome(
    attack: Attack, backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "x")
    secret = tmp_path / "secret"
    secret.write_text("the hidden tests")
    secret.chmod(0o666)
    tmp_path.chmod(0o777)

    result = run(prepared(attack.source, secret), limits=attack.limits, backend=backend)

    assert attack.right(result), result
    assert secret.read_text() == "the hidden tests"
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]


def public_python() -> str | None:
    """A Python of this version that any user may run."""
    for name in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        path = Path(name).resolve()
        if path.exists() and open_to_all(path) and open_to_all(ROOT / "pyproject.toml"):
            code = "import sys; print(*sys.version_info[:2])"
            said = subprocess.run([path, "-I", "-S", "-c", code], capture_output=True, text=True)
            if said.stdout.split() == [str(part) for part in sys.version_info[:2]]:
                return str(path)
    return None


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(os.geteuid() != 0, reason="the tests above ran as an ordinary user")
@pytest.mark.skipif(public_python() is None, reason="no Python that another user may run")
def test_the_same_holds_for_an_ordinary_user(tmp_path: Path) -> None:
    user = 12_345
    folder = Path("/tmp", f"sandbox-test-{os.getpid()}")
    folder.mkdir()
    os.chown(folder, user, user)
    paths = [
        str(ROOT),
        sysconfig.get_paths()["purelib"],
        *os.environ.get("PYTHONPATH", "").split(":"),
    ]
    try:
        said = subprocess.run(
            [public_python() or "", "-B", "-m", "tests.attacks.as_user", str(folder)],
            user=user,
            group=user,
            extra_groups=[],
            cwd=ROOT,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": ":".join(paths)},
            capture_output=True,
            text=True,
        )
    finally:
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
    report = json.loads(said.stdout.splitlines()[-1])

    assert report["user"] == user
    assert report["backends"]
    assert report["wrong"] == []
