"""What samples, as a config says: an engine in this process, a server, or an endpoint."""

import copy
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

import gymnasium

from grpo_gym.collector import BaseCollector, Collector, collector_settings
from grpo_gym.config import (
    EvalConfig,
    RolloutConfig,
    TaskOptions,
    TrainConfig,
    from_values,
    parse_arguments,
)
from grpo_gym.engines.base import Engine, Sharing
from grpo_gym.engines.hf import HFEngine
from grpo_gym.errors import UsageError
from grpo_gym.learner import use_float32_head
from grpo_gym.lora import has_adapter, merge, merged_state, merged_twin
from grpo_gym.policy import TINY, Policy
from grpo_gym.registry import make

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MakeEnv = Callable[[], gymnasium.Env[Any, Any]]


def env_maker(config: TaskOptions) -> MakeEnv:
    """What builds a config's environment.

    Raises:
        UsageError: It has no name that a config can hold, or an argument cannot be read.
    """
    if "<" in config.env:  # as in module:<lambda>
        raise UsageError("the run was made with an environment that has no name: give env= again")
    arguments = parse_arguments(config.env_arg, f"argument of {config.env}")
    return lambda: make(config.env, **arguments)


def make_collector(
    config: EvalConfig | RolloutConfig,
    make_env: MakeEnv,
    copies: int,
    policy: Policy | None,
    kind: Callable[..., Collector] = Collector,
    sharing: Sharing | None = None,
) -> BaseCollector:
    """What plays a config's environment with its policy; the caller closes it and its engine.

    Args:
        config: says which engine.
        make_env: builds the environment.
        copies: rollouts of each task.
        policy: that of the config; None if its engine is an endpoint.
        kind: builds the collector of an engine that takes and gives token ids, from its arguments.
        sharing: how this process goes with others that sample from one server.

    Raises:
        UsageError: As in `make_engine`; or the endpoint cannot be reached.
    """
    if policy is None:
        return _endpoint(config, make_env, copies)
    if config.engine == "hf":
        from accelerate import PartialState

        cast(Any, policy.model).to(PartialState().device)  # where training has it, too
    engine = make_engine(config, policy, config.max_lanes, sharing=sharing)
    sampling, options = collector_settings(config, copies, policy.renderer.stop_token_ids)
    return kind(make_env, engine, policy.renderer, sampling, options)


def _endpoint(config: EvalConfig | RolloutConfig, make_env: MakeEnv, copies: int) -> BaseCollector:
    """The client of an API that takes and gives text."""
    from grpo_gym.chat import ChatCollector, ChatEngine, ChatOptions, require_model

    if config.chat_template is not None:
        raise UsageError(f"chat_template is not for engine {config.engine}, which has its own")
    arguments = parse_arguments(config.engine_arg, "engine argument")
    options = from_values(ChatOptions, arguments, "engine_arg")
    engine = ChatEngine(config.engine, config.model, options)
    try:
        require_model(engine.url, engine.models, config.model, TINY)
    except UsageError:
        engine.close()
        raise
    sampling, settings = collector_settings(config, copies, ())
    return ChatCollector(make_env, engine, sampling, settings)


def make_engine(
    config: TaskOptions,
    policy: Policy,
    max_lanes: int,
    precision: str = "fp32",
    sharing: Sharing | None = None,
) -> Engine:
    """What samples from the policy; `hf` shares the policy's very weights.

    Those that an adapter adds to it has for itself, with the adapter in them: sampling is then as fast
    as without one, and the policy's own weights stay as they are.

    Args:
        config: says which engine.
        policy: what to sample from.
        max_lanes: most rollouts in play at once.
        precision: "fp32" or "bf16", of an engine with weights of its own; `hf` has them if its argument
            dtype says bfloat16.
        sharing: how this process goes with others that sample from one server.

    Raises:
        UsageError: There is no such engine here, or it refuses its arguments.
    """
    if config.engine == "hf":
        return HFEngine(_model(config, policy, precision), policy.tokenizer, max_lanes=max_lanes)
    dtype = {"fp32": "float32", "bf16": "bfloat16"}[precision]
    arguments = parse_arguments(config.engine_arg, "engine argument")
    engine: Engine
    if config.engine == "vllm":
        from grpo_gym.engines.vllm import VLLMEngine

        if _fp32_lm_head(config):
            arguments |= _fp32_head(arguments)
        engine = VLLMEngine(policy.source, dtype=dtype, max_lanes=max_lanes, arguments=arguments)
        as_it_is_on_disk = policy.adapter is None and not has_adapter(policy.model)
    else:
        engine = _server(config, policy, dtype, max_lanes, arguments, sharing)
        as_it_is_on_disk = False  # whatever was loaded before, or served
    if not as_it_is_on_disk:
        try:
            adapted = has_adapter(policy.model)
            engine.load(merged_state(policy.model) if adapted else policy.model.state_dict(), 0)
        except BaseException:
            engine.close()
            raise
    return engine


def _model(config: TaskOptions, policy: Policy, precision: str) -> "PreTrainedModel":
    """What engine `hf` runs: the policy's model, or a copy in half precision."""
    arguments = parse_arguments(config.engine_arg, "engine argument")
    dtype = arguments.get("dtype", "float32")
    if arguments.keys() - {"dtype"} or dtype not in ("float32", "bfloat16"):
        raise UsageError(
            "engine_arg of engine hf is dtype=bfloat16, to sample from a copy in half precision"
        )
    if dtype == "float32":
        return merged_twin(policy.model) if has_adapter(policy.model) else policy.model
    if isinstance(config, TrainConfig) and precision != "bf16":
        raise UsageError(
            "engine_arg dtype=bfloat16 needs precision bf16, by which the sync is judged"
        )
    copied = copy.deepcopy(policy.model)
    if has_adapter(copied):
        merge(copied)
    if _fp32_lm_head(config):
        use_float32_head(copied)
    for weight in copied.parameters():  # not buffers: positions would lose their precision
        weight.data = weight.data.bfloat16()
    return copied


def _fp32_head(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The engine argument by which vLLM computes its head in float32, beside those of the user."""
    overrides = arguments.get("hf_overrides", {})
    if not isinstance(overrides, Mapping):
        raise UsageError(
            "engine argument hf_overrides must be a table, as in hf_overrides={ a = 1 }"
        )
    return {"hf_overrides": {"head_dtype": "float32", **overrides}}


def _fp32_lm_head(config: TaskOptions) -> bool:
    return isinstance(config, TrainConfig) and config.fp32_lm_head


def _server(
    config: TaskOptions,
    policy: Policy,
    dtype: str,
    max_lanes: int,
    arguments: Mapping[str, Any],
    sharing: Sharing | None,
) -> Engine:
    """The client of a vLLM server; only training minds in which precision that samples."""
    from grpo_gym.engines.vllm_server import VLLMServerEngine

    timeout_s = arguments.get("timeout_s", 3600.0)
    if arguments.keys() - {"timeout_s"} or type(timeout_s) not in (int, float) or timeout_s <= 0:
        raise UsageError(
            "engine_arg of a vLLM server is timeout_s, the seconds an answer may take; all else is said "
            "to the server when it is started"
        )
    return VLLMServerEngine(
        config.engine,
        policy.model.config,
        dtype=dtype if isinstance(config, TrainConfig) else None,
        float32_head=_fp32_lm_head(config),
        max_lanes=max_lanes,
        timeout_s=timeout_s,
        sharing=sharing,
    )
