"""What the learner takes from accelerate, and what it refuses."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from grpo_gym import UsageError
from grpo_gym.learner import Learner
from grpo_gym.learner.sharding import check_accelerator, load_whole_state, part, whole, whole_state
from tests.commands import ROOT
from tests.models import tiny_model


def accelerator(kind: str = "MULTI_GPU", **options: Any) -> Any:
    """What accelerate would be with such a configuration, as far as the learner asks it."""
    settings: dict[str, Any] = {
        "mixed_precision": "no",
        "gradient_accumulation_steps": 1,
        "dynamo": "NO",
        "fsdp_version": 2,
        "cpu_ram_efficient_loading": False,
        "zero_stage": 2,
        "zero3_init_flag": False,
        "offload": "none",
    } | options
    plugin = SimpleNamespace(
        fsdp_version=settings["fsdp_version"],
        cpu_ram_efficient_loading=settings["cpu_ram_efficient_loading"],
    )
    offload = {"device": settings["offload"]}
    zero = {"stage": settings["zero_stage"], "offload_optimizer": offload}
    deepspeed = SimpleNamespace(
        deepspeed_config={"zero_optimization": zero}, zero3_init_flag=settings["zero3_init_flag"]
    )
    dynamo = SimpleNamespace(backend=SimpleNamespace(value=settings["dynamo"]))
    return SimpleNamespace(
        distributed_type=SimpleNamespace(value=kind),
        state=SimpleNamespace(fsdp_plugin=plugin, dynamo_plugin=dynamo, deepspeed_plugin=deepspeed),
        mixed_precision=settings["mixed_precision"],
        gradient_accumulation_steps=settings["gradient_accumulation_steps"],
    )


@pytest.mark.parametrize("kind", ["NO", "MULTI_CPU", "MULTI_GPU", "MULTI_XPU", "FSDP", "DEEPSPEED"])
def test_processes_alone_together_and_sharded_are_taken(kind: str) -> None:
    check_accelerator(accelerator(kind))


@pytest.mark.parametrize(
    ("found", "line"),
    [
        (accelerator("DEEPSPEED", zero_stage=1), "zero_stage .* use 2 or 3"),
        (accelerator("MEGATRON_LM"), "not with MEGATRON_LM"),
        (accelerator("XLA"), "not with XLA"),
        (accelerator(mixed_precision="bf16"), "mixed_precision bf16 .* --precision bf16"),
        (accelerator(gradient_accumulation_steps=4), "gradient_accumulation_steps .* use 1"),
        (accelerator(dynamo="INDUCTOR"), "dynamo_backend"),
        (accelerator("FSDP", fsdp_version=1), "fsdp_version 1 .* use 2"),
        (accelerator("FSDP", cpu_ram_efficient_loading=True), "cpu_ram_efficient_loading .* false"),
    ],
)
def test_what_would_change_the_update_is_refused(found: Any, line: str) -> None:
    with pytest.raises(UsageError, match=line):
        check_accelerator(found)


@pytest.mark.parametrize("asked", ["FSDP", "DEEPSPEED"])
def test_sharding_that_accelerate_would_leave_out_is_refused(
    asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the CPU accelerate runs whole copies side by side, whatever its configuration asks for."""
    monkeypatch.setenv(f"ACCELERATE_USE_{asked}", "true")
    with pytest.raises(UsageError, match=f"does {asked} on GPUs alone"):
        check_accelerator(accelerator("MULTI_CPU"))


def test_a_learner_checks_its_accelerator() -> None:
    import grpo_agents

    found = Accelerator(cpu=True)
    found.gradient_accumulation_steps = 2
    try:
        with pytest.raises(UsageError, match="gradient_accumulation_steps"):
            Learner(tiny_model(), grpo_agents.grpo(), accelerator=found)
    finally:
        found.gradient_accumulation_steps = 1


def test_weights_that_are_not_sharded_pass_as_they_are() -> None:
    value = torch.arange(4.0)
    assert whole(value) is value
    assert part(value, torch.zeros(4)) is value


def test_tied_weights_are_gathered_once_and_stay_tied() -> None:
    model = tiny_model(tie_word_embeddings=True)
    state = whole_state(model)
    assert state.keys() == model.state_dict().keys()
    head, embedding = state["lm_head.weight"], state["model.embed_tokens.weight"]
    assert head is embedding
    other = tiny_model(seed=1)
    load_whole_state(other, state)
    for name, value in other.state_dict().items():
        assert torch.equal(value, state[name])


def test_weights_of_another_model_are_refused_as_torch_refuses_them() -> None:
    state = whole_state(tiny_model())
    state["nowhere"] = torch.zeros(1)
    with pytest.raises(RuntimeError, match="nowhere"):
        load_whole_state(tiny_model(), state)


CONFIGURATIONS = sorted((ROOT / "examples" / "accelerate").glob("*.yaml"))


@pytest.mark.skipif(not CONFIGURATIONS, reason="the examples are not here")
@pytest.mark.parametrize("path", CONFIGURATIONS, ids=lambda path: path.stem)
def test_accelerate_reads_every_configuration_and_the_learner_takes_it(path: Path) -> None:
    from accelerate.commands.config.config_args import load_config_from_file

    config = load_config_from_file(str(path))
    sharding: dict[str, Any] = config.fsdp_config or {}
    zero: dict[str, Any] = config.deepspeed_config or {}
    check_accelerator(
        accelerator(
            config.distributed_type.value,
            mixed_precision=config.mixed_precision,
            gradient_accumulation_steps=zero.get("gradient_accumulation_steps", 1),
            zero_stage=zero.get("zero_stage"),
            zero3_init_flag=zero.get("zero3_init_flag", False),
            offload=zero.get("offload_optimizer_device", "none"),
            fsdp_version=sharding.get("fsdp_version"),
            cpu_ram_efficient_loading=sharding.get("fsdp_cpu_ram_efficient_loading"),
        )
    )
    assert path.name in (path.parent / "README.md").read_text(encoding="utf-8")
