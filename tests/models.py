"""A tiny tokenizer and tiny random models, built in code: the tests need no hub and no network."""

from functools import cache
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

VOCABULARY = 400

# Models as small as these only lose time when threads share their work.
torch.set_num_threads(1)

CHATML = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_CORPUS = (
    "What is the sum of the numbers, and why is it so? Answer with a number only.",
    "You are a careful assistant that thinks before it answers. The answer is in the box.",
    "user assistant system tool think call name arguments result true false none",
    "def add(a, b): return a + b  # a function of two numbers, tested by the caller",
    "one two three four five six seven eight nine ten hundred thousand",
)


@cache
def _bpe() -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    return tokenizer.to_str()


def tiny_tokenizer(chat_template: str | None = CHATML) -> PreTrainedTokenizerFast:
    """A byte-level BPE of about 400 tokens: every text has ids, digits are single tokens.

    `<|im_end|>` ends a turn and is the eos; `<|endoftext|>` pads.
    """
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(_bpe()),
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        extra_special_tokens=["<|im_start|>"],
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = chat_template
    return tokenizer


def tiny_model(seed: int = 0, model_type: str = "qwen2", **config: Any) -> PreTrainedModel:
    """A random causal language model that fits `tiny_tokenizer`, the same for the same seed.

    Args:
        seed: of the random weights; the global generator is left as it was.
        model_type: an architecture of transformers, such as "llama", "gemma3_text", "gpt2".
        config: fields of its configuration; the defaults make about 30 thousand parameters.
    """
    sizes: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "bos_token_id": None,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "attention_dropout": 0.0,
        "tie_word_embeddings": True,
    }
    if model_type == "gpt2":
        sizes |= {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 512}
        sizes |= {"attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0}
    else:
        sizes |= {
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "max_position_embeddings": 512,
        }
    built = AutoConfig.for_model(model_type, **(sizes | config))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(built)
        # Wider than the usual 0.02, so that distributions differ visibly between contexts.
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.ndim > 1 and "norm" not in name:
                    parameter.normal_(std=0.2)
    return model.eval()
