"""AdamW with a learning rate that is a function of the step."""

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import nn
from transformers import PreTrainedModel

from grpo_gym.errors import UsageError
from grpo_gym.learner.forward import Scorer
from grpo_gym.learner.options import OptimiserOptions
from grpo_gym.learner.sharding import part


def master(model: PreTrainedModel) -> PreTrainedModel:
    """The model with float32 weights where they were half precision."""
    half = (torch.bfloat16, torch.float16)
    if any(parameter.dtype in half for parameter in model.parameters()):
        return cast(PreTrainedModel, cast(Any, model).float())
    return model


def adamw(scorer: Scorer, options: OptimiserOptions) -> torch.optim.Optimizer:
    """AdamW on what has `requires_grad`: matrices with weight decay, the rest without, the critic.

    Raises:
        UsageError: Nothing can be trained.
    """

    def group(parameters: list[nn.Parameter], rate: float, decay: float) -> dict[str, Any]:
        return {"params": parameters, "lr": rate, "full_rate": rate, "weight_decay": decay}

    trained = [p for p in scorer.model.parameters() if p.requires_grad]
    if not trained:
        raise UsageError("the model has no parameter with requires_grad: nothing can be trained")
    rate = options.learning_rate
    groups = [
        group([p for p in trained if p.ndim >= 2], rate, options.weight_decay),
        group([p for p in trained if p.ndim < 2], rate, 0.0),
        group(
            [] if scorer.critic is None else [*scorer.critic.parameters()],
            options.critic_learning_rate,
            0.0,
        ),
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        betas=options.betas,
        eps=options.eps,
        fused=True,
    )


def load_optimiser(optimiser: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Take the moments of a saved state; the settings stay those of the options.

    Raises:
        ValueError: The state is of other parameters.
    """
    own = [{k: v for k, v in group.items() if k != "params"} for group in optimiser.param_groups]
    optimiser.load_state_dict(dict(state))
    for group, settings in zip(optimiser.param_groups, own, strict=True):
        group.update(settings)
    for parameter, moments in optimiser.state.items():
        for name, value in moments.items():
            if name != "step" and value.shape != parameter.shape:
                raise ValueError(
                    f"{name} is {tuple(value.shape)} for a parameter of {tuple(parameter.shape)}"
                )
            moments[name] = part(value, parameter)


def set_rates(optimiser: torch.optim.Optimizer, scale: float) -> float:
    """Set every group's learning rate to `scale` times its full rate; return the first."""
    for group in optimiser.param_groups:
        group["lr"] = group["full_rate"] * scale
    return float(optimiser.param_groups[0]["lr"])
