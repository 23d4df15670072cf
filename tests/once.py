"""Work whose results several test processes share."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """The folder that `make` has filled: by the first process that asks, while the others wait."""
    root = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:  # each has a folder of its own in that of all
        root = root.parent
    folder = root / name
    with FileLock(root / f"{name}.lock"):
        if not folder.exists():
            making = Path(tempfile.mkdtemp(dir=root))
            make(making)
            making.rename(folder)
    return folder
