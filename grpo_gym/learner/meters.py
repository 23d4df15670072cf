"""Metrics that add up over micro-batches and ranks."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from grpo_gym.objectives.ratios import bounded_exp
from grpo_gym.objectives.signals import Outputs, Signals

if TYPE_CHECKING:
    from accelerate import Accelerator


class Meters:
    """Named means, sums, maxima and last values."""

    def __init__(self) -> None:
        self._sums: dict[str, list[float]] = {}
        self._maxima: dict[str, float] = {}
        self._values: dict[str, float] = {}

    def mean(self, name: str, total: float, count: float) -> None:
        """Add to the numerator and the denominator of a mean."""
        entry = self._sums.setdefault(name, [0.0, 0.0])
        entry[0] += total
        entry[1] += count

    def means(self, pairs: Mapping[str, tuple[Tensor, Tensor]]) -> None:
        """Add named (sum, count) pairs."""
        for name, (total, count) in pairs.items():
            self.mean(name, float(total), float(count))

    def max(self, name: str, value: float) -> None:
        """Keep the largest value."""
        self._maxima[name] = max(value, self._maxima.get(name, value))

    def add(self, name: str, value: float) -> None:
        """Add to a plain sum."""
        self._values[name] = self._values.get(name, 0.0) + value

    def set(self, name: str, value: float) -> None:
        """Keep the last value."""
        self._values[name] = value

    def pop(self, name: str) -> float:
        """Take out the numerator of a mean."""
        return self._sums.pop(name)[0]

    def merge(self, other: "Meters") -> None:
        """Add another's means and maxima."""
        for name, (total, count) in other._sums.items():
            self.mean(name, total, count)
        for name, value in other._maxima.items():
            self.max(name, value)

    def forget(self) -> None:
        """Make every mean one of nothing; the names stay."""
        self._sums = {name: [0.0, 0.0] for name in self._sums}

    def reduce(self, accelerator: "Accelerator") -> None:
        """Combine means and maxima over the ranks; all must have the same names."""
        if accelerator.num_processes == 1:
            return
        names = sorted(self._sums)
        sums = torch.tensor([self._sums[name] for name in names], dtype=torch.float64)
        sums = cast(Tensor, accelerator.reduce(sums.to(accelerator.device), "sum")).cpu()
        self._sums = dict(zip(names, sums.tolist(), strict=True))
        names = sorted(self._maxima)
        tops = torch.tensor([[self._maxima[name] for name in names]], dtype=torch.float64)
        tops = cast(Tensor, accelerator.gather(tops.to(accelerator.device))).amax(0).cpu()
        self._maxima = dict(zip(names, tops.tolist(), strict=True))

    def result(self) -> dict[str, float]:
        """Every metric; a mean of nothing is left out, and so is a maximum."""
        means = {name: total / count for name, (total, count) in self._sums.items() if count}
        maxima = {name: value for name, value in self._maxima.items() if value > -math.inf}
        return dict(sorted({"skipped_steps": 0.0, **means, **maxima, **self._values}.items()))


def meter_distances(outputs: Outputs, signals: Signals, meters: Meters) -> None:
    """Record how far the policy is from the old one, and how far that is from the sampler."""
    now = outputs.logprobs.detach()
    old = now if signals.old is None else signals.old
    meters.max("log_ratio_max", _largest((now - old)[signals.mask].abs()))
    if signals.behaviour is not None:
        log_weight = (old - signals.behaviour)[signals.mask & signals.behaviour.isfinite()]
        weight = bounded_exp(log_weight.double())
        meters.mean("weight", float(weight.sum()), weight.numel())
        meters.mean("weight_square", float(weight.square().sum()), weight.numel())
        meters.max("behaviour_gap_max", _largest(log_weight.abs()))


def _largest(values: Tensor) -> float:
    """The largest value; of nothing it is -inf, so that every rank has the same names."""
    return float(values.max()) if values.numel() else -math.inf
