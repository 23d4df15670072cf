"""One key-value cache for a batch whose lanes come and go.

A prompt is stored once, however many lanes go on from it. What the lanes sampled is stored in columns
of time: every step writes one column for all lanes at once, and a lane sees the columns since it
joined. So nothing is copied when a step is taken, and little when a lane joins or leaves.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, PreTrainedConfig, PreTrainedModel

from grpo_gym.engines.lane_attention import Layers, Step, running

_COLUMNS = 64


class Buffers:
    """Keys and values of every layer, each (rows, heads, columns, size), in memory that grows."""

    def __init__(self, layers: Layers = ()) -> None:
        self.layers = layers

    @property
    def room(self) -> tuple[int, int]:
        """Rows and columns that there is memory for."""
        if not self.layers:
            return 0, 0
        shape = self.layers[0][0].shape
        return shape[0], shape[2]

    def reserve(self, rows: int, columns: int, like: Layers) -> None:
        """Make room for at least `rows` and `columns`; heads, sizes and dtypes are those of `like`."""
        have_rows, have_columns = self.room
        if rows <= have_rows and columns <= have_columns:
            return
        rows = max(rows, have_rows * 3 // 2) if rows > have_rows else have_rows
        if columns > have_columns:
            columns = -(-max(columns, have_columns * 3 // 2) // _COLUMNS) * _COLUMNS
        else:
            columns = have_columns

        def empty(x: Tensor) -> Tensor:
            # Zeros, for what is hidden from a lane must still be finite.
            return x.new_zeros(rows, x.shape[1], columns, x.shape[3])

        old = self.layers
        self.layers = [(empty(keys), empty(values)) for keys, values in like]
        if old:
            self.put(0, old)

    def put(self, row: int, new: Layers) -> None:
        """Write (n, heads, columns, size) tensors of every layer, from `row` and column 0 on."""
        for mine, others in zip(self.layers, new, strict=True):
            for target, source in zip(mine, others, strict=True):
                target[row : row + source.shape[0], :, : source.shape[2]] = source

    def move(self, row: int, to: int, start: int, stop: int) -> None:
        """Copy columns `start` to `stop` of a row over those of another."""
        for pair in self.layers:
            for buffer in pair:
                buffer[to, :, start:stop] = buffer[row, :, start:stop]

    def shift(self, rows: int, start: int, stop: int) -> None:
        """Move columns `start` to `stop` of the first `rows` rows to column 0."""
        for pair in self.layers:
            for buffer in pair:
                buffer[:rows, :, : stop - start] = buffer[:rows, :, start:stop].clone()


class LaneCache(Cache):
    """Keys and values of R lanes that go on from n prompts."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.clear()

    def clear(self) -> None:
        """Drop every lane and the memory."""
        self._prompts, self._sampled = Buffers(), Buffers()
        self._prompt_lengths: list[int] = []
        self._prompt_of: list[int] = []  # of each lane
        self._starts: list[int] = []  # of each lane: the first column of time that is its own
        self._now = 0  # the column of time that the next step writes
        self._latest: Step | None = None  # the latest step, while the lanes are those it knows

    def join(self, encoded: Layers, lengths: Sequence[int], copies: Sequence[int]) -> None:
        """Add prompts, the first `lengths[i]` columns of row i, and `copies[i]` lanes for each."""
        first = len(self._prompt_lengths)
        if first == 0:
            self._prompts = Buffers(encoded)
        else:
            width = max(*lengths, *self._prompt_lengths)
            self._prompts.reserve(first + len(lengths), width, encoded)
            self._prompts.put(first, encoded)
        self._prompt_lengths += lengths
        for prompt, count in enumerate(copies, first):
            self._prompt_of += [prompt] * count
            self._starts += [self._now] * count
        self._latest = None

    def leave(self, row: int) -> None:
        """Drop a lane; the last lane takes its row. A prompt goes with its last lane."""
        prompt = self._prompt_of[row]
        last = len(self._starts) - 1
        if row != last and self._starts[last] < self._now:
            self._sampled.move(last, row, self._starts[last], self._now)
        for values in (self._starts, self._prompt_of):
            values[row] = values[last]
            values.pop()
        if prompt not in self._prompt_of:
            self._forget(prompt)
        if not self._starts:
            self._now = 0
        self._latest = None

    def taken(self, row: int) -> Layers:
        """A copy of a lane's keys and values, each (1, heads, tokens, size)."""
        prompt, start = self._prompt_of[row], self._starts[row]
        length = self._prompt_lengths[prompt]

        def whole(layer: int, which: int) -> Tensor:
            parts = [self._prompts.layers[layer][which][prompt : prompt + 1, :, :length]]
            if start < self._now:  # else there may be no memory for what was sampled yet
                sampled = self._sampled.layers[layer][which]
                parts.append(sampled[row : row + 1, :, start : self._now])
            return torch.cat(parts, 2)

        return [(whole(layer, 0), whole(layer, 1)) for layer in range(len(self._prompts.layers))]

    @contextmanager
    def step(self, model: PreTrainedModel) -> Iterator[Tensor]:
        """Let `model` run one token per lane within; yields the tokens' (R, 1) positions."""
        step = self._next_step()
        with running(step, model):
            yield step.positions
        self._now += 1

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Store one (R, H, 1, D) column; return all columns since the earliest lane joined."""
        step, rows, now = self._latest, len(self._starts), self._now
        if step is None:
            raise RuntimeError("the cache is used outside of a step")
        keys, values = self._sampled.layers[layer_idx]
        keys[:rows, :, now : now + 1] = key_states
        values[:rows, :, now : now + 1] = value_states
        return keys[:rows, :, step.first : now + 1], values[:rows, :, step.first : now + 1]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens before the new ones in the longest lane; models are told all positions anyway."""
        return int(self._latest.positions.max()) if self._latest else 0

    def misfit(self, config: PreTrainedConfig) -> str | None:
        """Why the latest step did not do what the model's configuration says, if it did not."""
        if self._latest is None or self._latest.calls != config.num_hidden_layers:
            return "not all of its layers attend over the cache"
        usual = "sliding_attention" if getattr(config, "sliding_window", None) else "full_attention"
        kinds = set(getattr(config, "layer_types", None) or [usual])
        if not kinds <= {"full_attention", "sliding_attention"}:
            return f"it has layers of types {sorted(kinds)}"
        if "sliding_attention" in kinds and self._latest.windows <= {None}:
            return "its layers do not pass their sliding window on"
        return None

    def _next_step(self) -> Step:
        """What the layers need to know: as before if the lanes are the same, else worked out anew."""
        rows, columns = len(self._starts), self._sampled.room[1]
        if self._latest is not None and self._now < columns:
            self._latest.advance()
            return self._latest
        first = min(self._starts)
        if self._now >= columns and first > columns // 2:
            self._sampled.shift(rows, first, self._now)
            self._starts = [start - first for start in self._starts]
            self._now -= first
        self._sampled.reserve(rows, self._now + 1, self._prompts.layers)
        self._latest = Step(
            self._prompts.layers, self._prompt_lengths, self._prompt_of, self._starts, self._now
        )
        return self._latest

    def _forget(self, prompt: int) -> None:
        last = len(self._prompt_lengths) - 1
        if prompt != last:
            self._prompts.move(last, prompt, 0, self._prompt_lengths[last])
            self._prompt_lengths[prompt] = self._prompt_lengths[last]
            self._prompt_of = [prompt if p == last else p for p in self._prompt_of]
        self._prompt_lengths.pop()
