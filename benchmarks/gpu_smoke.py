"""Two training steps of a random Qwen2 with one engine; prints a line of JSON. See gpu_smoke.sh."""

import argparse
import importlib.util
import json
import tempfile
import time
from pathlib import Path

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

import grpo_gym
from grpo_gym import ProceduralTasks, Score, Task, TextEnv
from grpo_gym.monitor import read_metrics
from grpo_gym.policy import TINY, load_tokenizer


class Vowels(TextEnv):
    """Rewards a letter, so that even a random model has something to gain."""

    def default_tasks(self) -> ProceduralTasks:  # noqa: D102
        return ProceduralTasks(lambda rng: ("Say it.", str(rng.choice(list("aeiou")))))

    def respond(self, task: Task, action: str) -> Score:  # noqa: D102
        value = action.count(str(task.answer)) / max(len(action), 1)
        return Score(value=value, success=value > 0.1)


def save_model(folder: Path, layers: int, hidden: int) -> int:
    """A random model of Qwen2's shape with the tiny tokenizer; returns its number of parameters."""
    tokenizer = load_tokenizer(TINY)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=hidden * 38 // 7,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Qwen2ForCausalLM(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return sum(parameter.numel() for parameter in model.parameters())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engine", choices=("hf", "vllm"))
    parser.add_argument("precision", choices=("fp32", "bf16"))
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--hidden", type=int, default=896)
    parser.add_argument("--dry-run", action="store_true")
    options = parser.parse_args()
    if options.dry_run:
        options.layers, options.hidden = 2, 128
    result: dict[str, float | str] = {"mode": f"{options.engine}:{options.precision}"}
    if options.engine == "vllm" and importlib.util.find_spec("vllm") is None:
        print(json.dumps(result | {"skipped": "vLLM is not installed"}))
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        result["parameters"] = save_model(folder / "model", options.layers, options.hidden)
        started = time.perf_counter()
        run = grpo_gym.train(
            env=Vowels,
            model=str(folder / "model"),
            engine=options.engine,
            precision=options.precision,
            steps=2,
            groups_per_step=2 if options.dry_run else 8,
            group_size=8,
            max_tokens=8 if options.dry_run else 64,
            learning_rate=1e-4,
            save_every=0,
            rollouts_every=0,
            run_dir=folder / "run",
        )
        row = read_metrics(run.metrics_path)[-1]
        result["seconds"] = round(time.perf_counter() - started, 1)
    for name in ("time/tokens_per_s", "time/update_s", "sync_gap", "behaviour_gap", "grad_norm"):
        result[name] = float(f"{row[name]:.4g}")
    if torch.cuda.is_available():
        result["peak_memory_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
        result["device"] = torch.cuda.get_device_name()
    print(json.dumps(result | {"torch": torch.__version__}))


if __name__ == "__main__":
    main()
