"""Shortest wins in games whose table of transitions is known."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Outcome = tuple[float, int, float, bool]
"""Probability, next state, reward, and whether the episode ends."""

Table = Mapping[int, Mapping[int, Sequence[Outcome]]]
"""The outcomes of each action in each state, as Gymnasium's toy texts have them in `P`."""


@dataclass(frozen=True)
class Step:
    """One action of a plan.

    Attributes:
        action: its number.
        reward: what it pays.
        winning: the actions that would win at once where it is taken.
    """

    action: int
    reward: float
    winning: frozenset[int]


def shortest_path(table: Table, start: int, win_reward: float) -> tuple[Step, ...] | None:
    """The fewest actions that end the game with at least `win_reward` in the last step.

    Returns:
        The plan; None if there is none, or if chance has a part in the game.
    """
    came: dict[int, tuple[int, Step] | None] = {start: None}
    queue = deque([start])
    while queue:
        state = queue.popleft()
        certain = _certain(table[state])
        if certain is None:
            return None
        winning = frozenset(
            action
            for action, (_, reward, ended) in certain.items()
            if ended and reward >= win_reward
        )
        for action, (following, reward, ended) in certain.items():
            step = Step(action, reward, winning)
            if action in winning:
                return (*_back(came, state), step)
            if not ended and following not in came:
                came[following] = (state, step)
                queue.append(following)
    return None


def _certain(
    actions: Mapping[int, Sequence[Outcome]],
) -> dict[int, tuple[int, float, bool]] | None:
    """The one outcome of each action; None if an action has several."""
    found = {}
    for action, outcomes in actions.items():
        possible = {(int(s), float(r), bool(end)) for p, s, r, end in outcomes if p > 0}
        if len(possible) != 1:
            return None
        (found[action],) = possible
    return found


def _back(came: Mapping[int, tuple[int, Step] | None], state: int) -> tuple[Step, ...]:
    steps: list[Step] = []
    while (before := came[state]) is not None:
        state, step = before
        steps.append(step)
    return tuple(reversed(steps))
