"""Many text environments at once, each in a thread of its own, for users of Gymnasium."""

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from grpo_gym.errors import UsageError

Env = gymnasium.Env[Any, str]
Observations = tuple[Any, ...]
Flags = npt.NDArray[np.bool_]
VectorStep = tuple[Observations, npt.NDArray[np.float64], Flags, Flags, dict[str, Any]]


class TextVectorEnv(VectorEnv[Observations, Sequence[str], npt.NDArray[Any]]):
    """Steps its environments side by side in threads, so that slow tools are waited for together.

    Each environment lives in one thread from its making to its closing. Observations are a tuple
    with one entry an environment, actions a sequence of strings. An info is a dict of arrays of
    objects, `info["success"][i]`, beside `info["_success"]`, which says which environments gave it;
    dicts inside infos stay dicts. Threads do not make Python code itself faster: what gains is
    waiting, for a sandbox, a data base, the network.

    Args:
        makers: functions that build the environments.
        autoreset_mode: what happens after the end of an episode, as in `gymnasium.vector`. With
            SAME_STEP the last observation and info are `infos["final_obs"]` and
            `infos["final_info"]`; with DISABLED call `reset(options={"reset_mask": mask})`.
        timeout_s: how long all environments together may take; None for no limit.

    Raises:
        UsageError: There are no environments, or a step gets another number of actions.
        TimeoutError: An environment gave no answer in time.
    """

    def __init__(
        self,
        makers: Sequence[Callable[[], Env]],
        autoreset_mode: AutoresetMode = AutoresetMode.NEXT_STEP,
        timeout_s: float | None = None,
    ) -> None:
        if not makers:
            raise UsageError("a vector environment needs at least one environment")
        self.num_envs = len(makers)
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self.timeout_s = timeout_s
        self._lanes = [_Lane(make) for make in makers]
        try:
            spaces = self._all(lambda env: (env.observation_space, env.action_space, env.metadata))
        except BaseException:
            self.close()
            raise
        self.single_observation_space, self.single_action_space, metadata = spaces[0]
        self.metadata = {**metadata, "autoreset_mode": self.autoreset_mode}
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._observations: list[Any] = [None] * self.num_envs
        self._over: Flags = np.zeros(self.num_envs, dtype=np.bool_)

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Observations, dict[str, Any]]:
        """Begin an episode in every environment.

        Args:
            seed: one for each environment; a number n stands for n, n + 1, ...
            options: for all environments; a list under the key "task_id" or "split" has one value
                for each. "reset_mask", an array of bools, names the environments to reset.

        Raises:
            UsageError: Another number of seeds, values or flags than environments.
        """
        options = dict(options or {})
        mask = self._each("reset_mask", options.pop("reset_mask", True), bool)
        if seed is None or isinstance(seed, int):
            seeds: Sequence[int | None] = [
                None if seed is None else seed + number for number in range(self.num_envs)
            ]
        else:
            seeds = self._each("seed", seed, int)
        lists = {name: self._each(name, value, str) for name, value in options.items()}
        wanted = [number for number, flag in enumerate(mask) if flag]

        def start(number: int) -> Callable[[Env], Any]:
            own = {name: values[number] for name, values in lists.items()} or None
            return lambda env: env.reset(seed=seeds[number], options=own)

        infos: dict[str, Any] = {}
        for number, (observation, info) in self._ask({n: start(n) for n in wanted}).items():
            self._observations[number] = observation
            self._over[number] = False
            self._add_info(infos, info, number)
        return tuple(self._observations), infos

    def step(self, actions: Sequence[str]) -> VectorStep:
        """Take an action in every environment.

        Raises:
            UsageError: Another number of actions than environments, or with autoreset disabled an
                environment whose episode is over.
        """
        if len(actions) != self.num_envs:
            raise UsageError(f"{len(actions)} actions for {self.num_envs} environments")
        if self.autoreset_mode is AutoresetMode.DISABLED and self._over.any():
            over = ", ".join(map(str, np.flatnonzero(self._over)))
            raise UsageError(f"episodes are over in {over}: reset them with reset_mask first")
        rewards = np.zeros(self.num_envs)
        ends, cuts = np.zeros_like(self._over), np.zeros_like(self._over)
        infos: dict[str, Any] = {}
        answers = self._ask({n: self._move(n, actions[n]) for n in range(self.num_envs)})
        for number, (last, reset) in answers.items():
            self._observations[number], rewards[number], ends[number], cuts[number], info = last
            if reset is not None:
                final = {"final_obs": self._observations[number], "final_info": info}
                self._add_info(infos, final, number)
                self._observations[number], info = reset
            self._add_info(infos, info, number)
        self._over = ends | cuts
        return tuple(self._observations), rewards, ends, cuts, infos

    def render(self) -> tuple[Any, ...]:
        """What each environment renders."""
        return tuple(self._all(lambda env: env.render()))

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """What a method of each environment returns, or the value of an attribute."""

        def get(env: Env) -> Any:
            value = env.get_wrapper_attr(name)
            return value(*args, **kwargs) if callable(value) else value

        return tuple(self._all(get))

    def close_extras(self, **kwargs: Any) -> None:
        """Close the environments; one that is stuck is left alone after a second."""
        for lane in self._lanes:
            lane.close()
        for lane in self._lanes:
            lane.thread.join(1.0)

    def _move(self, number: int, action: str) -> Callable[[Env], Any]:
        """What one environment does in a step: the five values, and a reset that follows them."""

        def move(env: Env) -> Any:
            if over and mode is AutoresetMode.NEXT_STEP:
                observation, info = env.reset()
                return (observation, 0.0, False, False, info), None
            step = env.step(action)
            again = mode is AutoresetMode.SAME_STEP and (step[2] or step[3])
            return step, env.reset() if again else None

        over, mode = bool(self._over[number]), self.autoreset_mode
        return move

    def _all(self, task: Callable[[Env], Any]) -> list[Any]:
        return list(self._ask(dict.fromkeys(range(self.num_envs), task)).values())

    def _ask(self, tasks: dict[int, Callable[[Env], Any]]) -> dict[int, Any]:
        """Run a task in each of some environments at the same time."""
        futures = {number: self._lanes[number].ask(task) for number, task in tasks.items()}
        late = wait(futures.values(), self.timeout_s).not_done
        if late:
            numbers = [str(number) for number, future in futures.items() if future in late]
            raise TimeoutError(
                f"no answer in {self.timeout_s:g} s from environments {', '.join(numbers)}"
            )
        return {number: future.result() for number, future in futures.items()}

    def _each(self, name: str, value: Any, single: type) -> Sequence[Any]:
        """One value for each environment: a single one stands for all."""
        if value is None or isinstance(value, single):
            return [value] * self.num_envs
        if len(value) != self.num_envs:
            raise UsageError(f"{name}: {len(value)} values for {self.num_envs} environments")
        return list(value)

    def _add_info(
        self, vector_infos: dict[str, Any], env_info: dict[str, Any], env_num: int
    ) -> dict[str, Any]:
        """Put one environment's info into arrays of objects: its values may be of any type."""
        for key, value in env_info.items():
            if key not in vector_infos:
                vector_infos[key] = np.full(self.num_envs, None, dtype=object)
                vector_infos[f"_{key}"] = np.zeros(self.num_envs, dtype=np.bool_)
            vector_infos[key][env_num] = value
            vector_infos[f"_{key}"][env_num] = True
        return vector_infos


class _Lane:
    """An environment in a daemon thread: it is built, used and closed there."""

    def __init__(self, make: Callable[[], Env]) -> None:
        self._make = make
        self._inbox: queue.SimpleQueue[tuple[Callable[[Env], Any], Future[Any]] | None] = (
            queue.SimpleQueue()
        )
        self.thread = threading.Thread(target=self._serve, daemon=True, name="env")
        self.thread.start()

    def ask(self, task: Callable[[Env], Any]) -> Future[Any]:
        """Have something done with the environment."""
        future: Future[Any] = Future()
        self._inbox.put((task, future))
        return future

    def close(self) -> None:
        """Have the environment closed when it has done what it was asked."""
        self._inbox.put(None)

    def _serve(self) -> None:
        env: Env | None = None
        while (item := self._inbox.get()) is not None:
            task, future = item
            try:
                env = self._make() if env is None else env
                future.set_result(task(env))
            except BaseException as error:  # it is raised in the thread that asked
                future.set_exception(error)
        if env is not None:
            env.close()
