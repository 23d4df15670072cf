"""A head in float32 under a body in bfloat16, so that sampler and learner agree on the logits.

MiniMax, "MiniMax-M1", 2025, arXiv 2506.13585, found the head to be where their probabilities differed
most; Khatri et al., "The Art of Scaling RL Compute for LLMs" (ScaleRL), 2025, arXiv 2510.13786, take it over.
"""

from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from grpo_gym.errors import UsageError
from grpo_gym.learner.probes import head


class Float32Head(nn.Linear):
    """An output embedding that turns what it is given, and its weights, to float32."""

    def forward(self, input: Tensor) -> Tensor:
        """(..., V) logits, in float32, or in float64 if the hidden states (..., H) are."""
        dtype = torch.promote_types(input.dtype, torch.float32)
        bias = None if self.bias is None else self.bias.to(dtype)
        with torch.autocast(input.device.type, enabled=False):
            return nn.functional.linear(input.to(dtype), self.weight.to(dtype), bias)


def use_float32_head(model: PreTrainedModel) -> None:
    """Give `model` such a head in place of its own; the weights, tied or not, stay the same.

    Raises:
        UsageError: Its head is no linear layer.
    """
    own = head(model)
    if type(own) is Float32Head:
        return
    if type(own) is not nn.Linear:
        raise UsageError(
            f"fp32_lm_head needs a head that is a linear layer, but that of {type(model).__name__} is a "
            f"{type(own).__name__}"
        )
    layer = Float32Head(own.in_features, own.out_features, own.bias is not None, device="meta")
    layer.weight, layer.bias = own.weight, own.bias
    cast(Any, model).set_output_embeddings(layer.train(own.training))
