"""Cost of the learner's gradient: shared prompts against padded rows, tiles against a full softmax.

    python benchmarks/learner.py [--repeats 5] [--only shared|head]

Both sides of a pair run in turn; CPU seconds are the smallest of the repeats, memory is the peak of a fresh
process. Prints one line of JSON for each case.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from grpo_gym.learner.forward import Scorer
from grpo_gym.learner.hidden import whole_rows
from grpo_gym.learner.logprobs import token_logprobs
from grpo_gym.learner.rows import Rows, pack

CASES: dict[str, dict[str, int]] = {
    "prompt 34, completion 32": {"prompt": 34, "completion": 32, "groups": 8},
    "prompt 258, completion 32": {"prompt": 258, "completion": 32, "groups": 8},
    "prompt 32, completion 128": {"prompt": 32, "completion": 128, "groups": 4},
    "prompt 64, long tail to 512": {"prompt": 64, "completion": 512, "groups": 4, "tail": 1},
    "vocabulary 32768": {"prompt": 34, "completion": 32, "groups": 8, "vocabulary": 32_768},
}
GROUP_SIZE = 8


def model(vocabulary: int) -> Any:
    config = AutoConfig.for_model(
        "qwen2",
        vocab_size=vocabulary,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config)


def rows(prompt: int, completion: int, groups: int, vocabulary: int, tail: bool) -> Rows:
    """Prompts and completions of varying length: from half the given to the whole.

    With a tail, most completions are short: lengths are exponential with mean a sixth of the given.
    """
    rng = np.random.default_rng(0)
    prompts, tokens = [], []
    for _ in range(groups):
        ids = rng.integers(2, vocabulary, rng.integers(prompt // 2, prompt + 1))
        for _ in range(GROUP_SIZE):
            prompts.append(ids)
            length = rng.integers(completion // 2, completion + 1)
            if tail:
                length = min(completion, 1 + int(rng.exponential(completion / 6)))
            tokens.append(rng.integers(2, vocabulary, length))
    return pack(prompts, tokens, [np.ones(len(row), np.bool_) for row in tokens])


def full_softmax(scorer: Scorer, batch: Rows) -> torch.Tensor:
    """What most trainers do: whole rows, every position projected, one log-softmax."""
    ids, (row, column), place = whole_rows(batch, np.arange(len(batch.tokens)))
    logits = scorer.model(input_ids=ids, use_cache=False).logits
    full = torch.log_softmax(logits.float(), -1)
    return full[row, column, batch.tokens[place]]


def shared_case(name: str) -> dict[str, Callable[[], None]]:
    case = CASES[name]
    vocabulary = case.get("vocabulary", 400)
    scorer = Scorer(model(vocabulary))
    batch = rows(case["prompt"], case["completion"], case["groups"], vocabulary, "tail" in case)

    def run(share: bool | None) -> None:
        if share is None:
            scores = full_softmax(scorer, batch)
        else:
            scorer.share_prompts = share
            scores = scorer(batch).logprobs
        scores.sum().backward()

    return {
        "shared": lambda: run(True),
        "padded": lambda: run(False),
        "padded, full softmax": lambda: run(None),
    }


def head_case(name: str) -> dict[str, Callable[[], None]]:
    count, width, vocabulary = {
        "head 32768": (1024, 256, 32_768),
        "head 65536": (1024, 256, 65_536),
    }[name]
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(count, width, generator=generator).requires_grad_()
    weight = (torch.randn(vocabulary, width, generator=generator) * 0.05).requires_grad_()
    targets = torch.randint(0, vocabulary, (count,), generator=generator)

    def full() -> None:
        logits = (hidden @ weight.t()).float()
        torch.log_softmax(logits, -1).gather(1, targets[:, None]).sum().backward()

    return {
        "tiled": lambda: token_logprobs(hidden, weight, targets).logprobs.sum().backward(),
        "recomputed": lambda: (
            token_logprobs(hidden, weight, targets, saved_elements=0).logprobs.sum().backward()
        ),
        "full": full,
    }


def sides(name: str) -> dict[str, Callable[[], None]]:
    return shared_case(name) if name in CASES else head_case(name)


def peak(name: str, side: str) -> float:
    """MiB that one call of a side adds to a fresh process."""
    done = subprocess.run(
        [sys.executable, __file__, "--peak", name, side],
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout)


def print_peak(name: str, side: str) -> None:
    call = sides(name)[side]
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = high_water()
    call()
    print((high_water() - before) / 1024)


def high_water() -> int:
    """Peak resident KiB of this process (Linux)."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0])


def measure(name: str, repeats: int) -> None:
    calls = sides(name)
    seconds = dict.fromkeys(calls, float("inf"))
    for _ in range(repeats):
        for side, call in calls.items():
            start = time.process_time()
            call()
            seconds[side] = min(seconds[side], time.process_time() - start)
    first = next(iter(seconds))
    print(
        json.dumps(
            {
                "case": name,
                "cpu_seconds": {side: round(value, 4) for side, value in seconds.items()},
                "times_slower": {s: round(v / seconds[first], 2) for s, v in seconds.items()},
                "peak_mib": {side: round(peak(name, side)) for side in calls},
            }
        ),
        flush=True,
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", choices=["shared", "head"])
    parser.add_argument("--peak", nargs=2)
    arguments = parser.parse_args()
    if arguments.peak:
        print_peak(*arguments.peak)
    else:
        names = [*(CASES if arguments.only != "head" else [])]
        names += ["head 32768", "head 65536"] if arguments.only != "shared" else []
        for one in names:
            measure(one, arguments.repeats)
