"""benchmarks/gpu_smoke.sh: what it would do on a GPU, done on the CPU with a tiny model."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "gpu_smoke.sh"


def smoke(*words: str, **environment: str) -> tuple[int, list[dict[str, Any]]]:
    ended = subprocess.run(
        [SCRIPT, *words],
        env=os.environ | {"PYTHON": sys.executable} | environment,
        capture_output=True,
        text=True,
        timeout=550,
        check=False,
    )
    return ended.returncode, [json.loads(line) for line in ended.stdout.splitlines()]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_engine_that_is_here_trains() -> None:
    status, lines = smoke("--dry-run")
    assert status == 0, lines
    assert [line["mode"] for line in lines] == ["hf:fp32", "hf:bf16", "vllm:fp32", "vllm:bf16"]
    for line in lines:
        if "skipped" in line:
            assert line["mode"].startswith("vllm")
            assert find_spec("vllm") is None
        else:
            assert line["time/tokens_per_s"] > 0
            assert line["grad_norm"] > 0
            assert 0 <= line["sync_gap"] < (1e-3 if line["mode"].endswith("fp32") else 0.25)


def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    driver = tmp_path / "nvidia-smi"
    driver.write_text("#!/bin/sh\nexit 1\n")
    driver.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    assert smoke(PATH=path) == (0, [{"skipped": "no NVIDIA GPU"}])


def test_an_engine_that_fails_is_named(tmp_path: Path) -> None:
    status, lines = smoke("--dry-run", PYTHON="false")
    assert status == 1
    assert lines[3] == {"mode": "vllm:bf16", "error": "exit status 1"}
