"""The real server of vLLM's CPU build, for tests: started by `grpo-gym serve`, over loopback."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

KEY = "sk-not-to-be-seen"

_OPTIONS = ("--enable-auto-tool-choice", "--tool-call-parser=hermes", "--served-model-name=tiny")


class Server:
    """One server for the tests of all files, as it takes half a minute to start.

    It is started when its address is first asked for, and anew when a test has ended it.

    Args:
        new_folder: makes a folder for the weights and the log of a server.
    """

    def __init__(self, new_folder: Callable[[str], Path]) -> None:
        self._new_folder = new_folder
        self._log = Path()
        self._url = ""
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where it listens."""
        if self._process is None or self._process.poll() is not None:
            self._start()
        return self._url

    def kill(self) -> None:
        """End it as a machine that goes down does."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        """End it as a user does; the key must be in no line of its log."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self.kill()
        assert not self._log.is_file() or KEY not in self._log.read_text()

    def _start(self) -> None:
        self.close()
        folder = self._new_folder("server")
        weights, self._log = folder / "weights", folder / "log"
        weights.mkdir()
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self._url = f"http://127.0.0.1:{port}"
        words = ["-m", "grpo_gym.cli", "serve", "tiny", f"--port={port}", *_OPTIONS]
        environment = os.environ | {"VLLM_API_KEY": KEY, "GRPO_GYM_WEIGHTS_DIR": str(weights)}
        with self._log.open("wb") as out:
            self._process = process = subprocess.Popen(
                [sys.executable, *words],
                stdout=out,
                stderr=out,
                env=environment,
                start_new_session=True,
            )
        until = time.monotonic() + 600
        while not healthy(self._url):
            assert process.poll() is None, self._log.read_text()[-3000:]
            assert time.monotonic() < until, self._log.read_text()[-3000:]
            time.sleep(0.2)


def healthy(url: str) -> bool:
    """Whether the server is up."""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def running(url: str) -> int:
    """How many requests the server is at."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    names = ("vllm:num_requests_running", "vllm:num_requests_waiting")
    return int(sum(float(line.split()[-1]) for line in lines if line.startswith(names)))
