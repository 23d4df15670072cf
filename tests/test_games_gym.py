"""GymToText: Gymnasium's games in words, their moves, limits, seeds and solutions."""

import importlib.util
import sys
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import pytest

from grpo_envs.games.gym_games import wording
from grpo_envs.games.gym_to_text import GymToTextEnv
from grpo_envs.games.planning import shortest_path
from grpo_gym.errors import UsageError
from grpo_gym.tasks import ListTasks, Task
from grpo_gym.testing import check_environment

LAKE = {"desc": ["SFF", "HHF", "HFG"]}


def lake(**arguments: Any) -> GymToTextEnv:
    return GymToTextEnv(env_kwargs=LAKE, **arguments)


def test_a_move_is_a_name_or_a_number() -> None:
    env = lake()
    observation, _ = env.reset(seed=0)
    assert observation[-1]["content"].endswith(
        "The moves are left, down, right, up.\n\nP F F\nH H F\nH F G"
    )
    seen = [env.step(action)[0][0]["content"] for action in ("right", "2", "\\boxed{ DOWN }")]
    assert seen == ["S P F\nH H F\nH F G", "S F P\nH H F\nH F G", "S F F\nH H P\nH F G"]
    _, reward, terminated, _, info = env.step("\\boxed{1}")
    assert (reward, terminated, info["success"]) == (1.0, True, True)
    assert info["reward_components"] == {"env_reward": 1.0}


@pytest.mark.parametrize(
    "action",
    [
        "",
        "jump",
        "4",
        "-1",
        "right right",
        "right, down",
        "go right",
        "\\boxed{right}\\boxed{down}",
    ],
)
def test_what_is_no_single_move_moves_nothing(action: str) -> None:
    env = lake()
    env.reset(seed=0)
    observation, reward, terminated, truncated, info = env.step(action)
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert "move" in observation[0]["content"]
    assert info["reward_components"] == {}
    assert env.step("right")[0][0]["content"].startswith("S P F")


def test_a_hole_ends_the_game() -> None:
    env = lake()
    env.reset(seed=0)
    _, reward, terminated, _, info = env.step("down")
    assert (reward, terminated, info["success"]) == (0.0, True, False)


def test_turns_are_the_limit() -> None:
    env = lake(max_turns=3)
    env.reset(seed=0)
    for action in ("left", "jump"):
        assert not any(env.step(action)[2:4])
    _, _, terminated, truncated, info = env.step("left")
    assert (terminated, truncated, info["truncation"]) == (False, True, "max_turns")
    registered = lake(max_turns=150)  # FrozenLake-v1 is registered with a limit of 100
    registered.reset(seed=0)
    assert not any(any(registered.step("left")[2:4]) for _ in range(149))


def test_each_seed_has_a_new_map_of_the_size_asked_for() -> None:
    env = GymToTextEnv(env_kwargs={"size": 5})
    maps = {env.reset(seed=seed)[0][-1]["content"].partition("\n\n")[2] for seed in range(10)}
    assert len(maps) > 5
    assert {len(text.split("\n")) for text in maps} == {5}


def test_slippery_ice_follows_the_seed_and_has_no_sure_win() -> None:
    def play(seed: int) -> list[Any]:
        env = GymToTextEnv(env_kwargs={"is_slippery": True, "map_name": "4x4"})
        observation, _ = env.reset(seed=seed)
        assert "slippery" in observation[-1]["content"]
        assert env.task is not None
        assert env.solution(env.task) == env.mistakes(env.task, np.random.default_rng(0)) == ()
        seen = [observation]
        for _ in range(20):
            answer = env.step("right")
            seen.append(answer)
            if answer[2] or answer[3]:
                break
        return seen

    assert play(1) == play(1)
    assert len({str(play(seed)) for seed in range(6)}) > 1


def test_rewards_may_be_those_of_the_environment() -> None:
    def make() -> GymToTextEnv:
        return GymToTextEnv(env_id="Taxi", rewards="env")

    env = make()
    env.reset(seed=3)
    assert env.task is not None
    solution = env.solution(env.task)
    rewards = [env.step(action)[1] for action in solution]
    assert rewards == [-1.0] * (len(solution) - 1) + [20.0]
    report = check_environment(make, range(3))
    assert report.ok, str(report)


def test_taxi_is_told_as_it_is() -> None:
    env = GymToTextEnv(env_id="Taxi")
    for seed in range(20):
        observation, _ = env.reset(seed=seed)
        row, column, passenger, destination = (
            int(n)
            for n in env.inner.unwrapped.decode(env.inner.unwrapped.s)  # type: ignore[attr-defined]
        )
        assert observation[-1]["content"].endswith(
            f"row {row + 1}, column {column + 1}. The passenger is at {'RGYB'[passenger]}. "
            f"The destination is {'RGYB'[destination]}."
        )


def test_blackjack_is_told_and_won_by_its_reward() -> None:
    told = wording("Blackjack-v1").describe
    env = GymToTextEnv(env_id="Blackjack")
    assert told(env.inner, (20, 7, 0)) == "Your cards are worth 20. The dealer shows 7."
    assert told(env.inner, (18, 1, 1)) == (
        "Your cards are worth 18, with an ace that counts 11. The dealer shows an ace."
    )
    results = set()
    for seed in range(30):
        env.reset(seed=seed)
        _, reward, terminated, _, info = env.step("stick")
        assert terminated
        assert info["success"] == (info["reward_components"]["env_reward"] == 1.0) == (reward == 1)
        results.add(info["success"])
    assert results == {True, False}


class Corridor(gymnasium.Env[Any, Any]):
    """Three rooms; cut after five moves. Actions are 5 (back) and 6 (on)."""

    action_space = gymnasium.spaces.Discrete(2, start=5)
    observation_space = gymnasium.spaces.Dict(
        {"room": gymnasium.spaces.Discrete(3), "view": gymnasium.spaces.Box(0, 1, (2,))}
    )

    def __init__(self, rooms: int = 3) -> None:
        self.rooms = rooms

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.room = self.moves = 0
        return self._seen(), {}

    def step(self, action: int) -> Any:
        assert action in (5, 6)
        self.room, self.moves = max(0, self.room + (1 if action == 6 else -1)), self.moves + 1
        there = self.room == self.rooms - 1
        return self._seen(), 2.0 if there else -1.0, there, self.moves >= 5 and not there, {}

    def _seen(self) -> Mapping[str, Any]:
        return {"room": np.int64(self.room), "view": np.zeros(2)}


class Steering(Corridor):
    action_space = gymnasium.spaces.Box(0, 1, (2,))  # type: ignore[assignment]


gymnasium.register("tests/Corridor-v0", Corridor)
gymnasium.register("tests/Twice-v1", Corridor)
gymnasium.register("tests/Twice-v2", Corridor)
gymnasium.register("tests/Steering-v0", Steering)


def test_an_unknown_game_is_told_as_json_and_numbers() -> None:
    env = GymToTextEnv(env_id="tests/Twice")
    assert env.env_id == "tests/Twice-v2"
    observation, _ = env.reset(seed=0)
    assert observation[-1]["content"] == (
        'Play the game.\nThe moves are 5, 6.\n\nObservation: {"room": 0, "view": [0.0, 0.0]}'
    )
    env.step("6")
    _, reward, terminated, _, info = env.step("6")
    assert (reward, terminated, info["success"]) == (1.0, True, True)
    assert env.task is not None
    assert env.solution(env.task) == ()


def test_words_can_be_given() -> None:
    env = GymToTextEnv(
        env_id="tests/Corridor-v0",
        rules="Find the way out.",
        actions=("back", "on"),
        describe=lambda game, observation: f"Room {observation['room']}.",
        win_reward=3,
    )
    observation, _ = env.reset(seed=0)
    assert observation[-1]["content"] == "Find the way out.\nThe moves are back, on.\n\nRoom 0."
    assert env.step("on")[0][0]["content"] == "Room 1."
    assert env.step("6")[4]["success"] is False


def test_the_limit_of_the_game_itself_cuts_the_episode() -> None:
    env = GymToTextEnv(env_id="tests/Corridor-v0", rewards="env")
    env.reset(seed=0)
    for _ in range(4):
        assert not any(env.step("5")[2:4])
    _, reward, terminated, truncated, info = env.step("5")
    assert (reward, terminated, truncated) == (-1.0, False, True)
    assert (info["truncation"], info["success"]) == ("inner", False)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step("5")
    env.reset(seed=0)
    assert not any(env.step("5")[2:4])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"env_id": "Nothing-v0"}, "Gymnasium has no environment 'Nothing-v0'"),
        ({"env_id": "Nothing"}, "Gymnasium has no environment 'Nothing'"),
        ({"env_id": "Taxi-v3"}, "no environment 'Taxi-v3': .*Taxi-v4"),
        ({"actions": [0, 1, 2, 3]}, "actions is a list of names"),
        ({"win_reward": float("nan")}, "win_reward must be finite"),
        ({"env_id": 3}, "env_id is the id of an environment, not 3"),
        ({"env_id": None}, "env_id is the id of an environment, not None"),
        ({"env_id": "!"}, "no environment '!'"),
        ({"env_id": "no_such_module:Nothing-v0"}, "needs the no_such_module package"),
        ({"env_id": "tests/Steering-v0"}, "not discrete"),
        ({"env_kwargs": {"colour": 1}}, "FrozenLake-v1 cannot be made: TypeError"),
        ({"env_id": "tests/Corridor-v0", "actions": ("go",)}, "has 2 actions"),
        ({"env_id": "tests/Corridor-v0", "actions": ("go", "Go")}, "has 2 actions"),
        ({"rewards": "both"}, "'success' or 'env'"),
        ({"env_kwargs": "map_name"}, "env_kwargs is a map"),
        ({"env_kwargs": {"size": 1}}, "size must be a whole number between 2 and 30"),
        ({"env_kwargs": {"size": "4"}}, "size must be a whole number between 2 and 30"),
        ({"env_kwargs": {"size": 10**6}}, "size must be a whole number between 2 and 30"),
        ({"tasks": ListTasks([Task("a", "", "")])}, "'seed'"),
    ],
)
def test_mistakes_of_the_user_are_told(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        GymToTextEnv(**arguments).reset(seed=0)


def test_a_missing_package_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "minigrid", None)
    with pytest.raises(UsageError, match=r"pip install 'grpo-gym\[games\]'"):
        GymToTextEnv(env_id="MiniGrid-Empty-5x5-v0")


def test_the_shortest_win_is_found() -> None:
    table = {
        0: {0: [(1.0, 1, 0.0, False)], 1: [(1.0, 9, -5.0, True)]},
        1: {0: [(1.0, 0, 0.0, False)], 1: [(0.5, 2, 1.0, True), (0.5, 2, 1.0, True)]},
    }
    plan = shortest_path(table, 0, win_reward=1)
    assert plan is not None
    assert [step.action for step in plan] == [0, 1]
    assert [step.reward for step in plan] == [0.0, 1.0]
    assert plan[-1].winning == {1}
    assert shortest_path(table, 0, win_reward=2) is None
    chance = {0: {0: [(0.5, 1, 1.0, True), (0.5, 0, 0.0, False)]}}
    assert shortest_path(chance, 0, win_reward=1) is None


@pytest.mark.parametrize(
    ("arguments", "skipped"),
    [
        ({"env_kwargs": {"size": 6}}, set()),
        ({"env_kwargs": {"map_name": "8x8"}}, set()),
        ({"env_id": "CliffWalking", "win_reward": -1}, set()),
        ({"env_id": "Blackjack"}, {"solution", "mistakes"}),
        ({"env_kwargs": {"is_slippery": True}, "rewards": "env"}, {"solution", "mistakes"}),
        ({"env_id": "tests/Corridor-v0"}, {"solution", "mistakes"}),
    ],
)
def test_other_games_keep_the_contract(arguments: dict[str, Any], skipped: set[str]) -> None:
    report = check_environment(lambda: GymToTextEnv(**arguments), range(3))
    assert report.ok, str(report)
    assert {o.name for o in report.outcomes if o.result == "skipped"} == skipped


def view(*things: tuple[int, int, tuple[int, int, int]]) -> dict[str, Any]:
    """A MiniGrid observation in which these things stand at (column, row)."""
    image = np.zeros((7, 7, 3), dtype=np.uint8)
    image[:, :, 0] = 1
    for column, row, cell in things:
        image[column, row] = cell
    return {"image": image, "direction": 1, "mission": "get out"}


def test_minigrid_is_told_from_what_the_agent_sees() -> None:
    told = wording("MiniGrid-DoorKey-5x5-v0").describe
    game: Any = None
    assert told(game, view()) == (
        "Mission: get out.\nYou face south.\nYou carry nothing.\n"
        "In front of you: empty.\nYou see nothing else."
    )
    door, key, wall = (4, 0, 2), (5, 4, 0), (2, 5, 0)
    assert told(game, view((3, 5, wall), (3, 3, door), (1, 6, key), (4, 4, (8, 1, 0)))) == (
        "Mission: get out.\nYou face south.\nYou carry nothing.\nIn front of you: wall.\n"
        "You see yellow key: 2 to the left; goal: 2 ahead, 1 to the right; "
        "red door (locked): 3 ahead."
    )
    assert "You carry yellow key." in told(game, view((3, 6, key)))


@pytest.mark.skipif(not importlib.util.find_spec("minigrid"), reason="needs the extra games")
class TestMiniGrid:
    def test_the_names_are_those_of_the_package(self) -> None:
        from minigrid.core import actions, constants

        from grpo_envs.games import gym_games

        kinds = constants.OBJECT_TO_IDX
        assert {name: gym_games.OBJECTS.index(name) for name in kinds} == kinds
        colours = constants.COLOR_TO_IDX
        assert {name: gym_games.COLOURS.index(name) for name in colours} == colours
        doors = constants.STATE_TO_IDX
        assert {name: gym_games.DOORS.index(name) for name in doors} == doors
        assert [a.name for a in actions.Actions] == list(wording("MiniGrid").actions)

    def test_a_room_is_walked_through(self) -> None:
        env = GymToTextEnv(env_id="MiniGrid-Empty-5x5-v0")
        observation, _ = env.reset(seed=0)
        assert "goal: 2 ahead, 2 to the right" in observation[-1]["content"]
        for action in ("forward", "forward", "right", "forward"):
            assert not any(env.step(action)[2:4])
        _, reward, terminated, _, info = env.step("forward")
        assert (reward, terminated, info["success"]) == (1.0, True, True)
        assert 0 < info["reward_components"]["env_reward"] < 1

    @pytest.mark.parametrize("env_id", ["MiniGrid-DoorKey-5x5-v0", "BabyAI-GoToRedBall-v0"])
    def test_the_contract_is_kept(self, env_id: str) -> None:
        report = check_environment(lambda: GymToTextEnv(env_id=env_id), range(2))
        assert report.ok, str(report)
