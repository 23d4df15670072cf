"""Which decoder a model gets: the fastest that does what the model's own forward pass does."""

import logging

import torch
from torch import Tensor
from transformers import PreTrainedModel

from grpo_gym.engines.decoders import Decoder, JointDecoder
from grpo_gym.engines.prefill import Prompt, vocabulary
from grpo_gym.engines.slow_decoders import SeparateDecoder, WholeDecoder
from grpo_gym.engines.turns import Turns
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
    if not _close(torch.cat(got), torch.cat(want)):
        difference = float((torch.cat(got) - torch.cat(want)).abs().max())
        return f"its logits are {difference:.2g} off those of a plain forward pass"
    if isinstance(decoder, JointDecoder):
        problem = decoder.cache.misfit(model.config.get_text_config())
        if problem is None and not _resumes(decoder, a, b, [whole_a[-1], whole_b[-1]]):
            decoder.turns.most_bytes = 0
        return problem
    return None


def _resumes(decoder: JointDecoder, a: Prompt, b: Prompt, want: list[Tensor]) -> bool:
    """Whether what two lanes leave behind is right to go on from."""
    decoder.clear()
    usual, decoder.turns = decoder.turns, Turns(decoder.turns.most_bytes, 1)
    decoder.prefill([a[:2], b[:1]], [1, 1])
    decoder.decode([a[2], b[1]])
    decoder.leave(1, b[:2])
    decoder.leave(0, a[:3])
    try:
        got = decoder.prefill([a, b], [1, 1])
    except Exception:  # as unknown an architecture as above
        return False
    used, decoder.turns = decoder.turns.bytes == 0, usual
    return used and _close(got, torch.stack(want))


def _close(got: Tensor, want: Tensor) -> bool:
    tolerance = 1e-3 if want.dtype == torch.float32 else 0.1
    return bool((got - want).abs().max() <= tolerance * want.abs().max())
