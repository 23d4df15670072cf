"""The learner's weights into vLLM's model: in place, in memory, and with the CPU build's fault mended."""

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from grpo_gym.errors import UsageError


def take_weights(worker: Any, weights: list[tuple[str, Tensor]]) -> None:
    """Run in vLLM's worker: replace all weights by those of a checkpoint, without the disk."""
    worker.reload_weights(weights_iterator=iter(weights))
    mend_tied_head(worker.get_model())
    mend_experts(worker.get_model())


def mend_tied_head(model: nn.Module) -> None:
    """Tie the output embedding to the input embedding again, and pack it again.

    vLLM's CPU build packs the weights of linear layers for its kernels. When weights are loaded anew
    that name a tied matrix once, as a checkpoint does, the output embedding is not touched, and goes
    on with the packed copy of the old one. Elsewhere the two share their memory, and there is nothing
    to do.
    """
    from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
    from vllm.model_executor.layers.vocab_parallel_embedding import (
        ParallelLMHead,
        VocabParallelEmbedding,
    )
    from vllm.platforms import current_platform

    config = getattr(model, "config", None)
    text = config.get_text_config() if config is not None else None
    if not current_platform.is_cpu() or not getattr(text, "tie_word_embeddings", False):
        return
    modules = list(model.modules())
    heads = [module for module in modules if isinstance(module, ParallelLMHead)]
    inputs = [
        module
        for module in modules
        if isinstance(module, VocabParallelEmbedding) and not isinstance(module, ParallelLMHead)
    ]
    for head in heads:
        (embedding,) = [module for module in inputs if module.weight.shape == head.weight.shape]
        head.weight = embedding.weight
        dispatch_cpu_unquantized_gemm(head, remove_weight=False)


def mend_experts(model: nn.Module) -> None:
    """Pack the weights of a mixture's experts again.

    vLLM's CPU build does so when the model is built, and never after: weights that are loaded anew stay
    as they are in the checkpoint, where its kernel takes them for packed ones.
    """
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    for module in model.modules():
        kernel = getattr(getattr(module, "quant_method", None), "moe_kernel", None)
        if kernel is not None:
            kernel.fused_experts.process_weights_after_loading(module)


class Checkpoint:
    """Turns a `state_dict` of a transformers model into the names of its checkpoint.

    Args:
        config: of the model. Only its shapes are built, no weights.
    """

    def __init__(self, config: Any) -> None:
        from transformers import AutoModelForCausalLM

        with torch.device("meta"):
            self._model = cast(Any, AutoModelForCausalLM).from_config(config)
        self._shapes = {name: value.shape for name, value in self._model.state_dict().items()}
        self._tied: set[str] = set(getattr(self._model, "all_tied_weights_keys", None) or ())

    def weights(self, state: Mapping[str, Tensor]) -> list[tuple[str, Tensor]]:
        """The named tensors that vLLM's model takes.

        Raises:
            UsageError: Names or shapes are not those of the model.
        """
        from transformers.core_model_loading import revert_weight_conversion

        missing = sorted(self._shapes.keys() - state.keys() - self._tied)
        unknown = sorted(state.keys() - self._shapes.keys())
        shapes = [
            f"{name} {tuple(value.shape)} instead of {tuple(self._shapes[name])}"
            for name, value in state.items()
            if name in self._shapes and value.shape != self._shapes[name]
        ]
        for problem, names in (("lack", missing), ("have unknown", unknown), ("differ in", shapes)):
            if names:
                more = f" and {len(names) - 3} more" if len(names) > 3 else ""
                raise UsageError(
                    f"the weights to load {problem} {', '.join(names[:3])}{more}; "
                    "give the state_dict of the same model"
                )
        revert: Callable[..., dict[str, Tensor]] = revert_weight_conversion
        return list(revert(self._model, dict(state)).items())


def scale_logits(factor: float) -> Callable[[nn.Module], None]:
    """A function, for vLLM's worker, that scales all logits of its model from now on."""

    def scale(model: nn.Module) -> None:
        from vllm.model_executor.layers.logits_processor import LogitsProcessor

        for module in model.modules():
            if isinstance(module, LogitsProcessor):
                module.scale *= factor

    return scale
