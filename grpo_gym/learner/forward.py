"""The policy's forward pass: only sampled tokens are scored, and a prompt is encoded once."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from grpo_gym.errors import UsageError
from grpo_gym.learner.hidden import Place, plain_hidden, shared_hidden
from grpo_gym.learner.logprobs import token_logprobs
from grpo_gym.learner.own_logits import own_scores
from grpo_gym.learner.probes import head, logits_of, sharing_is_exact
from grpo_gym.learner.rows import Rows
from grpo_gym.learner.scores import TokenScores


class Scorer(nn.Module):
    """A causal language model that scores the tokens of rows.

    The whole computation is one `forward`, so that a wrapper for data parallelism sees one call per
    backward pass. Two short cuts are taken where `probes` finds them exact: the prompt that neighbouring
    rows share is encoded once, and the output embedding is applied in tiles.

    Args:
        model: the causal language model; it stays in eval mode, so that dropout moves no ratio.
        share_prompts: encode prompts once, where that is exact.
        recompute: compute activations again in the backward pass, to save memory; prompts are then not
            shared.
        critic: also estimate values, by a linear function of the last hidden state; the policy is not
            changed by the critic's gradient. It starts at 0.
        one_pass: call the model once in a forward pass, whatever the rows are; prompts are then not shared.

    Attributes:
        share_prompts: whether prompts are encoded once.

    Raises:
        UsageError: The model has no head, cannot recompute, or cannot run at all.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        share_prompts: bool = True,
        recompute: bool = False,
        critic: bool = False,
        one_pass: bool = False,
    ) -> None:
        super().__init__()
        self.one_pass = one_pass
        self.model = model
        self.train()
        if head(model) is None:
            raise UsageError(
                f"{type(model).__name__} has no output embedding: load it with AutoModelForCausalLM"
            )
        self.recompute = recompute
        if recompute:
            _enable_recomputation(model)
        self._logits = logits_of(model)
        self.share_prompts = (
            share_prompts and self.tiled and not (recompute or one_pass) and sharing_is_exact(model)
        )
        self.critic: nn.Linear | None = None
        if critic:
            weight = head(model).weight
            width = model.config.get_text_config().hidden_size
            self.critic = nn.Linear(width, 1, device="meta").to_empty(device=weight.device)
            nn.init.zeros_(self.critic.weight)
            nn.init.zeros_(self.critic.bias)
            self.critic.to(weight.dtype)

    @property
    def _no_split_modules(self) -> Any:
        """Which layers `accelerate` shards each by itself; transformers has it under this name."""
        return self.model._no_split_modules

    @property
    def tiled(self) -> bool:
        """Whether the head is applied in tiles."""
        return self._logits is not None

    @property
    def dtype(self) -> torch.dtype:
        """float64 if the model has it, otherwise float32: that of the scores."""
        weight = next(self.model.parameters())
        return torch.float64 if weight.dtype == torch.float64 else torch.float32

    def train(self, mode: bool = True) -> "Scorer":
        """Stay in eval mode whatever is asked."""
        del mode
        return super().train(False)

    def forward(
        self,
        rows: Rows,
        temperature: float = 1.0,
        entropy: bool = False,
        top_ids: Tensor | None = None,
    ) -> TokenScores:
        """Score the positions of `rows.mask`.

        Args:
            rows: b rows of up to T tokens.
            temperature: divides the logits.
            entropy: also give the entropies.
            top_ids: (b, T, K) more tokens to score at each position, without gradient.

        Returns:
            Scores of shape (b, T), and (b, T, K), in float32 or float64; 0 outside the mask.
        """
        with _recomputing(self.model, self.recompute):
            if self._logits is None:
                scores, place = own_scores(self.model, rows, temperature, entropy, top_ids)
                scores = _put(scores, place, rows)
                if self.critic is not None:
                    with torch.no_grad():
                        hidden, place = plain_hidden(self.model, rows)
                    values = _put(self._values(hidden), place, rows).values
                    scores = scores._replace(values=values)
                return scores
            shared = self.share_prompts and len(rows.counts) < len(rows.tokens)
            hidden, place = (
                shared_hidden(self.model, rows)
                if shared
                else plain_hidden(self.model, rows, self.one_pass)
            )
        layer = head(self.model)
        scores = token_logprobs(
            hidden,
            layer.weight,
            rows.tokens[place],
            temperature / self._logits.scale,
            layer.bias,
            entropy,
            None if top_ids is None else top_ids[place],
            softcap=self._logits.softcap,
        )
        if self.critic is not None:
            scores = scores._replace(values=self._values(hidden).values)
        return _put(scores, place, rows)

    def _values(self, hidden: Tensor) -> TokenScores:
        assert self.critic is not None
        values = self.critic(hidden.detach().to(self.critic.weight.dtype))[:, 0]
        values = values if values.dtype == torch.float64 else values.float()
        return TokenScores(values, values=values)


def _put(scores: TokenScores, place: Place, rows: Rows) -> TokenScores:
    """Scores of M tokens as (b, T), 0 elsewhere."""
    return scores.map(
        lambda values: values.new_zeros(*rows.mask.shape, *values.shape[1:]).index_put(
            place, values
        )
    )


def _enable_recomputation(model: PreTrainedModel) -> None:
    try:
        model.gradient_checkpointing_enable({"use_reentrant": False, "preserve_rng_state": False})
    except ValueError as error:
        raise UsageError(
            f"{type(model).__name__} cannot recompute activations: "
            "set gradient_checkpointing to false"
        ) from error


@contextmanager
def _recomputing(model: PreTrainedModel, recompute: bool) -> Iterator[None]:
    """Let the layers recompute what runs inside.

    transformers recomputes layers in training mode only. They alone are put into it, and only here: what
    could drop out is below them, and an engine may use the same model with a cache.
    """
    layers = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
    active = recompute and torch.is_grad_enabled()
    for layer in layers:
        layer.training = active
    try:
        yield
    finally:
        for layer in layers:
            layer.training = False
