"""What every test starts from."""

import gc
import signal
from collections.abc import Iterator

import pytest

from tests.vllm_serving import Server

# A shell's background job is started with Ctrl-C ignored, and what it starts inherits that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Leave what is there before the first test out of the collections of garbage: it stays."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Libraries that count what is left at the end would call it lost."""
    gc.unfreeze()


@pytest.fixture(scope="session")
def vllm_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server that tests of several files share."""
    server = Server(tmp_path_factory.mktemp)
    yield server
    server.close()
