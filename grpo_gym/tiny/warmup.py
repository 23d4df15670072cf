"""The seeded script that makes the tiny policy: supervised learning on noisy demonstrations."""

import json
import math
import shutil
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from grpo_gym.errors import UsageError
from grpo_gym.policy import TINY_FOLDER
from grpo_gym.rendering import Renderer
from grpo_gym.tiny.demonstrations import Encoder, Mixture, demonstrations
from grpo_gym.tiny.tokenizer import train_tokenizer

STEPS = 1500
BATCH = 128
LEARNING_RATE = 2e-3
WARMUP = 50

Row = tuple[list[int], list[bool]]


def rebuild(
    folder: Path,
    *,
    seed: int = 0,
    steps: int = STEPS,
    mixture: Mixture | None = None,
    progress: Callable[[int, int, float], None] | None = None,
) -> None:
    """Train the tiny policy from nothing and write it as a model folder.

    Args:
        folder: where to write it; it must not exist, or be empty.
        seed: of the demonstrations and of the weights.
        steps: optimiser steps.
        mixture: what to show it.
        progress: called with the step, the number of steps and the loss.
    """
    check_writable(folder)
    mixture = mixture or Mixture()
    tokenizer = train_tokenizer(_texts(mixture, seed))
    model = _new_model(tokenizer, seed)
    encode = Encoder(Renderer(tokenizer))
    streams = [demonstrations(part, seed + number) for number, part in enumerate(mixture.parts)]
    counts = [max(1, round(BATCH * part.share)) for part in mixture.parts]
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.05
    )
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = _rate(step, steps)
        rows = [
            [encode(shown) for shown in islice(stream, count)]
            for stream, count in zip(streams, counts, strict=True)
        ]
        loss = _learn(model, rows)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        if progress is not None:
            progress(step + 1, steps, loss)
    _save(model, tokenizer, folder)


def write(folder: Path, source: Path = TINY_FOLDER) -> None:
    """Write the shipped model as an ordinary float32 model folder.

    Raises:
        UsageError: The folder exists and is not empty.
    """
    check_writable(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for file in sorted(source.iterdir()):
        if file.suffix != ".safetensors":
            shutil.copyfile(file, folder / file.name)
    state = {name: tensor.float() for name, tensor in load_file(source / WEIGHTS).items()}
    save_file(state, folder / WEIGHTS, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"dtype": "float32"}, indent=2) + "\n")


WEIGHTS = "model.safetensors"


def check_writable(folder: Path) -> None:
    """Raise `UsageError` unless a model may be written into `folder`."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} exists and is not empty: name a new folder")


def _texts(mixture: Mixture, seed: int) -> Iterator[str]:
    """Rendered conversations, to learn the merges from."""
    for number, part in enumerate(mixture.parts):
        for shown in islice(demonstrations(part, 1000 + seed + number), 500):
            messages = [*shown.prompt]
            for action, observation in shown.turns:
                messages += [{"role": "assistant", "content": action}, *observation]
            yield from (f"{message['role']}\n{message['content']}" for message in messages)


def _new_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config)  # type: ignore[no-untyped-call]


def _rate(step: int, steps: int) -> float:
    warm = min(1.0, (step + 1) / WARMUP)
    return LEARNING_RATE * warm * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / steps)))


def _learn(model: PreTrainedModel, parts: list[list[Row]]) -> float:
    """Accumulate the gradient of the mean loss over what the policy is to say, part by part."""
    total = sum(sum(said) for rows in parts for _, said in rows)
    loss = 0.0
    for rows in parts:
        width = max(len(ids) for ids, _ in rows)
        ids = torch.zeros(len(rows), width, dtype=torch.long)
        labels = torch.full((len(rows), width), -100)
        for i, (row, said) in enumerate(rows):
            ids[i, : len(row)] = torch.tensor(row)
            labels[i, : len(row)] = torch.where(torch.tensor(said), ids[i, : len(row)], -100)
        logits = model(input_ids=ids).logits[:, :-1].flatten(0, 1)
        part = torch.nn.functional.cross_entropy(logits, labels[:, 1:].flatten(), reduction="sum")
        part = part / total
        part.backward()  # type: ignore[no-untyped-call]
        loss += float(part.detach())
    return loss


def _save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write the model in half precision: it is what ships."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(folder)
    model.half().save_pretrained(folder)  # type: ignore[no-untyped-call]
