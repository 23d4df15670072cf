"""Every example runs as it stands, from any folder."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import ROOT, environment

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(example: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(example), "--smoke"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_there_are_examples() -> None:
    names = {path.stem for path in EXAMPLES}
    assert {"define_environment", "train_multi_turn", "evaluate_pass_at_k"} <= names
