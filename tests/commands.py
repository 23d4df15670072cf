"""Running commands in tests: in this process, and in one of their own."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from grpo_gym.cli import main

ROOT = Path(__file__).parents[1]


def run(*words: str) -> int:
    """The exit status of `grpo-gym WORDS`."""
    return main([str(word) for word in words])


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The line on stderr with which `grpo-gym WORDS` refuses them."""
    capsys.readouterr()
    status = run(*words)
    out, err = capsys.readouterr()
    assert status == 2, err
    assert err.startswith("grpo-gym: error: ")
    assert err.count("\n") == 1, err
    assert "Traceback" not in out + err
    return err.removeprefix("grpo-gym: error: ").rstrip("\n")


def flags(options: Mapping[str, Any]) -> list[str]:
    """Options of a Python call as words of the command line."""
    words = []
    for name, value in options.items():
        option = f"--{name.removesuffix('s') if name.endswith('_args') else name}".replace("_", "-")
        if isinstance(value, Mapping):
            for key, item in value.items():
                words += [option, f"{key}={item}"]
        elif value is True:
            words.append(option)
        elif isinstance(value, tuple):
            words += [option, ",".join(map(str, value))]
        else:
            words += [option, str(value)]
    return words


def environment() -> dict[str, str]:
    """Variables under which another process imports what this one does, checkout or wheel."""
    paths = os.pathsep.join([str(ROOT), *(path for path in sys.path if path)])
    return os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}


def start(*words: str, cwd: Path) -> "subprocess.Popen[str]":
    """`grpo-gym WORDS` in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "grpo_gym.cli", *words],
        cwd=cwd,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: "subprocess.Popen[str]", timeout_s: float = 60) -> tuple[str, str]:
    """What a process wrote to stdout and stderr; one that does not end in time is killed."""
    try:
        return process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
