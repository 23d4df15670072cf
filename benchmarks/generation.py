"""HFEngine against transformers' `generate` on the same work: ratio of CPU seconds.

Both sample the same number of tokens from the same tiny Qwen2: 8 prompts, 8 completions each, no
stop token. They take turns in one process on one thread, and the median of the ratios is reported,
so that other load on the machine matters little. `--uneven` gives each completion its own length.

    python benchmarks/generation.py --repeats 5
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from grpo_gym.engines.base import Request, Sampling
from grpo_gym.engines.hf import HFEngine

GROUPS, GROUP_SIZE, VOCABULARY = 8, 8, 400
CASES = ((34, 32), (256, 32), (34, 128))


def build(layers: int = 4, hidden: int = 128) -> PreTrainedModel:
    """A random Qwen2 of 0.6 M parameters."""
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Qwen2ForCausalLM(config).eval()


def cpu_seconds(work: Callable[[], int], expected: int) -> float:
    start = time.process_time()
    tokens = work()
    seconds = time.process_time() - start
    if tokens != expected:
        raise RuntimeError(f"{tokens} tokens were sampled instead of {expected}")
    return seconds


def compare(
    model: PreTrainedModel, prompt: int, completion: int, repeats: int, uneven: bool
) -> dict[str, float]:
    """CPU seconds of each side, and the median ratio."""
    rng = np.random.default_rng(0)
    prompts = rng.integers(3, VOCABULARY, (GROUPS, prompt)).repeat(GROUP_SIZE, 0)
    lengths = np.full(len(prompts), completion)
    if uneven:
        lengths = rng.integers(1, completion + 1, len(prompts))
        lengths[0] = completion
    engine = HFEngine(model)
    inputs = torch.from_numpy(prompts)
    seed = iter(range(10**9))

    def ours() -> int:
        engine.submit(
            [
                Request(i, tuple(ids), Sampling(max_tokens=int(n)), next(seed))
                for i, (ids, n) in enumerate(zip(prompts.tolist(), lengths, strict=True))
            ]
        )
        tokens = 0
        while engine.busy:
            tokens += sum(len(completion.token_ids) for _, completion in engine.step())
        return tokens

    def theirs() -> int:
        # generate has no limit per row: it runs all rows to the longest.
        out = model.generate(
            inputs,
            attention_mask=torch.ones_like(inputs),
            do_sample=True,
            top_k=0,
            max_new_tokens=completion,
            eos_token_id=None,
            pad_token_id=0,
        )
        return out[:, prompt:].numel()

    sampled = int(lengths.sum())
    work = ((ours, sampled), (theirs, len(prompts) * completion))
    for side in work:
        cpu_seconds(*side)
    times = [[cpu_seconds(*side) for side in work] for _ in range(repeats)]
    return {
        "prompt": prompt,
        "completion": completion,
        "engine_s": round(statistics.median(a for a, _ in times), 4),
        "generate_s": round(statistics.median(b for _, b in times), 4),
        "ratio": round(statistics.median(b / a for a, b in times), 2),
        "tokens_per_s": round(sampled / statistics.median(a for a, _ in times)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--uneven", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = build()
    rows = [compare(model, *case, options.repeats, options.uneven) for case in CASES]
    print(f"{'prompt':>8}{'completion':>12}{'engine s':>10}{'generate s':>12}{'ratio':>8}")
    for row in rows:
        print(
            f"{row['prompt']:>8}{row['completion']:>12}{row['engine_s']:>10.3f}"
            f"{row['generate_s']:>12.3f}{row['ratio']:>8.2f}"
        )
    print(json.dumps({"torch": torch.__version__, "uneven": options.uneven, "cases": rows}))


if __name__ == "__main__":
    main()
