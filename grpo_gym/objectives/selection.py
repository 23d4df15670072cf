"""Choices of what to train on."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from grpo_gym.objectives.choices import choose
from grpo_gym.objectives.reductions import STD_FLOOR
from grpo_gym.objectives.stages import Selection
from grpo_gym.types import Group, Rollout


@dataclass(frozen=True)
class DropZeroVariance(Selection):
    """Drops the groups whose rewards are all equal: they have nothing to teach.

    With `Agent.max_rounds` above 1 they are replaced: DAPO's dynamic sampling, arXiv 2503.14476. A
    group with fewer than two rollouts that can be scored goes too.
    """

    def __call__(self, groups: Sequence[Group]) -> tuple[Group, ...]:
        """See `Selection`."""
        return tuple(group for group in groups if self._teaches(group))

    def _teaches(self, group: Group) -> bool:
        rewards = group.rewards[~np.isnan(group.rewards)]
        return len(rewards) > 1 and bool((rewards - rewards.min()).std() >= STD_FLOOR)


ZeroVariance = Literal["none", "drop", "resample"]


def zero_variance(mode: ZeroVariance, max_rounds: int = 10) -> tuple[tuple[Selection, ...], int]:
    """`Agent.selection` and `Agent.max_rounds` for what happens to groups with equal rewards."""
    drop = (DropZeroVariance(),)
    modes: dict[str, tuple[tuple[Selection, ...], int]] = {
        "none": ((), 1),
        "drop": (drop, 1),
        "resample": (drop, max_rounds),
    }
    return choose("filter_zero_variance", mode, modes)


@dataclass(frozen=True)
class DropDuplicates(Selection):
    """Keeps one of the rollouts of a group that have the same tokens."""

    def __call__(self, groups: Sequence[Group]) -> tuple[Group, ...]:
        """See `Selection`."""
        return tuple(replace(group, rollouts=self._distinct(group)) for group in groups)

    def _distinct(self, group: Group) -> tuple[Rollout, ...]:
        first: dict[tuple[bytes, bool], Rollout] = {}
        for rollout in group.rollouts:
            # A rollout without a reward does not stand for one that has it.
            first.setdefault((rollout.token_ids.tobytes(), math.isnan(rollout.reward)), rollout)
        return tuple(first.values())
