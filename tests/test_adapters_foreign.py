"""Games of other libraries: the border with fakes, then GEM, skyrl-gym, TextArena and OpenEnv themselves."""

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest

from grpo_envs.adapters.containment import PrivateRandom
from grpo_envs.adapters.foreign import Answer, ForeignEnv
from grpo_envs.adapters.gem import GemEnv
from grpo_envs.adapters.openenv import OpenEnvEnv
from grpo_envs.adapters.skyrl import SkyRLEnv
from grpo_envs.adapters.textarena import TextArenaEnv
from grpo_gym.errors import UsageError
from grpo_gym.tasks import ListTasks, Task
from grpo_gym.testing import EnvContract, check_environment


def states() -> tuple[Any, Any]:
    return random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]  # noqa: NPY002


# ---------------------------------------------------------------- the border


def test_a_lent_generator_goes_on_where_it_stopped_and_the_global_one_too() -> None:
    before = states()
    first, second = PrivateRandom(), PrivateRandom()
    drawn: dict[int, list[float]] = {0: [], 1: []}
    for _ in range(3):
        for index, private in enumerate((first, second)):
            with private.lent():
                drawn[index] += [random.random(), float(np.random.rand())]  # noqa: NPY002
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0])) == 6
    assert states() == before


def test_the_global_generators_come_back_after_an_error() -> None:
    before = states()

    def fail() -> None:
        with PrivateRandom().lent():
            random.seed(3)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert states() == before


class Rude(ForeignEnv):
    """Seeds the global generators, chokes on "choke", and pays infinity for "rich"."""

    answers: Callable[[str], Answer] | None = None

    def start(self, task: Task, seed: int) -> str:
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        self.number = random.randrange(10**9)
        self.left = 3
        return f"Guess. A hint: {np.random.randint(10**9)}"  # noqa: NPY002

    def play(self, action: str) -> Answer:
        if action == "choke":
            raise KeyError(action)
        if action == "cut":
            return Answer("late", 0.25, ended=True, cut=True)
        self.left -= 1
        won = action == str(self.number)
        reward = float("inf") if action == "rich" else float(won)
        return Answer(f"no, {random.random()}", reward, ended=won or not self.left)


class TestRude(EnvContract):
    seeds = range(3)

    def make(self) -> gymnasium.Env[Any, Any]:
        return Rude()


def test_a_game_that_raises_has_lost() -> None:
    env = Rude()
    env.reset(seed=0)
    _, reward, terminated, truncated, info = env.step("choke")
    assert (reward, terminated, truncated, info["success"]) == (0.0, True, False, False)
    assert info["reward_components"] == {"game_failed": 1.0}


def test_an_infinite_reward_is_none() -> None:
    env = Rude()
    env.reset(seed=0)
    assert env.step("rich")[1] == 0


def test_a_game_that_is_cut_is_truncated_and_not_terminated() -> None:
    env = Rude()
    env.reset(seed=0)
    _, reward, terminated, truncated, info = env.step("cut")
    assert (reward, terminated, truncated) == (0.25, False, True)
    assert (info["truncation"], info["success"]) == ("game", False)
    env.reset(seed=0)
    assert env.step("x")[3] is False


def test_a_game_that_cannot_begin_is_a_usage_error() -> None:
    class Broken(Rude):
        def start(self, task: Task, seed: int) -> str:
            raise OSError("no network")

    with pytest.raises(UsageError, match="Broken cannot begin: OSError: no network"):
        Broken().reset(seed=0)


@pytest.mark.parametrize(
    ("build", "package"),
    [
        (lambda: GemEnv(env_id="x"), "gem-llm"),
        (lambda: TextArenaEnv(env_id="x"), "textarena"),
        (lambda: SkyRLEnv(env_id="x", tasks=SUMS), "skyrl-gym"),
    ],
)
def test_a_missing_library_is_told_with_what_to_install(
    build: Callable[[], Any], package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=f"{package} is not installed: pip install '{package}'"):
        build()


# ---------------------------------------------------------------- OpenEnv, by its interface alone


class Counter:
    """An OpenEnv environment without OpenEnv: three steps, and a client's results on request."""

    def __init__(self, client: bool = False) -> None:
        self.client, self.closed = client, False

    def reset(self, seed: int | None = None) -> Any:
        random.seed(seed)
        self.count, self.first = 0, random.randrange(10**6)
        return self._said(None, False)

    def step(self, action: int) -> Any:
        self.count += action
        return self._said(float(self.count == 3), self.count >= 3)

    def close(self) -> None:
        self.closed = True

    def _said(self, reward: float | None, done: bool) -> Any:
        seen = SimpleNamespace(text=f"{self.first}: {self.count}", reward=reward, done=done)
        if not self.client:
            return seen
        return SimpleNamespace(observation=seen, reward=reward, done=done)


def counter(client: bool = False) -> OpenEnvEnv:
    return OpenEnvEnv(
        make_inner=lambda: Counter(client), to_action=int, to_text=lambda seen: str(seen.text)
    )


@pytest.mark.parametrize("client", [False, True])
def test_an_openenv_environment_or_client_is_played(client: bool) -> None:
    env = counter(client)
    observation, _ = env.reset(seed=0)
    first = observation[0]["content"].split(":")[0]
    assert env.step("1")[0][0]["content"] == f"{first}: 1"
    observation, reward, terminated, _, info = env.step("one")
    assert observation[0]["content"].startswith("Not an action: invalid literal")
    assert (reward, terminated) == (0.0, False)
    _, reward, terminated, truncated, info = env.step("2")
    assert (reward, terminated, truncated, info["success"]) == (1.0, True, False, True)
    assert check_environment(lambda: counter(client), range(2)).ok


def test_what_is_no_openenv_environment_is_told() -> None:
    env = OpenEnvEnv(make_inner=object, to_action=str, to_text=str)
    with pytest.raises(UsageError, match="a object has no reset and step"):
        env.reset(seed=0)


# ---------------------------------------------------------------- the libraries themselves

SUMS = ListTasks([Task(f"sum-{n}", f"What is {n} + {n}?", str(2 * n)) for n in range(9, 14)])
noisy = pytest.mark.filterwarnings("ignore")


@pytest.mark.peers
@noisy
@pytest.mark.parametrize(
    "env_id",
    ["game:GuessTheNumber-v0-easy", "game:Minesweeper-v0-easy", "game:TowerofHanoi-v0-easy"],
)
def test_games_of_gem_keep_the_contract(env_id: str) -> None:
    pytest.importorskip("gem.envs", reason="gem-llm is not installed")
    report = check_environment(lambda: GemEnv(env_id=env_id), range(2))
    assert report.ok, str(report)


@pytest.mark.peers
@noisy
def test_the_limit_of_gem_truncates_and_a_win_terminates() -> None:
    pytest.importorskip("gem.envs", reason="gem-llm is not installed")
    env = GemEnv(env_id="game:GuessTheNumber-v0-easy")
    env.reset(seed=0)
    number = env.inner.game_number
    wrong = [n for n in range(1, 11) if n != number][:4]
    *_, last = (env.step(f"\\boxed{{{n}}}") for n in wrong)
    assert (last[2], last[3], last[4]["success"]) == (False, True, False)
    env.reset(seed=0)
    assert env.inner.game_number == number
    _, reward, terminated, truncated, info = env.step(f"\\boxed{{{number}}}")
    assert (reward, terminated, truncated, info["success"]) == (1.0, True, False, True)
    with pytest.raises(UsageError, match="GEM has no environment 'nothing'"):
        GemEnv(env_id="nothing")


@pytest.mark.peers
@noisy
@pytest.mark.parametrize("env_id", ["gsm8k", "gsm8k_multi_turn", "aime"])
def test_environments_of_skyrl_keep_the_contract(env_id: str) -> None:
    pytest.importorskip("skyrl_gym", reason="skyrl-gym is not installed")
    report = check_environment(lambda: SkyRLEnv(env_id=env_id, tasks=SUMS), range(2))
    assert report.ok, str(report)


@pytest.mark.peers
@noisy
def test_a_format_bonus_of_skyrl_is_no_success() -> None:
    pytest.importorskip("skyrl_gym", reason="skyrl-gym is not installed")
    env = SkyRLEnv(env_id="gsm8k_multi_turn", tasks=SUMS)
    env.reset(options={"task_id": "sum-9"})
    *_, last = (env.step("#### 17") for _ in range(5))
    assert last[1] > 0
    assert (last[2], last[3], last[4]["success"]) == (False, True, False)
    env.reset(options={"task_id": "sum-9"})
    _, reward, terminated, _, info = env.step("#### 18")
    assert (reward, terminated, info["success"]) == (1.0, True, True)
    with pytest.raises(UsageError, match="no tasks of its own"):
        SkyRLEnv(env_id="gsm8k")


@pytest.mark.peers
@noisy
@pytest.mark.parametrize("env_id", ["LightsOut-v0-raw", "Secretary-v0", "Slitherlink-v0-raw"])
def test_games_of_textarena_keep_the_contract(env_id: str) -> None:
    pytest.importorskip("textarena", reason="textarena is not installed")
    report = check_environment(lambda: TextArenaEnv(env_id=env_id), range(2))
    assert report.ok, str(report)


@pytest.mark.peers
@noisy
def test_games_for_several_players_are_told() -> None:
    pytest.importorskip("textarena", reason="textarena is not installed")
    with pytest.raises(UsageError, match="TextArena's TicTacToe-v0 "):
        TextArenaEnv(env_id="TicTacToe-v0").reset(seed=0)
    with pytest.raises(UsageError, match="no game 'nothing'"):
        TextArenaEnv(env_id="nothing")


@pytest.mark.peers
@noisy
def test_an_environment_built_with_openenv_is_played() -> None:
    pytest.importorskip("openenv.core", reason="openenv is not installed")
    from openenv.core.env_server.interfaces import Environment
    from openenv.core.env_server.types import Action, Observation, State

    class Say(Action):  # type: ignore[misc, unused-ignore]
        text: str

    class Heard(Observation):  # type: ignore[misc, unused-ignore]
        text: str

    class Echo(Environment):  # type: ignore[misc, unused-ignore]
        def reset(self, seed: Any = None, episode_id: Any = None, **kwargs: Any) -> Any:
            self.word = str(random.Random(seed).randrange(10**6))
            return Heard(text=f"Say {self.word}", done=False, reward=None)

        def step(self, action: Any, timeout_s: Any = None, **kwargs: Any) -> Any:
            return Heard(text="", done=True, reward=float(action.text == self.word))

        @property
        def state(self) -> Any:
            return State()

    env = OpenEnvEnv(
        make_inner=Echo, to_action=lambda text: Say(text=text), to_text=lambda seen: seen.text
    )
    observation, _ = env.reset(seed=0)
    word = observation[0]["content"].removeprefix("Say ")
    assert env.step(word)[1:3] == (1.0, True)
