"""Starting vLLM's server so that a run can train against it: its settings and its environment."""

import importlib.util
import os
import sys
from collections.abc import Sequence

from grpo_gym.engines.vllm_start import GPU_ENVIRONMENT
from grpo_gym.errors import UsageError

_EXTENSION = "grpo_gym.engines.vllm_server_worker.WeightsExtension"

_ENVIRONMENT = {
    "VLLM_SERVER_DEV_MODE": "1",  # the endpoints that pause it and call our extension
    "VLLM_NO_USAGE_STATS": "1",
}
_CPU_ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the one worker shares its scheduler's process
}


def serve_command(model: str, options: Sequence[str], *, gpu: bool) -> list[str]:
    """The command line of a server.

    Args:
        model: folder or Hugging Face id.
        options: further ones of `vllm serve`; they go over ours.
        gpu: whether there is one; the CPU build needs other settings.
    """
    # Only whole blocks are cached: with the CPU's default of 128 tokens, hardly any. And a prompt that is
    # encoded in parts ends in an error there, since vLLM turns back the request's generator then.
    device = [] if gpu else ["--enforce-eager", "--block-size=32", "--no-enable-chunked-prefill"]
    return [
        # The script `vllm` needs a distribution of that name, which the CPU build has not.
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
        f"--model={model}",
        "--host=127.0.0.1",
        "--port=8000",
        "--dtype=float32",
        "--logprobs-mode=processed_logprobs",
        "--max-logprobs=-1",
        "--generation-config=vllm",
        "--enable-prefix-caching",
        "--enable-scale-out",
        f"--worker-extension-cls={_EXTENSION}",
        "--seed=0",
        *device,
        *options,
    ]


def serve_environment(*, gpu: bool) -> dict[str, str]:
    """The environment of a server: what is set already stays, but for what it cannot do without."""
    defaults = _ENVIRONMENT | (GPU_ENVIRONMENT if gpu else _CPU_ENVIRONMENT)
    return {**defaults, **os.environ, "VLLM_SERVER_DEV_MODE": "1"}


def become_server(model: str, options: Sequence[str]) -> None:
    """Replace this process by the server.

    Raises:
        UsageError: vLLM is not installed.
    """
    if importlib.util.find_spec("vllm") is None:
        raise UsageError("serve needs vLLM: pip install 'grpo-gym[vllm]'")
    import torch

    gpu = torch.cuda.is_available()
    command = serve_command(model, options, gpu=gpu)
    os.execve(command[0], command, serve_environment(gpu=gpu))
