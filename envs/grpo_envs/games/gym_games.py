"""Gymnasium's discrete games in words: what an observation says, and what the actions are called."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.toy_text.frozen_lake import generate_random_map

from grpo_gym.errors import UsageError

Game = gymnasium.Env[Any, Any]
Options = dict[str, Any]

LONGEST_OBSERVATION = 2000
LARGEST_LAKE = 30


def _unchanged(options: Options, seed: int) -> Options:
    return options


@dataclass(frozen=True)
class Wording:
    """How a game is told.

    Attributes:
        rules: from the options that the game is made with, what the player reads first.
        actions: names of the actions, in the order of their numbers; () for the bare numbers.
        describe: from the game and its last observation, what the player sees.
        win_reward: the episode is a success when its last step ends it with at least this reward.
        options: from the given options and the task's seed, the options that the game is made with.
    """

    rules: Callable[[Mapping[str, Any]], str]
    actions: tuple[str, ...]
    describe: Callable[[Game, Any], str]
    win_reward: float
    options: Callable[[Options, int], Options] = _unchanged


def wording(env_id: str) -> Wording:
    """The wording of a known game, or else a plain one: observations as JSON, actions as numbers."""
    name = env_id.rpartition(":")[2]
    found = (known for start, known in KNOWN.items() if name.startswith(start))
    return next(found, PLAIN)


def _plain(game: Game, observation: Any) -> str:
    text = json.dumps(observation, default=_as_json)
    return f"Observation: {text[:LONGEST_OBSERVATION]}"


def _as_json(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else str(value)


def _lake_rules(options: Mapping[str, Any]) -> str:
    slippery = " The ice is slippery: you may slide to either side of where you want to go."
    return (
        "You (P) cross a frozen lake from the start (S) to the goal (G). F is ice that holds; H is a hole, "
        "which ends the game." + (slippery if options.get("is_slippery") else "")
    )


def _lake_options(options: Options, seed: int) -> Options:
    """A new solvable map for each seed, unless a map is given; `size` is its width."""
    options = {"is_slippery": False, **options}
    size = options.pop("size", 4)
    if not isinstance(size, int) or not 2 <= size <= LARGEST_LAKE:
        raise UsageError(f"size must be a whole number between 2 and {LARGEST_LAKE}, got {size!r}")
    if "desc" not in options and "map_name" not in options:
        options["desc"] = generate_random_map(size=size, p=0.8, seed=seed)
    return options


def _lake(game: Game, observation: Any) -> str:
    tiles = game.unwrapped.desc.astype(str).tolist()  # type: ignore[attr-defined]
    row, column = divmod(int(observation), len(tiles[0]))
    tiles[row][column] = "P"
    return "\n".join(" ".join(line) for line in tiles)


_TAXI_RULES = """You drive a taxi. Fetch the passenger, drive to the destination, and drop the passenger.
R, G, Y and B are the stands; | is a wall and : can be passed.
+---------+
|R: | : :G|
| : | : : |
| : : : : |
| | : | : |
|Y| : |B: |
+---------+"""
_STANDS = "RGYB"


def _taxi(game: Game, observation: Any) -> str:
    place, destination = divmod(int(observation), 4)
    square, passenger = divmod(place, 5)
    row, column = divmod(square, 5)
    where = "in the taxi" if passenger == 4 else f"at {_STANDS[passenger]}"
    return (
        f"The taxi is in row {row + 1}, column {column + 1}. The passenger is {where}. "
        f"The destination is {_STANDS[destination]}."
    )


def _blackjack(game: Game, observation: Any) -> str:
    total, dealer, ace = (int(part) for part in observation)
    usable = ", with an ace that counts 11" if ace else ""
    return f"Your cards are worth {total}{usable}. The dealer shows {'an ace' if dealer == 1 else dealer}."


_VIEW = 7
OBJECTS = (
    "unseen",
    "empty",
    "wall",
    "floor",
    "door",
    "key",
    "ball",
    "box",
    "goal",
    "lava",
    "agent",
)
COLOURS = ("red", "green", "blue", "purple", "yellow", "grey")
DOORS = ("open", "closed", "locked")


def _minigrid(game: Game, observation: Any) -> str:
    """What the agent sees: its view is 7 by 7, itself in the middle of the nearest row."""
    image, me = observation["image"], _VIEW // 2
    seen = [
        f"{_thing(image[column, row])}: {_place(_VIEW - 1 - row, column - me)}"
        for row in reversed(range(_VIEW))
        for column in range(_VIEW)
        if (row, column) != (_VIEW - 1, me) and image[column, row, 0] > 3
    ]
    carried = _thing(image[me, _VIEW - 1]) if image[me, _VIEW - 1, 0] > 3 else "nothing"
    lines = [
        f"Mission: {observation['mission']}.",
        f"You face {('east', 'south', 'west', 'north')[int(observation['direction'])]}.",
        f"You carry {carried}.",
        f"In front of you: {_thing(image[me, _VIEW - 2])}.",
        f"You see {'; '.join(seen) or 'nothing else'}.",
    ]
    return "\n".join(lines)


def _thing(cell: Any) -> str:
    kind, colour, state = (int(part) for part in cell)
    name = OBJECTS[kind]
    if name in ("door", "key", "ball", "box"):
        name = f"{COLOURS[colour]} {name}"
    return f"{name} ({DOORS[state]})" if kind == 4 else name


def _place(ahead: int, right: int) -> str:
    side = f"{abs(right)} to the {'right' if right > 0 else 'left'}" if right else ""
    return ", ".join(filter(None, (f"{ahead} ahead" if ahead else "", side)))


PLAIN = Wording(lambda options: "Play the game.", (), _plain, win_reward=1e-9)
_MINIGRID = Wording(
    lambda options: "You walk through a grid of rooms and see what is in front of you.",
    ("left", "right", "forward", "pickup", "drop", "toggle", "done"),
    _minigrid,
    win_reward=1e-9,
)
KNOWN = {
    "FrozenLake": Wording(
        _lake_rules, ("left", "down", "right", "up"), _lake, win_reward=1, options=_lake_options
    ),
    "Taxi": Wording(
        lambda options: _TAXI_RULES,
        ("south", "north", "east", "west", "pickup", "dropoff"),
        _taxi,
        win_reward=20,
    ),
    "Blackjack": Wording(
        lambda options: "Get closer to 21 than the dealer, but not above it.",
        ("stick", "hit"),
        _blackjack,
        win_reward=1,
    ),
    "MiniGrid": _MINIGRID,
    "BabyAI": _MINIGRID,
}
"""By how an id begins."""
