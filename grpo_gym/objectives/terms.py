"""From the tensors of a batch to the terms of a loss."""

import torch
from torch import Tensor

from grpo_gym.objectives.reductions import masked
from grpo_gym.objectives.signals import Credit, Outputs, Signals
from grpo_gym.objectives.stages import Anchor, Terms


def make_terms(outputs: Outputs, signals: Signals, credit: Credit, anchor: Anchor = "old") -> Terms:
    """The terms of a loss: log-probs in float32 or float64, harmless wherever the mask is False."""
    raw = outputs.logprobs
    dtype = torch.float64 if raw.dtype == torch.float64 else torch.float32
    # A token that has become impossible has no gradient to give; nan stays, and spoils the loss.
    mask = credit.mask & ~raw.isinf()

    def safe(values: Tensor | None) -> Tensor | None:
        if values is None:
            return None
        where = mask if values.ndim == mask.ndim else mask[..., None]
        return masked(values.to(dtype), where)

    logprobs = masked(raw.to(dtype), mask)
    stored, behaviour = safe(signals.old), safe(signals.behaviour)
    old = logprobs.detach() if stored is None else stored
    if anchor == "behaviour" and behaviour is not None:
        old = torch.where(behaviour.isnan(), old, behaviour)
    return Terms(
        mask=mask,
        advantages=masked(credit.advantages.to(dtype), mask),
        logprobs=logprobs,
        old=old,
        behaviour=behaviour,
        reference=safe(signals.reference),
        entropy=safe(outputs.entropy),
        tokens=signals.tokens,
        top_ids=signals.behaviour_top_ids,
        behaviour_top=safe(signals.behaviour_top_logprobs),
        policy_top=safe(outputs.top_logprobs),
        keep=credit.keep,
    )
