"""Ids of environments and names of agents, those of plug-ins included."""

import difflib
import importlib
import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

import gymnasium

from grpo_gym.arguments import check_arguments
from grpo_gym.errors import UsageError, in_a_line
from grpo_gym.plugins import plugins

if TYPE_CHECKING:
    from grpo_gym.agent import Agent


@dataclass(frozen=True)
class EnvironmentRow:
    """One line of the catalogue.

    Attributes:
        id: what `make` takes.
        turns: "1", "1-4", ...
        tools: names of the tools.
        verifier: what grades the answer.
        source: where the tasks come from.
        summary: the task in a line.
        licence: of the tasks.
        extra: the extra of this distribution that it needs, as in "games"; "" for none.
        needs: the command that installs what it needs, where no extra does.
    """

    id: str
    turns: str = "1"
    tools: tuple[str, ...] = ()
    verifier: str = ""
    source: str = ""
    summary: str = ""
    licence: str = ""
    extra: str = ""
    needs: str = ""

    @property
    def install(self) -> str:
        """The command that installs what it needs; "" when it needs nothing more."""
        return self.needs or (f"pip install 'grpo-gym[{self.extra}]'" if self.extra else "")


_CATALOGUE: dict[str, EnvironmentRow] = {}


def register(
    id: str,
    entry_point: str | Callable[..., gymnasium.Env[Any, Any]],
    *,
    turns: str = "1",
    tools: tuple[str, ...] = (),
    verifier: str = "",
    source: str = "",
    summary: str = "",
    licence: str = "",
    extra: str = "",
    needs: str = "",
    **kwargs: Any,
) -> None:
    """Register an environment with Gymnasium and with the catalogue.

    Gymnasium's passive checker and order wrapper are left out: a reward of nan is allowed here, and
    `TextEnv` checks the order of calls itself.

    Args:
        id: as in "my_package/Task-v0".
        entry_point: the class, or "module:Class".
        turns: how many actions an episode takes.
        tools: names of the tools.
        verifier: what grades the answer.
        source: where the tasks come from.
        summary: the task in a line.
        licence: of the tasks.
        extra: the extra that it needs; "" for none.
        needs: the command that installs what it needs, where no extra does.
        **kwargs: default arguments of the environment.

    Raises:
        UsageError: The id is taken by another environment.
    """
    known = gymnasium.registry.get(id)
    if known is not None and (known.entry_point != entry_point or known.kwargs != kwargs):
        raise UsageError(f"environment {id} is registered already, as {known.entry_point}")
    if known is None:
        gymnasium.register(
            id, entry_point, kwargs=kwargs, disable_env_checker=True, order_enforce=False
        )
    _CATALOGUE[id] = EnvironmentRow(
        id, turns, tuple(tools), verifier, source, summary, licence, extra, needs
    )


def environments() -> list[EnvironmentRow]:
    """The catalogue: every environment registered here or by a plug-in, by id."""
    _load_environments()
    return [_CATALOGUE[id] for id in sorted(_CATALOGUE)]


def make(id: str, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    """Build an environment.

    Args:
        id: a registered id; "module:namespace/Name-v0", whose module registers it; or
            "module:Class".
        **kwargs: arguments of the environment.

    Raises:
        UsageError: An unknown id (the nearest are named), a module that cannot be imported, or an
            argument that the environment does not know.
    """
    if not isinstance(id, str):
        raise UsageError(f"an environment is named by a text, not {id!r:.100}")
    _load_environments()
    module_name, _, name = id.rpartition(":")
    if module_name and name.replace(".", "").isidentifier():
        return _build(id, _attribute(_import(module_name, id), name, id), kwargs)
    if module_name:
        _import(module_name, id)
    try:
        spec = gymnasium.spec(name)
    except gymnasium.error.Error as error:
        raise UsageError(
            f"no environment {id!r:.100}{_nearest(name, gymnasium.registry)}"
        ) from error
    entry_point = spec.entry_point
    if isinstance(entry_point, str):
        module_name, _, attribute = entry_point.partition(":")
        entry_point = _attribute(_import(module_name, id), attribute, id)
    assert entry_point is not None
    check_arguments(id, entry_point, kwargs, extra=inspect.signature(gymnasium.make).parameters)
    env: gymnasium.Env[Any, Any] = _call(id, partial(gymnasium.make, spec), kwargs)
    return env


@contextmanager
def tried(
    make: Callable[[], gymnasium.Env[Any, Any]], name: str
) -> Iterator[gymnasium.Env[Any, Any]]:
    """An environment that is built to see that it can be, and to look at; closed afterwards.

    Raises:
        UsageError: It cannot be built or closed; with what its code raised, and where.
    """
    with _told(f"environment {name!r} cannot be made"):
        env = make()
    try:
        yield env
    finally:
        with _told(f"environment {name!r} cannot be closed"):
            env.close()


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Whatever somebody's code raises within, SystemExit too, is told in a line."""
    try:
        yield
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        raise UsageError(f"{what}: {in_a_line(error)}") from error


def agents() -> dict[str, Callable[..., "Agent"]]:
    """Every known agent: its name, and the function that makes it."""
    found: dict[str, Callable[..., Agent]] = {}
    for module in plugins("grpo_gym.agents", "grpo_agents"):
        if isinstance(getattr(module, "AGENTS", None), Mapping):
            found |= module.AGENTS
        else:
            warnings.warn(f"plug-in {module.__name__} has no mapping AGENTS", stacklevel=2)
    return dict(sorted(found.items()))


def make_agent(name: str, **kwargs: Any) -> "Agent":
    """The agent of that name, with these hyper-parameters.

    Raises:
        UsageError: An unknown name (the nearest are named), or a hyper-parameter it does not have.
    """
    known = agents()
    if name not in known:
        raise UsageError(f"no agent {name!r}{_nearest(name, known)}")
    check_arguments(f"agent {name}", known[name], kwargs)
    return known[name](**kwargs)


def _load_environments() -> None:
    plugins("grpo_gym.envs", "grpo_envs")


def _import(module_name: str, id: str) -> ModuleType:
    try:
        return importlib.import_module(module_name)
    # Whatever goes wrong while somebody's module is imported; a script may even end itself.
    except (Exception, SystemExit) as error:
        raise UsageError(
            f"environment {id!r}: cannot import {module_name!r}: {in_a_line(error)}"
        ) from error


def _attribute(module: ModuleType, name: str, id: str) -> Callable[..., Any]:
    value: Any = module
    for part in name.split("."):
        value = getattr(value, part, None)
    if not callable(value):
        names = [key for key, item in vars(module).items() if callable(item)]
        raise UsageError(
            f"environment {id!r}: {module.__name__} has no class {name}{_nearest(name, names)}"
        )
    return value  # type: ignore[no-any-return]


def _build(id: str, make: Callable[..., Any], kwargs: dict[str, Any]) -> gymnasium.Env[Any, Any]:
    check_arguments(id, make, kwargs)
    env = _call(id, make, kwargs)
    if not isinstance(env, gymnasium.Env):
        raise UsageError(f"{id!r} is a {type(env).__name__}, not a gymnasium.Env")
    return env


def _call(id: str, make: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
    try:
        return make(**kwargs)
    except TypeError as error:  # an argument that is missing or of the wrong type
        raise UsageError(f"environment {id!r} cannot be made: {error}") from error


def _nearest(name: str, names: Iterable[str]) -> str:
    """A clause that names the nearest known names."""
    # An id is also known by its bare name: "copy" means "grpo_gym/Copy-v0".
    known = {known.lower(): known for known in names}
    known |= {key.rpartition("/")[2].rpartition("-v")[0]: value for key, value in known.items()}
    near = difflib.get_close_matches(name.lower(), filter(None, known), n=3, cutoff=0.5)
    found = dict.fromkeys(known[key] for key in near)
    return f"; nearest: {', '.join(found)}" if found else ""
