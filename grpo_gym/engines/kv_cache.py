"""One key-value cache for a batch whose lanes come and go.

A prompt is stored once, however many lanes go on from it. What the lanes sampled is stored in columns
of time: every step writes one column for all lanes at once, and a lane sees the columns since it joined.
So nothing is copied when a step is taken, and little when a lane joins or leaves.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, Cache, DynamicCache, PreTrainedConfig, PreTrainedModel

ATTENTION = "grpo_gym_lanes"
_COLUMNS = 64


class Buffers:
    """Keys and values of every layer, each (rows, heads, columns, size), in memory that grows."""

    def __init__(self) -> None:
        self.layers: list[tuple[Tensor, Tensor]] = []

    def reserve(self, rows: int, columns: int, like: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Make room for at least `rows` and `columns`; heads, sizes and dtypes are those of `like`."""
        have_rows, have_columns = self.layers[0][0].shape[0:3:2] if self.layers else (0, 0)
        if rows <= have_rows and columns <= have_columns:
            return
        shape = max(rows, have_rows), have_columns
        if columns > have_columns:
            wanted = max(columns, have_columns * 3 // 2)
            shape = shape[0], -(-wanted // _COLUMNS) * _COLUMNS
        grown = []
        for layer, (keys, values) in enumerate(like):
            pair = tuple(
                x.new_zeros(shape[0], x.shape[1], shape[1], x.shape[3]) for x in (keys, values)
            )
            if self.layers:
                for new, old in zip(pair, self.layers[layer], strict=True):
                    new[:have_rows, :, :have_columns] = old
            grown.append((pair[0], pair[1]))
        self.layers = grown

    def put(self, row: int, new: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Write (n, heads, columns, size) tensors of every layer from `row` and column 0 on."""
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
    """Keys and values of R lanes that go on from n prompts.

    Attributes:
        prompt_lengths: n lengths of the prompts.
        prompt_of: R indices of the lanes' prompts.
        starts: R columns of time, each the lane's first.
        now: the column that the next step writes.
        windows: the sliding windows that the layers asked for in the latest step.
        calls: how many layers took part in the latest step.
    """

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.windows: set[int | None] = set()
        self.calls = 0
        self.clear()

    def clear(self) -> None:
        """Drop every lane and the memory."""
        self.prompts, self.sampled = Buffers(), Buffers()
        self.prompt_lengths: list[int] = []
        self.prompt_of: list[int] = []
        self.starts: list[int] = []
        self.now = 0

    def join(self, encoded: DynamicCache, lengths: Sequence[int], copies: Sequence[int]) -> None:
        """Add prompts, `lengths[i]` columns of row i of `encoded`, and `copies[i]` lanes for each."""
        stored: Layers = [(layer.keys, layer.values) for layer in encoded.layers]  # type: ignore
        first = len(self.prompt_lengths)
        if first == 0:
            self.prompts.layers = stored
        else:
            width = max(*lengths, *self.prompt_lengths)
            self.prompts.reserve(first + len(lengths), width, stored)
            self.prompts.put(first, stored)
        self.prompt_lengths += lengths
        for prompt, count in enumerate(copies, first):
            self.prompt_of += [prompt] * count
            self.starts += [self.now] * count

    def leave(self, row: int) -> None:
        """Drop a lane; the last lane takes its row. A prompt goes with its last lane."""
        prompt = self.prompt_of[row]
        last = len(self.starts) - 1
        if row != last and self.starts[last] < self.now:
            self.sampled.move(last, row, self.starts[last], self.now)
        for values in (self.starts, self.prompt_of):
            values[row] = values[last]
            values.pop()
        if prompt not in self.prompt_of:
            self._forget(prompt)
        if not self.starts:
            self.now = 0

    def positions(self) -> list[int]:
        """R positions of the tokens that the next step takes."""
        return [
            self.prompt_lengths[prompt] + self.now - start
            for prompt, start in zip(self.prompt_of, self.starts, strict=True)
        ]

    @contextmanager
    def step(self, model: PreTrainedModel) -> Iterator[Tensor]:
        """Let `model` run one token per lane within; yields the tokens' (R, 1) positions."""
        self._make_room()
        view = _View(self)
        usual = model.config._attn_implementation
        model.config._attn_implementation = ATTENTION
        token = _step.set(view)
        self.windows, self.calls = set(), 0
        try:
            yield view.positions
        finally:
            _step.reset(token)
            model.config._attn_implementation = usual
        self.now += 1

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Store one (R, H, 1, D) column; return all columns since the earliest lane joined."""
        keys, values = self.sampled.layers[layer_idx]
        rows, first, now = len(self.starts), min(self.starts), self.now
        keys[:rows, :, now : now + 1] = key_states
        values[:rows, :, now : now + 1] = value_states
        return keys[:rows, :, first : now + 1], values[:rows, :, first : now + 1]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens of the longest lane, for models that ask; they are told all positions anyway."""
        return max(self.positions(), default=0)

    def misfit(self, config: PreTrainedConfig) -> str | None:
        """Why the latest step did not do what the model's configuration says, if it did not."""
        if self.calls != config.num_hidden_layers:
            return f"{self.calls} of {config.num_hidden_layers} layers used the cache"
        usual = "sliding_attention" if getattr(config, "sliding_window", None) else "full_attention"
        kinds = set(getattr(config, "layer_types", None) or [usual])
        if not kinds <= {"full_attention", "sliding_attention"}:
            return f"it has layers of types {sorted(kinds)}"
        if "sliding_attention" in kinds and self.windows <= {None}:
            return "its sliding windows are not passed on"
        return None

    def _make_room(self) -> None:
        first, rows = min(self.starts), len(self.starts)
        columns = self.sampled.layers[0][0].shape[2] if self.sampled.layers else 0
        if self.now >= columns and first > columns // 2:
            self.sampled.shift(rows, first, self.now)
            self.starts = [start - first for start in self.starts]
            self.now -= first
        self.sampled.reserve(rows, self.now + 1, self.prompts.layers)

    def _forget(self, prompt: int) -> None:
        last = len(self.prompt_lengths) - 1
        if prompt != last:
            self.prompts.move(last, prompt, 0, self.prompt_lengths[last])
            self.prompt_lengths[prompt] = self.prompt_lengths[last]
            self.prompt_of = [prompt if p == last else p for p in self.prompt_of]
        self.prompt_lengths.pop()


class _View:
    """What the layers need to know in one step, worked out once."""

    def __init__(self, cache: LaneCache) -> None:
        self.cache = cache
        self.prompts, self.width = len(cache.prompt_lengths), max(cache.prompt_lengths)
        device = cache.prompts.layers[0][0].device
        lanes_of: list[list[int]] = [[] for _ in cache.prompt_lengths]
        for lane, prompt in enumerate(cache.prompt_of):
            lanes_of[prompt].append(lane)
        self.most = max(map(len, lanes_of))
        # slots: which lane sits at each of `most` places per prompt; places: where each lane sits.
        slots = [[*lanes, *[0] * (self.most - len(lanes))] for lanes in lanes_of]
        flat = [lane for lanes in slots for lane in lanes]
        self.slots = self.places = None
        if flat != list(range(len(cache.starts))):
            places = [0] * len(cache.starts)
            for prompt, lanes in enumerate(lanes_of):
                for i, lane in enumerate(lanes):
                    places[lane] = prompt * self.most + i
            self.slots = torch.tensor(flat, device=device)
            self.places = torch.tensor(places, device=device)
        self.positions = torch.tensor(cache.positions(), device=device).unsqueeze(1)
        self._hidden: dict[int | None, Tensor | None] = {}

    def hidden(self, window: int | None) -> Tensor | None:
        """(R, 1, 1, prompt and time columns) True where a lane may not look; None if nowhere."""
        self.cache.calls += 1
        self.cache.windows.add(window)
        if window not in self._hidden:
            self._hidden[window] = self._hide(window)
        return self._hidden[window]

    def _hide(self, window: int | None) -> Tensor | None:
        cache, device = self.cache, self.positions.device
        first = min(cache.starts)
        lengths = [cache.prompt_lengths[prompt] for prompt in cache.prompt_of]
        whole = window is None or int(self.positions.max()) < window
        if whole and max(cache.starts) == first and min(lengths) == self.width:
            return None
        prompt_columns = torch.arange(self.width, device=device)
        time_columns = torch.arange(first, cache.now + 1, device=device)
        prompt = prompt_columns >= torch.tensor(lengths, device=device).unsqueeze(1)
        time = time_columns < torch.tensor(cache.starts, device=device).unsqueeze(1)
        if window is not None:
            prompt |= prompt_columns <= self.positions - window
            time |= time_columns <= cache.now - window
        return torch.cat([prompt, time], 1)[:, None, None]

    def by_prompt(self, x: Tensor) -> Tensor:
        """(R, H, g, D) of lanes to (n, H, most * g, D) of prompts."""
        if self.slots is not None:
            x = x.index_select(0, self.slots)
        _, heads, share, size = x.shape
        x = x.view(self.prompts, self.most, heads, share, size).transpose(1, 2)
        return x.reshape(self.prompts, heads, self.most * share, size)

    def by_lane(self, x: Tensor) -> Tensor:
        """(n, H, most * g, D) of prompts to (R, H, g, D) of lanes."""
        _, heads, shares, size = x.shape
        x = x.view(self.prompts, heads, self.most, shares // self.most, size).transpose(1, 2)
        x = x.reshape(self.prompts * self.most, heads, shares // self.most, size)
        return x if self.places is None else x.index_select(0, self.places)


def attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention of one new token per lane, called by the model's layers in place of their own.

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
    view = _step.get()
    prompt_keys, prompt_values = view.cache.prompts.layers[module.layer_idx]
    prompt_keys = prompt_keys[: view.prompts, :, : view.width]
    prompt_values = prompt_values[: view.prompts, :, : view.width]
    lanes, heads, _one, size = query.shape
    folded = query.view(lanes, key.shape[1], heads // key.shape[1], size)
    folded = folded * (size**-0.5 if scaling is None else scaling)
    to_prompt = view.by_lane(view.by_prompt(folded) @ prompt_keys.transpose(2, 3))
    scores = torch.cat([to_prompt, folded @ key.transpose(2, 3)], -1)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    hidden = view.hidden(sliding_window)
    if hidden is not None:
        scores = scores.masked_fill_(hidden, -torch.inf)
    weights = scores.softmax(-1, dtype=torch.float32).to(value.dtype)
    from_prompt = view.by_lane(view.by_prompt(weights[..., : view.width]) @ prompt_values)
    out = from_prompt + weights[..., view.width :] @ value
    return out.reshape(lanes, 1, heads, value.shape[3]), None


_step: ContextVar[_View] = ContextVar("step")
AttentionInterface.register(ATTENTION, attend)
