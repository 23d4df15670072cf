"""Several processes as a launcher starts them, on the CPU."""

import json
import socket
import subprocess
import sys
from pathlib import Path

from tests.commands import environment


def launch(ranks: int, *words: str, cwd: Path, **variables: str) -> "list[subprocess.Popen[str]]":
    """`python WORDS` as the ranks of one run; with one rank, as no launcher would start it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    processes = []
    for rank in range(ranks):
        env = environment() | variables
        if ranks > 1:
            env |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
            env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        processes.append(
            subprocess.Popen(
                [sys.executable, *words],
                cwd=cwd,
                env=env,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    return processes


def finish(processes: "list[subprocess.Popen[str]]", timeout_s: float = 280) -> list[list[str]]:
    """Exit status, stdout and stderr of each; none is left running."""
    try:
        ends = [process.communicate(timeout=timeout_s) for process in processes]
        return [[str(p.returncode), *end] for p, end in zip(processes, ends, strict=True)]
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def print_threads_of_gloo() -> None:
    """Print the threads that would abort this process now and then, if it ended with them; Linux alone."""
    names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    left = sorted(name for name in names if name.startswith(("gloo", "pt_gloo", "pt_tcpstore")))
    if left:
        print(json.dumps(["at exit", "threads", left]), flush=True)
