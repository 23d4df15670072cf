"""Ids of environments and names of agents, those of plug-ins included."""

import difflib
import importlib
import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from numbers import Integral, Real
from pathlib import Path
from types import ModuleType, NoneType, UnionType
from typing import TYPE_CHECKING, Any, get_args

import gymnasium

from grpo_gym.errors import UsageError
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
    _check_arguments(id, entry_point, kwargs, extra=inspect.signature(gymnasium.make).parameters)
    env: gymnasium.Env[Any, Any] = _call(id, partial(gymnasium.make, spec), kwargs)
    return env


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
    _check_arguments(f"agent {name}", known[name], kwargs)
    return known[name](**kwargs)


def _load_environments() -> None:
    plugins("grpo_gym.envs", "grpo_envs")


def _import(module_name: str, id: str) -> ModuleType:
    try:
        return importlib.import_module(module_name)
    except Exception as error:  # whatever goes wrong while somebody's module is imported
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UsageError(f"environment {id!r}: cannot import {module_name!r}: {reason}") from error


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
    _check_arguments(id, make, kwargs)
    env = _call(id, make, kwargs)
    if not isinstance(env, gymnasium.Env):
        raise UsageError(f"{id!r} is a {type(env).__name__}, not a gymnasium.Env")
    return env


def _call(id: str, make: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
    try:
        return make(**kwargs)
    except TypeError as error:  # an argument that is missing or of the wrong type
        raise UsageError(f"environment {id!r} cannot be made: {error}") from error


def _check_arguments(
    what: str, function: Callable[..., Any], kwargs: dict[str, Any], extra: Iterable[str] = ()
) -> None:
    accepted = _accepted(function)
    if accepted is None:
        return
    unknown = sorted(set(kwargs) - {*accepted, *extra})
    if unknown:
        takes = ", ".join(accepted) or "none"
        raise UsageError(f"{what} has no argument {', '.join(unknown)}; it takes {takes}")
    for name in kwargs.keys() & accepted.keys():
        _check_kind(f"{what}: {name}", accepted[name], kwargs[name])


def _accepted(function: Callable[..., Any]) -> dict[str, inspect.Parameter] | None:
    """The arguments that a function or class takes; None when it takes any.

    A constructor that hands its `**kwargs` on takes what the next constructor takes.
    """
    chain: list[Callable[..., Any]] = [function]
    if isinstance(function, type):
        chain = [vars(cls)["__init__"] for cls in function.__mro__ if "__init__" in vars(cls)]
    found: dict[str, inspect.Parameter] = {}
    for link in chain:
        parameters = inspect.signature(link).parameters
        by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in parameters.items():
            if parameter.kind in by_name and name != "self":
                found.setdefault(name, parameter)
        if all(p.kind is not p.VAR_KEYWORD for p in parameters.values()):
            return found
    return None


_KINDS: Mapping[Any, tuple[type, str]] = {
    str: (str, "text"),
    Path: (str | Path, "a path"),  # type: ignore[dict-item]
    bool: (bool, "true or false"),
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    NoneType: (NoneType, "none"),
}


def _check_kind(what: str, parameter: inspect.Parameter, value: object) -> None:
    """Raise `UsageError` if a plain annotation, as `int | None`, says that this is no such value."""
    annotation = parameter.annotation
    kinds = get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)
    plain = all(kind in _KINDS for kind in kinds)
    if not plain or (value is None and parameter.default is None):
        return
    if isinstance(value, bool):  # which is an int to Python
        right = bool in kinds
    else:
        right = any(isinstance(value, _KINDS[kind][0]) for kind in kinds)
    if not right:
        raise UsageError(
            f"{what} must be {' or '.join(_KINDS[kind][1] for kind in kinds)}, not {value!r:.100}"
        )


def _nearest(name: str, names: Iterable[str]) -> str:
    """A clause that names the nearest known names."""
    # An id is also known by its bare name: "copy" means "grpo_gym/Copy-v0".
    known = {known.lower(): known for known in names}
    known |= {key.rpartition("/")[2].rpartition("-v")[0]: value for key, value in known.items()}
    near = difflib.get_close_matches(name.lower(), filter(None, known), n=3, cutoff=0.5)
    found = dict.fromkeys(known[key] for key in near)
    return f"; nearest: {', '.join(found)}" if found else ""
