"""Starting vLLM in this process: its settings, and what it must leave as it was."""

import contextlib
import importlib.util
import logging
import os
import random
import sys
import warnings
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from grpo_gym.errors import UsageError

if TYPE_CHECKING:
    from vllm.v1.engine.llm_engine import LLMEngine

# Where the user has not said otherwise: quiet, no report of usage, threads left where they are.
_ENVIRONMENT = {
    "VLLM_LOGGING_LEVEL": "CRITICAL",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}
GPU_ENVIRONMENT = {"TRITON_F32_DEFAULT": "ieee"}
"""Float32 is float32, as in the learner: else Triton's attention rounds what it multiplies to TF32."""

_CPU_CACHE_BYTES = 2**30
_GPU_SHARE = 0.5
"""Of the GPU's memory; the trainer needs the rest, and all of it while the engine sleeps."""

_OURS = {
    "model": "the model option",
    "max_num_seqs": "max_lanes",
    "seed": "the seed of each request",
    "logprobs_mode": "always that of the distribution sampled from",
    "max_logprobs": "whatever the agent asks for",
    "tensor_parallel_size": "1, as there is one process",
    "pipeline_parallel_size": "1, as there is one process",
    "data_parallel_size": "1, as there is one process",
}


def start(
    model: str,
    *,
    dtype: str,
    context_length: int | None,
    max_lanes: int,
    arguments: Mapping[str, Any],
) -> "LLMEngine":
    """Start vLLM's engine in this process, without worker processes, on torch's current GPU or the CPU.

    Args:
        model: folder or Hugging Face id.
        dtype: of the weights.
        context_length: most tokens of prompt and completion; None: what the model takes.
        max_lanes: most requests that run at once.
        arguments: further fields of vLLM's `EngineArgs`.

    Raises:
        UsageError: vLLM is not installed, or refuses the model or the arguments.
    """
    if importlib.util.find_spec("vllm") is None:
        raise UsageError("engine vllm needs vLLM: pip install 'grpo-gym[vllm]'")
    for name in arguments:
        if name in _OURS:
            raise UsageError(f"engine argument {name} is not yours to set; it is {_OURS[name]}")
    for name, value in environment(gpu=torch.cuda.is_available()).items():
        os.environ.setdefault(name, value)
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    logging.getLogger("vllm").setLevel(os.environ["VLLM_LOGGING_LEVEL"])
    with _unchanged():
        from vllm.platforms import current_platform

        if current_platform.is_cpu():
            # Otherwise a few lines of its sampler take half a minute of a C++ compiler's time.
            type(current_platform).simple_compile_backend = "eager"
            _look_among_own_modules()
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine
        from vllm.v1.executor import Executor

        settings: dict[str, Any] = {
            "dtype": dtype,
            "max_model_len": context_length,
            "enable_prefix_caching": True,
            "disable_log_stats": True,
            "use_tqdm_on_load": False,
        }
        if current_platform.is_cpu():
            # Only whole blocks are cached: with the default of 128 tokens, hardly any. And a prompt that is
            # encoded in parts ends in an error, since vLLM turns back the request's generator then.
            settings |= {"enforce_eager": True, "block_size": 32, "enable_chunked_prefill": False}
            if "VLLM_CPU_KVCACHE_SPACE" not in os.environ:
                settings["kv_cache_memory_bytes"] = _CPU_CACHE_BYTES
        else:
            settings |= {"enable_sleep_mode": True, "gpu_memory_utilization": _GPU_SHARE}
        settings |= arguments
        settings |= {
            "model": model,
            "max_num_seqs": max_lanes,
            "logprobs_mode": "processed_logprobs",
            "max_logprobs": -1,
            "seed": 0,
        }
        try:
            config = EngineArgs(**settings).create_engine_config()
            if current_platform.is_cuda_alike():  # vLLM takes the first one, whichever torch does
                config.device_config.device = torch.device("cuda", torch.cuda.current_device())
            return LLMEngine(
                config, Executor.get_class(config), log_stats=False, multiprocess_mode=False
            )
        except Exception as error:  # whatever vLLM's own checks raise, assertions among them
            line = " ".join(f"{type(error).__name__}: {error}".split())[:400]
            raise UsageError(f"vLLM does not start with model {model!r}: {line}") from error


def environment(*, gpu: bool) -> dict[str, str]:
    """What the environment says while vLLM runs, where the user has not said otherwise."""
    return _ENVIRONMENT | GPU_ENVIRONMENT if gpu else _ENVIRONMENT


def _look_among_own_modules() -> None:
    """Keep vLLM, which replaces kernels wherever a module has them, out of modules that are not its own.

    It fails on objects of other libraries, such as those of llvmlite.
    """
    from vllm.triton_utils import dispatcher

    class Modules(SimpleNamespace):
        @property
        def modules(self) -> dict[str, Any]:
            found = sys.modules.copy()
            return {name: found[name] for name in found if name.partition(".")[0] == "vllm"}

    dispatcher.sys = Modules()


@contextlib.contextmanager
def _unchanged() -> Iterator[None]:
    """Put back what vLLM changes in the process, but for variables of its own.

    Global generators are seeded; a function of torch and the hook for exceptions are replaced; and the
    environment gets libraries to load first, which no other program that is started should have. Warnings
    on the way are about vLLM's own code.
    """
    state, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002
    set_num_threads, hook = torch.set_num_threads, sys.excepthook
    environment = dict(os.environ)
    try:
        devices = range(torch.cuda.device_count())
        with warnings.catch_warnings(), torch.random.fork_rng(devices=devices):
            warnings.simplefilter("ignore")
            yield
    finally:
        random.setstate(state)
        np.random.set_state(legacy)  # noqa: NPY002
        torch.set_num_threads, sys.excepthook = set_num_threads, hook
        for name in [name for name in os.environ if not name.startswith("VLLM_")]:
            if name not in environment:
                del os.environ[name]
            elif os.environ[name] != environment[name]:
                os.environ[name] = environment[name]
