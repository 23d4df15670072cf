"""What samples, as a config says: an engine in this process, or a server."""

from grpo_gym.config import TaskOptions, parse_arguments
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
    if config.engine != "vllm":
        raise UsageError(f"engine {config.engine}: there is no client for servers yet")
    from grpo_gym.engines.vllm import VLLMEngine

    engine = VLLMEngine(
        policy.source,
        dtype={"fp32": "float32", "bf16": "bfloat16"}[precision],
        max_lanes=max_lanes,
        arguments=parse_arguments(config.engine_arg, "engine argument"),
    )
    if has_adapter(policy.model):  # what vLLM has read is without it
        engine.load(merged_state(policy.model), 0)
    elif policy.adapter is not None:
        engine.load(policy.model.state_dict(), 0)
    return engine
