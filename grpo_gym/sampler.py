"""What samples, as a config says: an engine in this process, or a server."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from grpo_gym.config import TaskOptions, TrainConfig, parse_arguments
from grpo_gym.engines.base import Engine
from grpo_gym.engines.hf import HFEngine
from grpo_gym.errors import UsageError
from grpo_gym.lora import has_adapter, merged_state, merged_twin
from grpo_gym.policy import Policy


def make_engine(
    config: TaskOptions, policy: Policy, max_lanes: int, precision: str = "fp32"
) -> Engine:
    """What samples from the policy; `hf` shares the policy's very weights.

    Those that an adapter adds to it has for itself, with the adapter in them: sampling is then as fast
    as without one, and the policy's own weights stay as they are.

    Args:
        config: says which engine.
        policy: what to sample from.
        max_lanes: most rollouts in play at once.
        precision: "fp32" or "bf16", of an engine with weights of its own.

    Raises:
        UsageError: There is no such engine here, or it refuses its arguments.
    """
    if config.engine == "hf":
        if config.engine_arg:
            raise UsageError("engine_arg is for engine vllm; engine hf has no arguments")
        model = merged_twin(policy.model) if has_adapter(policy.model) else policy.model
        return HFEngine(model, policy.tokenizer, max_lanes=max_lanes)
    dtype = {"fp32": "float32", "bf16": "bfloat16"}[precision]
    arguments = parse_arguments(config.engine_arg, "engine argument")
    engine: Engine
    if config.engine == "vllm":
        from grpo_gym.engines.vllm import VLLMEngine

        engine = VLLMEngine(policy.source, dtype=dtype, max_lanes=max_lanes, arguments=arguments)
        as_it_is_on_disk = policy.adapter is None and not has_adapter(policy.model)
    else:
        trains = isinstance(config, TrainConfig)
        engine = _server(config.engine, policy, dtype if trains else None, max_lanes, arguments)
        as_it_is_on_disk = False  # whatever was loaded before, or served
    if not as_it_is_on_disk:
        try:
            adapted = has_adapter(policy.model)
            engine.load(merged_state(policy.model) if adapted else policy.model.state_dict(), 0)
        except BaseException:
            engine.close()
            raise
    return engine


def _server(
    url: str,
    policy: Policy,
    dtype: str | None,
    max_lanes: int,
    arguments: Mapping[str, Any],
) -> Engine:
    """The client of a vLLM server."""
    from grpo_gym.engines.vllm_server import VLLMServerEngine

    if urlsplit(url).path.strip("/"):
        raise UsageError(
            f"engine {url} gives text, and this needs token ids: a vLLM server is named without a path"
        )
    timeout_s = arguments.get("timeout_s", 600.0)
    if arguments.keys() - {"timeout_s"} or type(timeout_s) not in (int, float) or timeout_s <= 0:
        raise UsageError(
            "engine_arg of a vLLM server is timeout_s, the seconds an answer may take; all else is said "
            "to the server when it is started"
        )
    return VLLMServerEngine(
        url, policy.model.config, dtype=dtype, max_lanes=max_lanes, timeout_s=timeout_s
    )
