"""Short probes that decide whether a model's gradient may be computed by a short cut."""

import logging
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from grpo_gym.errors import UsageError
from grpo_gym.learner.hidden import backbone, plain_hidden, shared_hidden
from grpo_gym.learner.rows import pack

logger = logging.getLogger(__name__)


def head(model: PreTrainedModel) -> Any:
    """The output embedding; None if the model has none."""
    return cast(Any, model).get_output_embeddings()


@dataclass(frozen=True)
class Logits:
    """How logits come from z, the output embedding times the backbone's last hidden state.

    Attributes:
        scale: they are z times this, as in Cohere and Granite;
        softcap: or c tanh(z / c), as in Gemma 2.
    """

    scale: float = 1.0
    softcap: float | None = None


@torch.no_grad()
def logits_of(model: PreTrainedModel) -> Logits | None:
    """How the model makes its logits; None if in a way that is not known, and a warning is logged.

    The head is fed large numbers, where a soft cap shows, and what the model feeds it is compared with
    what the backbone gives.

    Raises:
        UsageError: The model cannot run.
    """
    layer = head(model)
    if not isinstance(layer, nn.Linear):
        logger.warning("the head is not tiled: it is a %s", type(layer).__name__)
        return None
    ids = torch.arange(6, device=layer.weight.device)[None] % len(layer.weight)
    fed: list[Tensor] = []
    large: list[Tensor] = []

    def feed(_: nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor]:
        fed.append(arguments[0])
        wave = torch.arange(arguments[0].numel(), dtype=torch.float32, device=arguments[0].device)
        large.append((100 * wave.sin()).reshape(arguments[0].shape).to(arguments[0].dtype))
        return (large[-1],)

    handle = layer.register_forward_pre_hook(feed)
    try:
        logits = model(input_ids=ids, use_cache=False).logits
    except Exception as error:  # as a configuration that contradicts itself makes it raise
        line = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise UsageError(f"{type(model).__name__} fails on six tokens: {line}") from error
    finally:
        handle.remove()
    out = backbone(model)(input_ids=ids, use_cache=False, return_dict=True)
    hidden = getattr(out, "last_hidden_state", None)
    if hidden is not None and len(fed) == 1 and _close(fed[0], hidden):
        plain = layer(large[0])
        for form in _forms(model, logits, plain):
            if _close(logits, _formed(plain, form)):
                return form
    logger.warning("the head is not tiled: this model changes its hidden states or final logits")
    return None


def _forms(model: PreTrainedModel, logits: Tensor, plain: Tensor) -> list[Logits]:
    """What may turn `plain` into `logits`; a cap first, which small numbers do not show."""
    cap = getattr(model.config.get_text_config(), "final_logit_softcapping", None)
    scale = float((logits.double() * plain.double()).sum() / plain.double().square().sum())
    forms = [Logits(softcap=float(cap))] if cap else []
    return [*forms, Logits(), *([Logits(scale)] if scale > 0 else [])]


def _formed(plain: Tensor, form: Logits) -> Tensor:
    if form.softcap is not None:
        return form.softcap * torch.tanh(plain / form.softcap)
    return plain * form.scale


@torch.no_grad()
def sharing_is_exact(model: PreTrainedModel) -> bool:
    """Whether encoding prompts once gives the hidden states of whole rows, on three short rows.

    If not, a warning is logged.
    """
    weight = head(model).weight
    ids = np.arange(40, dtype=np.int64) * 7 % min(101, len(weight))
    rows = pack(
        [ids[:3], ids[:3], ids[3:8]],
        [ids[8:14], ids[14:18], ids[18:25]],
        [np.ones(6, np.bool_), np.ones(4, np.bool_), np.arange(7) % 3 != 1],
    ).to(weight.device)
    plain, _ = plain_hidden(model, rows)
    try:
        shared, _ = shared_hidden(model, rows)
    except (TypeError, ValueError, AttributeError, RuntimeError, IndexError) as error:
        logger.warning("prompts are not shared: this model cannot do it (%s)", error)
        return False
    if _close(shared, plain):
        return True
    logger.warning("prompts are not shared: this model's cached computation differs")
    return False


def _close(actual: Tensor, expected: Tensor) -> bool:
    """Whether two tensors agree to what their dtype can tell, relative to their size.

    float64 is held to float32, since many models compute their norms in it.
    """
    if actual.shape != expected.shape:
        return False
    precision = max(torch.finfo(actual.dtype).eps, torch.finfo(torch.float32).eps)
    scale = expected.abs().max().double().clamp(min=1e-6)
    return bool((actual - expected).abs().max().double() <= 200 * precision * scale)
