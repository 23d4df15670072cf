"""Attention of one new token per lane, where lanes that share a prompt share its keys and values."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel

_NAME = "grpo_gym_lanes"

Layers = Sequence[tuple[Tensor, Tensor]]
"""Keys and values of every layer, each (rows, heads, columns, size)."""


class Step:
    """What the layers need to know in one step, worked out once.

    Args:
        prompts: keys and values of n prompts, aligned on the left.
        prompt_lengths: n lengths of the prompts.
        prompt_of: R indices of the lanes' prompts.
        starts: R columns of time, each the first in which its lane took part.
        now: the column of time of this step.

    Attributes:
        positions: (R, 1) of the new tokens in their sequences.
        windows: the sliding windows that the layers asked for.
        calls: how many layers asked.
    """

    def __init__(
        self,
        prompts: Layers,
        prompt_lengths: Sequence[int],
        prompt_of: Sequence[int],
        starts: Sequence[int],
        now: int,
    ) -> None:
        self._now, self._first = now, min(starts)
        self._count, self.width = len(prompt_lengths), max(prompt_lengths)
        self._prompts = prompts
        self._device = prompts[0][0].device
        self._starts = torch.tensor(starts, device=self._device).unsqueeze(1)
        self._lengths = self._tensor([prompt_lengths[prompt] for prompt in prompt_of]).unsqueeze(1)
        self.positions = self._lengths + now - self._starts
        self.windows: set[int | None] = set()
        self.calls = 0
        self._hidden: dict[int | None, Tensor | None] = {}
        self._even = min(prompt_lengths) == self.width and max(starts) == self._first
        self._seat(prompt_of)

    def prompts(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of the prompts, each (n, key heads, width, size)."""
        keys, values = self._prompts[layer]
        return keys[: self._count, :, : self.width], values[: self._count, :, : self.width]

    def hidden(self, window: int | None) -> Tensor | None:
        """(R, 1, 1, width + time columns) True where a lane may not look; None if nowhere."""
        self.calls += 1
        self.windows.add(window)
        if window not in self._hidden:
            self._hidden[window] = self._hide(window)
        return self._hidden[window]

    def by_prompt(self, x: Tensor) -> Tensor:
        """(R, H, g, D) of lanes to (n, H, seats * g, D) of prompts."""
        if self._lane_at is not None:
            x = x.index_select(0, self._lane_at)
        _, heads, share, size = x.shape
        x = x.reshape(self._count, self._seats, heads, share, size).transpose(1, 2)
        return x.reshape(self._count, heads, self._seats * share, size)

    def by_lane(self, x: Tensor) -> Tensor:
        """(n, H, seats * g, D) of prompts to (R, H, g, D) of lanes."""
        _, heads, shares, size = x.shape
        x = x.view(self._count, heads, self._seats, shares // self._seats, size).transpose(1, 2)
        x = x.reshape(self._count * self._seats, heads, shares // self._seats, size)
        return x if self._seat_of is None else x.index_select(0, self._seat_of)

    def _seat(self, prompt_of: Sequence[int]) -> None:
        """Give each lane one of as many seats per prompt as the fullest prompt needs."""
        lanes_of: list[list[int]] = [[] for _ in range(self._count)]
        for lane, prompt in enumerate(prompt_of):
            lanes_of[prompt].append(lane)
        self._seats = max(map(len, lanes_of))
        lane_at = [0] * (self._count * self._seats)
        seat_of = [0] * len(prompt_of)
        for prompt, lanes in enumerate(lanes_of):
            for seat, lane in enumerate(lanes, prompt * self._seats):
                lane_at[seat], seat_of[lane] = lane, seat
        in_order = lane_at == list(range(len(prompt_of)))
        self._lane_at = None if in_order else self._tensor(lane_at)
        self._seat_of = None if in_order else self._tensor(seat_of)

    def _hide(self, window: int | None) -> Tensor | None:
        if self._even and (window is None or int(self.positions.max()) < window):
            return None
        prompt_columns = torch.arange(self.width, device=self._device)
        time_columns = torch.arange(self._first, self._now + 1, device=self._device)
        prompt = prompt_columns >= self._lengths
        time = time_columns < self._starts
        if window is not None:
            prompt |= prompt_columns <= self.positions - window
            time |= time_columns <= self._now - window
        return torch.cat([prompt, time], 1)[:, None, None]

    def _tensor(self, values: list[int]) -> Tensor:
        return torch.tensor(values, device=self._device)


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention as the layers of transformers call it, in place of their own.

    The query heads that share a key head, and the lanes that share a prompt, are rows of one matrix
    product, so neither keys nor values are repeated.

    Args:
        module: the layer; its `layer_idx` says which.
        query: (R, heads, 1, size).
        key: (R, key heads, S, size) of the sampled tokens, from `LaneCache.update`.
        value: (R, key heads, S, size).
        attention_mask: unused; the running step knows what each lane may see.
        scaling: of the scores; 1 / sqrt(size) by default.
        sliding_window: how many tokens back a lane sees, itself included.
        softcap: scores are squeezed into (-softcap, softcap) by tanh.
    """
    step = _running.get()
    prompt_keys, prompt_values = step.prompts(module.layer_idx)
    lanes, heads, _one, size = query.shape
    folded = query.reshape(lanes, key.shape[1], heads // key.shape[1], size)
    folded = folded * (size**-0.5 if scaling is None else scaling)
    to_prompt = step.by_lane(step.by_prompt(folded) @ prompt_keys.transpose(2, 3))
    scores = torch.cat([to_prompt, folded @ key.transpose(2, 3)], -1)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    hidden = step.hidden(sliding_window)
    if hidden is not None:
        scores = scores.masked_fill_(hidden, -torch.inf)
    weights = scores.softmax(-1, dtype=torch.float32).to(value.dtype)
    from_prompt = step.by_lane(step.by_prompt(weights[..., : step.width]) @ prompt_values)
    out = from_prompt + weights[..., step.width :] @ value
    return out.reshape(lanes, 1, heads, value.shape[3]), None


@contextmanager
def running(step: Step, model: PreTrainedModel) -> Iterator[None]:
    """Let the layers of `model` attend as this step says."""
    usual = model.config._attn_implementation
    token = _running.set(step)
    model.config._attn_implementation = _NAME
    try:
        yield
    finally:
        model.config._attn_implementation = usual
        _running.reset(token)


_running: ContextVar[Step] = ContextVar("running")
AttentionInterface.register(_NAME, attend)
