"""`grpo-gym serve`: vLLM's server, started so that a run can train against it."""

from pathlib import Path

from grpo_gym.cli.output import Output
from grpo_gym.errors import UsageError

_HELP = """usage: grpo-gym serve MODEL [OPTIONS of vllm serve]

Start vLLM's server on this machine, so that --engine http://127.0.0.1:8000 can train against it.
MODEL is tiny, a folder, or an id on the hub. All options are vLLM's and go over those that are set
here: --port 8123, --dtype bfloat16, --max-model-len 4096, --gpu-memory-utilization 0.4."""


def serve(words: list[str], output: Output) -> int:
    """Start a vLLM server that a run can train against."""
    if {"-h", "--help"} & set(words):
        output.say(_HELP)
        return 0
    if not words or words[0].startswith("-"):
        raise UsageError("say which model to serve: grpo-gym serve MODEL [OPTIONS of vllm serve]")
    from grpo_gym.engines.vllm_server_start import become_server
    from grpo_gym.lora import is_adapter_folder, read_adapter
    from grpo_gym.policy import TINY, TINY_FOLDER, load_tokenizer

    model, *options = words
    load_tokenizer(model)  # refuses what is no model
    if model != TINY and is_adapter_folder(Path(model)):
        raise UsageError(
            f"{model} is an adapter: serve its base, {read_adapter(Path(model)).base}, into which "
            "--model ADAPTER loads it; or what grpo-gym merge makes of both"
        )
    become_server(str(TINY_FOLDER) if model == TINY else model, options)
    raise AssertionError("unreachable")
