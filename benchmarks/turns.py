"""Conversations of several turns: engine `hf` with and without what earlier turns have encoded.

Eight conversations go on in step. Each turn samples 16 tokens and is answered with 24. The two ways take
turns in one process on one thread; the median ratio of CPU seconds is reported, for several lengths of the
first prompt.

    python benchmarks/turns.py --repeats 3
"""

import argparse
import json
import statistics
import time

import numpy as np
from generation import VOCABULARY, build

from grpo_gym.engines.base import Sampling
from grpo_gym.engines.hf import HFEngine

LANES, TURNS, SAMPLED, ANSWERED = 8, 6, 16, 24


def play(engine: HFEngine, prompt: int) -> list[list[int]]:
    """Token ids of the conversations."""
    rng = np.random.default_rng(0)
    contexts = rng.integers(3, VOCABULARY, (LANES, prompt)).tolist()
    for turn in range(TURNS):
        seeds = range(turn * LANES, (turn + 1) * LANES)
        done = engine.generate(contexts, Sampling(max_tokens=SAMPLED), seeds)
        for context, completion in zip(contexts, done, strict=True):
            answer = rng.integers(3, VOCABULARY, ANSWERED)
            context += [*completion.token_ids.tolist(), *answer.tolist()]
    return contexts


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    model = build(hidden=256)
    kept, plain = HFEngine(model), HFEngine(model)
    plain._decoder.turns.most_bytes = 0
    for prompt in (32, 128, 512):
        ratios = []
        for _ in range(repeats):
            times, said = [], []
            for engine in (plain, kept):
                start = time.process_time()
                said.append(play(engine, prompt))
                times.append(time.process_time() - start)
            if said[0] != said[1]:
                raise RuntimeError("the two ways sampled other tokens")
            ratios.append(times[0] / times[1])
        print(json.dumps({"prompt": prompt, "turns": TURNS, "ratio": statistics.median(ratios)}))


if __name__ == "__main__":
    main()
