"""The collector on vLLM against bare `LLM.generate`, on the same prompts and lengths: ratios of one run.

Both sample completions of fixed lengths from the same random model, G copies of each of N prompts, with
the log-probs that training needs. The prompts are those that the collector has sent in a first run. The
bare side completes all prompts of a turn at once, then those of the next one, and never waits; with
`tool`, a third of the collector's turns waits 50 ms. The sides take turns, each begins with an empty
prefix cache, and the median of the ratios of their tokens a second is reported: a second of the
processor's time, so that other load on the machine matters little, but with `tool` one on the clock.

    python benchmarks/collector_vllm.py --repeats 5
"""

import argparse
import json
import statistics
import tempfile
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedTokenizerBase, Qwen2Config, Qwen2ForCausalLM

from grpo_gym import ProceduralTasks, Reply, Score, Task, TextEnv
from grpo_gym.collector import Collector, CollectorOptions
from grpo_gym.curriculum import TaskStream
from grpo_gym.engines.base import Request, Sampling
from grpo_gym.engines.vllm import VLLMEngine
from grpo_gym.policy import TINY, load_tokenizer
from grpo_gym.rendering import Renderer

GROUPS, GROUP_SIZE, TOOL_S = 8, 8, 0.05


@dataclass(frozen=True)
class Case:
    """Turns of a rollout, words of its first observation, tokens of a turn, seconds of the tool."""

    name: str
    turns: int
    words: int
    completion: int
    tool_s: float


CASES = (
    Case("one turn", 1, 10, 32, 0.0),
    Case("long prompt", 1, 100, 32, 0.0),
    Case("long completion", 1, 10, 128, 0.0),
    Case("three turns", 3, 10, 32, 0.0),
    Case("three turns, tool", 3, 10, 32, TOOL_S),
    Case("three turns, tool, long", 3, 10, 128, TOOL_S),
)


class Chat(TextEnv):
    """Says a few words back; in a third of the turns only after a while."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.max_turns = case.turns
        super().__init__()

    def default_tasks(self) -> ProceduralTasks:  # noqa: D102
        words = self.case.words
        return ProceduralTasks(
            lambda rng: (" ".join(map(str, rng.integers(0, 10, words).tolist())), "")
        )

    def respond(self, task: Task, action: str) -> Score | Reply | str:  # noqa: D102
        if zlib.crc32(f"{self.turn} {action}".encode()) % 3 == 0:
            time.sleep(self.case.tool_s)
        return "And now?" if self.turn + 1 < self.case.turns else Score(value=0.0, success=False)


class Recorder(VLLMEngine):
    """Remembers what it was asked, in the order of the turns of each lane."""

    def record(self) -> None:
        """Forget what was before."""
        self.asked: dict[int, list[Request]] = {}

    def submit(self, requests: Sequence[Request]) -> None:  # noqa: D102
        for request in requests:
            self.asked.setdefault(request.id, []).append(request)
        super().submit(requests)


def save_model(folder: str, tokenizer: PreTrainedTokenizerBase, layers: int, hidden: int) -> None:
    config = Qwen2Config(
        vocab_size=len(tokenizer),
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
        Qwen2ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def bare_engine(folder: str) -> Callable[[list[list[Request]]], int]:
    """`LLM.generate` with the settings of ours; returns the number of tokens."""
    from vllm import LLM, SamplingParams

    llm = LLM(
        folder,
        dtype="float32",
        enforce_eager=True,
        block_size=32,
        enable_chunked_prefill=False,
        max_num_seqs=256,
        kv_cache_memory_bytes=2**30,
        logprobs_mode="processed_logprobs",
        seed=0,
    )

    def generate(turns: list[list[Request]]) -> int:
        tokens = 0
        llm.reset_prefix_cache()
        for requests in turns:
            outputs = llm.generate(
                [{"prompt_token_ids": list(request.prompt_ids)} for request in requests],
                [
                    SamplingParams(
                        max_tokens=request.sampling.max_tokens,
                        seed=request.seed % 2**63,
                        logprobs=0,
                        ignore_eos=True,
                        detokenize=False,
                    )
                    for request in requests
                ],
                use_tqdm=False,
            )
            tokens += sum(len(output.outputs[0].token_ids) for output in outputs)
        return tokens

    return generate


def rate(work: Callable[[], int], clock: Callable[[], float]) -> float:
    """Tokens a second."""
    start = clock()
    tokens = work()
    return tokens / (clock() - start)


def compare(
    case: Case,
    engine: Recorder,
    bare: Callable[[list[list[Request]]], int],
    renderer: Renderer,
    repeats: int,
) -> dict[str, float | str]:
    collector = Collector(
        lambda: Chat(case),
        engine,
        renderer,
        Sampling(max_tokens=case.completion),
        CollectorOptions(GROUP_SIZE),
    )
    tasks = TaskStream.of(Chat(case), 0, "train").take(GROUPS)
    engine.record()
    collector.collect(tasks, 0)
    turns = [list(requests) for requests in zip(*engine.asked.values(), strict=True)]
    expected = GROUPS * GROUP_SIZE * case.turns * case.completion
    if bare(turns) != expected:
        raise RuntimeError("the bare side sampled another number of tokens")

    def ours() -> int:
        engine._engine.reset_prefix_cache()
        return collector.collect(tasks, 0).tokens

    clock = time.perf_counter if case.tool_s else time.process_time
    rates = [(rate(ours, clock), rate(lambda: bare(turns), clock)) for _ in range(repeats)]
    collector.close()
    return {
        "case": case.name,
        "prompt": len(turns[0][0].prompt_ids),
        "completion": case.completion,
        "collector_tokens_per_s": round(statistics.median(a for a, _ in rates)),
        "bare_tokens_per_s": round(statistics.median(b for _, b in rates)),
        "ratio": round(statistics.median(a / b for a, b in rates), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=128)
    options = parser.parse_args()
    tokenizer = load_tokenizer(TINY)
    with tempfile.TemporaryDirectory() as folder:
        save_model(folder, tokenizer, options.layers, options.hidden)
        engine = Recorder(folder)
        bare = bare_engine(folder)
        renderer = Renderer(tokenizer)
        rows = [compare(case, engine, bare, renderer, options.repeats) for case in CASES]
    for row in rows:
        print(json.dumps(row))


if __name__ == "__main__":
    main()
