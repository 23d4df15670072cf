"""One cache for a batch whose lanes come and go: a row per lane, a column per position.

Rows are aligned on the left, so that a token's column is its position: a lane joins by copying its
prompt's keys and values, takes part in a step by writing one column, and leaves by giving its row away.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, Cache, DynamicCache, PreTrainedConfig, PreTrainedModel

ATTENTION = "grpo_gym_lanes"
_GROWTH = 64


class LaneCache(Cache):
    """Keys and values of R lanes for every layer.

    Attributes:
        lengths: R numbers of tokens stored.
        windows: the sliding windows that the layers asked for in the latest step.
        calls: how many layers took part in the latest step.
    """

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.lengths: list[int] = []
        self.windows: set[int | None] = set()
        self.calls = 0
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        self._width = 0
        self._rows = torch.empty(0)
        self._positions = torch.empty(0)
        self._masks: dict[int | None, Tensor | None] = {}

    def join(self, prompts: DynamicCache, sources: Sequence[int], lengths: Sequence[int]) -> None:
        """Add lanes: lane i takes the first `lengths[i]` columns of row `sources[i]` of `prompts`."""
        first = len(self.lengths)
        self.lengths += lengths
        width = max(lengths)
        stored = [(layer.keys, layer.values) for layer in prompts.layers]
        self._reserve(len(self.lengths), max(self.lengths) + 1, stored)
        index = torch.tensor(sources, device=stored[0][0].device)
        for layer, (keys, values) in enumerate(stored):
            self._keys[layer][first : len(self.lengths), :, :width] = keys[index, :, :width]
            self._values[layer][first : len(self.lengths), :, :width] = values[index, :, :width]

    def leave(self, row: int) -> None:
        """Drop a lane; the last lane takes its row."""
        last = len(self.lengths) - 1
        if row != last:
            width = self.lengths[last]
            for buffer in (*self._keys, *self._values):
                buffer[row, :, :width] = buffer[last, :, :width]
            self.lengths[row] = self.lengths[last]
        self.lengths.pop()

    def clear(self) -> None:
        """Drop every lane and the memory."""
        self.lengths = []
        self._keys, self._values = [], []

    @contextmanager
    def step(self, model: PreTrainedModel) -> Iterator[Tensor]:
        """Let `model` run one token for each lane within; yields the (R, 1) positions of the tokens."""
        rows, device = len(self.lengths), self._keys[0].device
        self._width = max(self.lengths) + 1
        self._reserve(rows, self._width, list(zip(self._keys, self._values, strict=True)))
        self._positions = torch.tensor(self.lengths, device=device)
        self._rows = torch.arange(rows, device=device)
        self._masks = {}
        self.windows, self.calls = set(), 0
        usual = model.config._attn_implementation
        token = _running.set(self)
        model.config._attn_implementation = ATTENTION
        try:
            yield self._positions.unsqueeze(1)
        finally:
            model.config._attn_implementation = usual
            _running.reset(token)
        self.lengths = [length + 1 for length in self.lengths]

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Store one (R, H, 1, D) column per lane; return what is stored, stale columns included."""
        rows = len(self.lengths)
        keys, values = self._keys[layer_idx], self._values[layer_idx]
        keys[self._rows, :, self._positions] = key_states.squeeze(2)
        values[self._rows, :, self._positions] = value_states.squeeze(2)
        return keys[:rows, :, : self._width], values[:rows, :, : self._width]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Columns in use, for models that ask; positions are given to the model explicitly."""
        return max(self.lengths, default=0)

    def mask(self, window: int | None) -> Tensor | None:
        """(R, 1, 1, columns) where a lane's new token may look; None if everywhere."""
        self.calls += 1
        self.windows.add(window)
        if window not in self._masks:
            self._masks[window] = self._mask(window)
        return self._masks[window]

    def misfit(self, config: PreTrainedConfig) -> str | None:
        """Why the latest step did not do what the model's configuration says, if it did not."""
        if self.calls != config.num_hidden_layers:
            return f"{self.calls} of {config.num_hidden_layers} layers used the cache"
        kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
        if not kinds <= {"full_attention", "sliding_attention"}:
            return f"it has layers of types {sorted(kinds)}"
        if "sliding_attention" in kinds and self.windows <= {None}:
            return "its sliding windows are not passed on"
        return None

    def _mask(self, window: int | None) -> Tensor | None:
        if min(self.lengths) + 1 == self._width and (window is None or self._width <= window):
            return None
        columns = torch.arange(self._width, device=self._positions.device)
        positions = self._positions.unsqueeze(1)
        seen = columns <= positions
        if window is not None:
            seen &= columns > positions - window
        return seen[:, None, None]

    def _reserve(self, rows: int, columns: int, like: list[tuple[Tensor, Tensor]]) -> None:
        """Make room; `like` gives the heads, head sizes and dtypes of the layers."""
        have_rows, have_columns = self._keys[0].shape[0:3:2] if self._keys else (0, 0)
        if rows <= have_rows and columns <= have_columns:
            return
        rows = max(rows, have_rows)
        if columns > have_columns:
            columns = -(-max(columns, have_columns * 3 // 2) // _GROWTH) * _GROWTH
        else:
            columns = have_columns

        def grown(old: Tensor | None, sample: Tensor) -> Tensor:
            new = sample.new_zeros((rows, sample.shape[1], columns, sample.shape[3]))
            if old is not None:
                new[: old.shape[0], :, : old.shape[2]] = old
            return new

        old_keys = self._keys or [None] * len(like)
        old_values = self._values or [None] * len(like)
        self._keys = [grown(old, k) for old, (k, _) in zip(old_keys, like, strict=True)]
        self._values = [grown(old, v) for old, (_, v) in zip(old_values, like, strict=True)]


def attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention of one query token per lane over the running cache, as transformers calls it.

    The heads that share keys and values stand in for query positions, so nothing is repeated.
    """
    mask = _running.get().mask(sliding_window)
    lanes, heads, _one, size = query.shape
    folded = query.view(lanes, key.shape[1], heads // key.shape[1], size)
    out = scaled_dot_product_attention(folded, key, value, attn_mask=mask, scale=scaling)
    return out.reshape(lanes, 1, heads, value.shape[3]), None


_running: ContextVar[LaneCache] = ContextVar("running")
AttentionInterface.register(ATTENTION, attend)
