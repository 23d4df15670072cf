"""How the learner optimises."""

import math
from dataclasses import dataclass
from typing import Literal

from grpo_gym.errors import UsageError


@dataclass(frozen=True)
class OptimiserOptions:
    """Settings of the learner.

    Attributes:
        learning_rate: of AdamW, after the warm-up.
        critic_learning_rate: the same for the critic, where the agent has one: it is a linear function
            of the policy's hidden states.
        weight_decay: of AdamW, on matrices only (not on biases and norms).
        betas: of AdamW.
        eps: of AdamW.
        schedule: of the learning rate after the warm-up: constant, or to 0 at `total_steps` along a
            line or half a cosine.
        warmup_steps: optimiser steps over which the learning rate rises from 0 along a line.
        total_steps: optimiser steps of the whole run; the linear and the cosine schedule need it.
        max_grad_norm: gradients are scaled down to this 2-norm; infinity leaves them.
        epochs: passes over each batch.
        mini_batches: optimiser steps in each pass.
        tokens_per_micro_batch: most tokens, padding included, in one forward pass; a row that is
            longer goes alone. Decides memory and speed, never the result.
        temperature: the sampling temperature, at which log-probs are computed.
        precision: "bf16" runs the model under autocast; weights, log-probs and loss stay in
            float32.
        fp32_lm_head: turn hidden states and head to float32 for the logits, also in a model that makes
            its logits itself; all others get that here in any case.
        share_prompts: encode each prompt once for the rows that have it, where the model can.
        gradient_checkpointing: recompute activations in the backward pass: less memory, more time.
            Prompts are then not shared.
        max_bad_steps: this many steps in a row with a loss or gradient that is not finite raise an
            error.
        seed: decides how groups are drawn into mini-batches, together with the version.
    """

    learning_rate: float = 1e-6
    critic_learning_rate: float = 1e-3
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: int = 0
    total_steps: int = 0
    max_grad_norm: float = 1.0
    epochs: int = 1
    mini_batches: int = 1
    tokens_per_micro_batch: int = 16_384
    temperature: float = 1.0
    precision: Literal["fp32", "bf16"] = "fp32"
    fp32_lm_head: bool = False
    share_prompts: bool = True
    gradient_checkpointing: bool = False
    max_bad_steps: int = 3
    seed: int = 0

    def __post_init__(self) -> None:
        positive = (
            "epochs",
            "mini_batches",
            "tokens_per_micro_batch",
            "temperature",
            "max_grad_norm",
            "max_bad_steps",
            "eps",
        )
        for name in positive:
            if not getattr(self, name) > 0:
                raise UsageError(f"{name} must be above 0, got {getattr(self, name)}")
        for name in (
            "learning_rate",
            "critic_learning_rate",
            "weight_decay",
            "warmup_steps",
            "total_steps",
        ):
            value = getattr(self, name)
            if not (value >= 0 and math.isfinite(value)):
                raise UsageError(f"{name} must be a finite number, at least 0, got {value}")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise UsageError(f"betas must be at least 0 and below 1, got {self.betas}")
        if self.schedule not in ("constant", "linear", "cosine"):
            raise UsageError(f"schedule must be constant, linear or cosine, got {self.schedule!r}")
        if self.precision not in ("fp32", "bf16"):
            raise UsageError(f"precision must be fp32 or bf16, got {self.precision!r}")
        if self.schedule != "constant" and self.total_steps <= self.warmup_steps:
            raise UsageError(
                f"the {self.schedule} schedule needs total_steps above warmup_steps, "
                f"got {self.total_steps} and {self.warmup_steps}"
            )

    @property
    def steps_per_update(self) -> int:
        """Optimiser steps on one batch."""
        return self.epochs * self.mini_batches

    def scale(self, step: int) -> float:
        """Share of the learning rate that optimiser step `step`, counted from 0, takes."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        if self.schedule == "constant":
            return 1.0
        done = min(1.0, (step - self.warmup_steps) / (self.total_steps - self.warmup_steps))
        return 1 - done if self.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2
