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
    """What the layers need to know in a step; until lanes join or leave, it serves for the next, too.

    Args:
        prompts: keys and values of n prompts, aligned on the left.
        prompt_lengths: n lengths of the prompts.
        prompt_of: R indices of the lanes' prompts.
        starts: R columns of time, each the first in which its lane takes part.
        now: the column of time of this step.

    Attributes:
        first: the earliest of the lanes' columns.
        width: the longest prompt.
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
        self.now, self.first = now, min(starts)
        self.count, self.width = len(prompt_lengths), max(prompt_lengths)
        self.windows: set[int | None] = set()
        self.calls = 0
        self._prompts = prompts
        self._device = prompts[0][0].device
        self._starts = self._tensor(starts).unsqueeze(1)
        self._lengths = self._tensor([prompt_lengths[prompt] for prompt in prompt_of]).unsqueeze(1)
        self.positions = self._lengths + now - self._starts
        self._hidden: dict[int | None, Tensor | None] = {}
        self._even = min(prompt_lengths) == self.width and max(starts) == self.first
        self._seat(prompt_of)

    def advance(self) -> None:
        """Go on to the next column of time with the same lanes."""
        self.now += 1
        self.positions = self.positions + 1
        self._hidden = {}
        self.calls = 0

    def prompts(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of the prompts, each (n * H, width, size)."""
        keys, values = self._prompts[layer]
        return (
            keys[: self.count, :, : self.width].flatten(0, 1),
            values[: self.count, :, : self.width].flatten(0, 1),
        )

    def hidden(self, window: int | None) -> Tensor | None:
        """(R, 1, 1, width + time columns) True where a lane may not look; None if nowhere."""
        self.calls += 1
        self.windows.add(window)
        if window not in self._hidden:
            self._hidden[window] = self._hide(window)
        return self._hidden[window]

    def by_prompt(self, x: Tensor) -> Tensor:
        """(R, H, g, D) of lanes to (n * H, seats * g, D) of prompts."""
        if self._lane_at is not None:
            x = x.index_select(0, self._lane_at)
        x = x.reshape(self.count, self._seats, *x.shape[1:]).transpose(1, 2)
        return x.flatten(2, 3).flatten(0, 1)

    def by_lane(self, x: Tensor, shape: torch.Size) -> Tensor:
        """(n * H, seats * g, D) of prompts to (R, H, g, D) of lanes; `shape` is the latter's."""
        _, heads, share, _ = shape
        x = x.view(self.count, heads, self._seats, share, x.shape[-1]).transpose(1, 2)
        x = x.flatten(0, 1)
        return x if self._seat_of is None else x.index_select(0, self._seat_of)

    def _seat(self, prompt_of: Sequence[int]) -> None:
        """Give each lane one of as many seats per prompt as the fullest prompt needs."""
        lanes_of: list[list[int]] = [[] for _ in range(self.count)]
        for lane, prompt in enumerate(prompt_of):
            lanes_of[prompt].append(lane)
        self._seats = max(map(len, lanes_of))
        lane_at = [0] * (self.count * self._seats)
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
        time_columns = torch.arange(self.first, self.now + 1, device=self._device)
        prompt = prompt_columns >= self._lengths
        time = time_columns < self._starts
        if window is not None:
            prompt |= prompt_columns <= self.positions - window
            time |= time_columns <= self.now - window
        return torch.cat([prompt, time], 1)[:, None, None]

    def _tensor(self, values: Sequence[int]) -> Tensor:
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
    groups = key.shape[1]
    folded = query.reshape(lanes, groups, heads // groups, size)
    folded = folded * (size**-0.5 if scaling is None else scaling)
    prompt_scores = torch.bmm(step.by_prompt(folded), prompt_keys.mT)
    time_scores = torch.bmm(folded.flatten(0, 1), key.flatten(0, 1).mT)
    scores = torch.cat(
        [
            step.by_lane(prompt_scores, folded.shape),
            time_scores.view(lanes, groups, *time_scores.shape[1:]),
        ],
        -1,
    )
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    hidden = step.hidden(sliding_window)
    if hidden is not None:
        scores = scores.masked_fill_(hidden, -torch.inf)
    weights = scores.softmax(-1, dtype=torch.float32).to(value.dtype)
    from_prompt = torch.bmm(step.by_prompt(weights[..., : step.width]), prompt_values)
    out = torch.baddbmm(
        step.by_lane(from_prompt, folded.shape).flatten(0, 1),
        weights[..., step.width :].flatten(0, 1),
        value.flatten(0, 1),
    )
    return out.view(lanes, 1, heads, value.shape[3]), None


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
