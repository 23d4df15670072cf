"""Two processes that share an update end with the weights of one process."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

RANK = """
import sys
import torch
from accelerate import Accelerator
from grpo_agents import AGENTS
from grpo_gym.learner import Learner, OptimiserOptions
from tests.learner_batches import make_batch
from tests.models import tiny_model

name, sizes, folder = sys.argv[1], tuple(map(int, sys.argv[2].split(","))), sys.argv[3]
accelerator = Accelerator(cpu=True)
options = OptimiserOptions(
    learning_rate=1e-3, epochs=2, mini_batches=2, tokens_per_micro_batch=40, max_grad_norm=0.1
)
learner = Learner(tiny_model(0, "gpt2").double(), AGENTS[name](), options, accelerator)
metrics = {}
for seed in range(2):
    batch = make_batch(seed, sizes)
    metrics = learner.update(batch, learner.prepare(batch))
torch.save((learner.state(), metrics), f"{folder}/{accelerator.num_processes}-{accelerator.process_index}.pt")
if accelerator.num_processes > 1:
    accelerator.wait_for_everyone()
    torch.distributed.destroy_process_group()
"""


def launch(ranks: int, name: str, sizes: str, folder: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    running = []
    for rank in range(ranks):
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
        if ranks > 1:
            env |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
            env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            env |= {"ACCELERATE_USE_CPU": "true"}
        command = [sys.executable, "-c", RANK, name, sizes, str(folder)]
        running.append(subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True))
    for process in running:
        _, errors = process.communicate(timeout=100)
        assert process.returncode == 0, errors


@pytest.mark.slow
@pytest.mark.parametrize(("name", "sizes"), [("dapo", "4,2,3"), ("ppo", "2,1,2")])
def test_two_ranks_equal_one(name: str, sizes: str, tmp_path: Path) -> None:
    launch(1, name, sizes, tmp_path)
    launch(2, name, sizes, tmp_path)
    weights, metrics = torch.load(tmp_path / "1-0.pt", weights_only=True)
    for rank in (0, 1):
        other_weights, other_metrics = torch.load(tmp_path / f"2-{rank}.pt", weights_only=True)
        assert other_metrics == pytest.approx(metrics, rel=1e-9, abs=1e-12)
        for key, value in weights.items():
            torch.testing.assert_close(other_weights[key], value, rtol=0, atol=1e-9)
