"""Which decoder a model gets: the fastest that does what the model's own forward pass does."""

import logging

import torch
from transformers import PreTrainedModel

from grpo_gym.engines.decoders import Decoder, JointDecoder, vocabulary
from grpo_gym.engines.slow_decoders import SeparateDecoder, WholeDecoder
from grpo_gym.errors import UsageError

logger = logging.getLogger(__name__)


@torch.no_grad()
def decoder_for(model: PreTrainedModel, budget: int) -> Decoder:
    """The fastest decoder that agrees with the model's forward pass on a probe.

    A warning is logged if that is the slowest.

    Raises:
        UsageError: None does: this model does not read from left to right.
    """
    name = type(model).__name__
    problem: str | None = None
    for kind in (JointDecoder, SeparateDecoder, WholeDecoder):
        decoder = kind(model, budget)
        try:
            problem = _disagreement(decoder)
        except Exception as error:  # whatever an unknown architecture raises, it does not fit
            problem = f"{type(error).__name__}: {error}"
        decoder.clear()
        if problem is None:
            if kind is WholeDecoder:
                logger.warning("sampling is slow: for each token %s runs all before it", name)
            return decoder
        logger.debug("%s: %s", kind.__name__, problem)
    raise UsageError(
        f"{name} cannot generate token by token ({problem}); "
        "give a causal language model of transformers"
    )


def _disagreement(decoder: Decoder) -> str | None:
    """What is wrong with the decoder's logits for three lanes of two prompts, if anything."""
    model = decoder.model
    size = vocabulary(model)
    a, b = (tuple((7 * i + k) % size for i in range(5)) for k in (1, 2))
    whole_a, whole_b = (
        model(torch.tensor([ids], device=model.device), use_cache=False).logits[0] for ids in (a, b)
    )
    got = [decoder.prefill([a[:3], b[:2]], [2, 1])]
    got += [decoder.decode([a[i], a[i], b[i - 1]]) for i in (3, 4)]
    want = [torch.stack([whole_a[i], whole_a[i], whole_b[i - 1]]) for i in (2, 3, 4)]
    tolerance = 1e-3 if whole_a.dtype == torch.float32 else 0.1
    difference = max(float((g - w).abs().max()) for g, w in zip(got, want, strict=True))
    if not difference <= tolerance * max(float(w.abs().max()) for w in want):
        return f"its logits are {difference:.2g} off those of a plain forward pass"
    if isinstance(decoder, JointDecoder):
        return decoder.cache.misfit(model.config.get_text_config())
    return None
