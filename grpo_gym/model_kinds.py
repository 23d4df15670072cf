"""Which models are refused, by their kind and by what they look at, and why."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_gym.errors import UsageError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_DUST = 1e-4
"""The share of a gradient that rounding may leave where it is 0."""


def check_kind(name: str, source: str | Path, offline: bool) -> None:
    """Refuse what is no causal language model of text.

    Code that comes with a model is never run.

    Args:
        name: of the model, as the user gave it.
        source: its folder or hub id.
        offline: look for it here alone.

    Raises:
        UsageError: It is a model of another kind.
        ValueError: Its config.json makes no sense to transformers.
        OSError: It cannot be read.
    """
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig

    config = AutoConfig.from_pretrained(source, local_files_only=offline, trust_remote_code=False)
    kind = config.model_type
    if getattr(config, "is_encoder_decoder", False):
        raise UsageError(
            f"model {name!r} is an encoder and a decoder ({kind}): give a causal language model, which "
            "has no encoder"
        )
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise UsageError(
            f"model {name!r} is a {kind}, which transformers does not load as a causal language model: "
            "give one of text alone"
        )


def check_causal(name: str, model: "PreTrainedModel") -> None:
    """Refuse a model whose logits at a token depend on tokens after it, by their gradient, which is exact.

    Such are models that read both ways, and mixtures of experts that choose experts by what stands elsewhere
    in the batch. A token sampled from them has another log-prob as soon as the next one follows.

    Args:
        name: of the model, as the user gave it.
        model: in eval mode.

    Raises:
        UsageError: It is one, or it cannot run.
    """
    import torch
    from torch import Tensor, nn

    seen: list[Tensor] = []

    def see(module: nn.Module, arguments: Any, output: Tensor) -> Tensor:
        seen.append(output.detach().requires_grad_())
        return seen[-1].clone()  # which the model may change in place

    embeddings: Any = model.get_input_embeddings()
    at, size = 2, int(embeddings.weight.shape[0])
    ids = torch.arange(6, device=embeddings.weight.device)[None] % size
    handle = embeddings.register_forward_hook(see)
    slope: Any = None
    try:
        with torch.enable_grad():
            logits = model(input_ids=ids, use_cache=False).logits[0, at].float()
            if seen:
                (slope,) = torch.autograd.grad(logits.square().sum(), seen[:1], allow_unused=True)
    except Exception as error:  # as a configuration that contradicts itself makes it raise
        line = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise UsageError(
            f"model {name!r} ({type(model).__name__}) fails on six tokens: {line}"
        ) from error
    finally:
        handle.remove()
    if slope is None:  # tokens come in by another way, which is left to the engine's own probe
        return
    before, after = slope[0, :at].abs().max(), slope[0, at + 1 :].abs().max()
    if after > _DUST * before:
        raise UsageError(
            f"model {name!r} is no causal language model: as transformers computes it, the logits at a token "
            f"of {type(model).__name__} depend on the tokens after it"
        )


def unloadable(name: str, error: Exception) -> UsageError:
    """What to tell a user whose model a loader refused with `error`."""
    if "trust_remote_code" in str(error):
        return UsageError(
            f"model {name!r} needs code that comes with it, which is never run here: give a model that "
            "transformers knows by itself"
        )
    return UsageError(f"model {name!r} cannot be loaded: {' '.join(str(error).split())[:300]}")
