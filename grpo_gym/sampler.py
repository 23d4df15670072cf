"""What samples, as a config says: an engine in this process, or a server."""

from grpo_gym.config import TaskOptions, parse_arguments
from grpo_gym.engines.base import Engine
from grpo_gym.engines.hf import HFEngine
from grpo_gym.errors import UsageError
from grpo_gym.policy import Policy


def make_engine(
    config: TaskOptions, policy: Policy, max_lanes: int, precision: str = "fp32"
) -> Engine:
    """What samples from the policy; `hf` shares the policy's very weights.

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
        return HFEngine(policy.model, policy.tokenizer, max_lanes=max_lanes)
    if config.engine != "vllm":
        raise UsageError(f"engine {config.engine}: there is no client for servers yet")
    from grpo_gym.engines.vllm import VLLMEngine

    return VLLMEngine(
        policy.source,
        dtype={"fp32": "float32", "bf16": "bfloat16"}[precision],
        max_lanes=max_lanes,
        arguments=parse_arguments(config.engine_arg, "engine argument"),
    )
