"""The back ends of `bfcl-eval`: Python objects whose public methods are the tools.

They are the package's code, and what a model passes to them is anybody's: arguments and state are
bounded, and settings of the process that they change are put back.
"""

import copy
import decimal
import inspect
import json
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any

import mpmath

from grpo_envs.tools.stateful_cases import INSTALL, Case, read_package
from grpo_gym.errors import UsageError
from grpo_gym.tools.deadline import Caller
from grpo_gym.tools.function import NOTHING, AnyTool, read_texts

_MODULES = {
    "GorillaFileSystem": "gorilla_file_system",
    "MathAPI": "math_api",
    "MessageAPI": "message_api",
    "TicketAPI": "ticket_api",
    "TradingBot": "trading_bot",
    "TravelAPI": "travel_booking",
    "TwitterAPI": "posting_api",
    "VehicleControlAPI": "vehicle_control",
}
_PATH = "bfcl_eval.eval_checker.multi_turn_eval.func_source_code"
_TYPES = {"dict": "object", "float": "number", "tuple": "array"}
_SMALL = ("precision", "decimal_places", "exponent")
LARGEST, LARGEST_SMALL, MOST_PATHS = 10**15, 300, 20_000

_LOCK = threading.Lock()
"""mpmath's precision and some constants of the package are shared by the whole process."""


class Backends:
    """The back ends of one case, in the state it begins with.

    Attributes:
        results: what the calls so far brought, as text.
        too_large: whether the state has grown so large that comparing it could take for ever; no
            call is run any more.
    """

    def __init__(self, case: Case) -> None:
        self._instances = {name: _load(name, case) for name in case.classes}
        self._methods: dict[str, Callable[..., Any]] = {
            name: method
            for instance in self._instances.values()
            for name, method in inspect.getmembers(instance, inspect.ismethod)
            if not name.startswith("_")
        }
        self.results: list[str] = []
        self.too_large = False

    def call(self, name: str, /, *args: Any, **kwargs: Any) -> str:
        """Run a method; what it returns or raises is kept and given as text.

        Raises:
            ValueError: An argument is a number beyond all reason, or the state is too large.
        """
        if self.too_large:
            raise ValueError("there are too many files")
        _check_numbers(kwargs)
        # The settings of decimal and mpmath are put back, since some methods change them.
        with _LOCK, decimal.localcontext(), mpmath.workdps(mpmath.mp.dps):
            try:
                text = _as_text(self._methods[name](*args, **kwargs))
            except Exception as error:  # as the benchmark has it, an exception is a result
                text = f"Error during execution: {error}"
        self.results.append(text)
        if "GorillaFileSystem" in self._instances:
            self.too_large = _is_too_large(self._instances["GorillaFileSystem"].root)
        return text

    def same_state(self, other: "Backends") -> bool:
        """Whether every public attribute of every back end is equal."""
        try:
            return all(
                _public(instance) == _public(other._instances[name])
                for name, instance in self._instances.items()
            )
        except RecursionError:  # a folder moved into itself
            return False

    def has_results(self, wanted: list[str]) -> bool:
        """Whether the results so far hold all that are wanted, in any order."""
        return not Counter(wanted) - Counter(self.results)


def make_tools(case: Case, call: Callable[..., str]) -> dict[str, AnyTool]:
    """The tools of a case by name, those that come late included; each runs `call(name, ...)`."""
    docs = [doc for name in case.classes for doc in _docs(name)]
    return {d["name"]: _tool(d, call) for d in docs if d["name"] not in case.excluded}


def parameter_names(case: Case, method: str) -> tuple[str, ...]:
    """The names of a tool's parameters, in order."""
    functions = [getattr(_class(name), method, None) for name in case.classes]
    function = next(f for f in functions if f is not None)
    return tuple(inspect.signature(function).parameters)[1:]


@dataclass(frozen=True, eq=False)
class BackendTool:
    """A method of a back end, for `ToolEnv`.

    Attributes:
        name: of the method.
        description: as the package has it.
        schema: the JSON schema, in the form that chat APIs use.
        call: runs a method by its name.
        hidden: nothing: a back end sees what the model writes.
    """

    name: str
    description: str
    schema: dict[str, Any]
    call: Callable[..., str]
    hidden: Mapping[str, bool] = field(default_factory=dict)

    def run(
        self,
        arguments: Mapping[str, Any],
        *,
        hidden: Mapping[str, Any] = NOTHING,
        seconds: float | None = None,
        untyped: bool = False,
        caller: Caller | None = None,
    ) -> tuple[str, bool]:
        """The result as text; the back ends judge the arguments. See `Tool.run`."""
        values = read_texts(arguments, self.schema) if untyped else arguments
        try:
            return self.call(self.name, **values), True
        except ValueError as error:
            return f"Error: {self.name}: {error}", False


def _tool(doc: dict[str, Any], call: Callable[..., str]) -> BackendTool:
    description = doc["description"].rpartition("Tool description: ")[2]
    function = {
        "name": doc["name"],
        "description": description,
        "parameters": _as_json_schema(doc["parameters"]),
    }
    schema = {"type": "function", "function": function}
    return BackendTool(doc["name"], description, schema, call)


def _as_json_schema(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_as_json_schema(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _TYPES.get(value, value)
        if key == "type" and isinstance(value, str)
        else _as_json_schema(value)
        for key, value in schema.items()
    }


@cache
def _docs(class_name: str) -> tuple[dict[str, Any], ...]:
    text = read_package(f"multi_turn_func_doc/{_MODULES[class_name]}.json")
    return tuple(json.loads(line) for line in text.splitlines() if line.strip())


@cache
def _class(name: str) -> type[Any]:
    try:
        found: type[Any] = getattr(import_module(f"{_PATH}.{_MODULES[name]}"), name)
    except (ImportError, KeyError, AttributeError) as error:
        raise UsageError(f"StatefulTools needs {name} of bfcl-eval: {INSTALL}") from error
    return found


def _load(name: str, case: Case) -> Any:
    instance = _class(name)()
    if hasattr(instance, "_load_scenario"):
        scenario = copy.deepcopy(case.config.get(name, {}))
        instance._load_scenario(scenario, long_context=case.category == "long_context")
    return instance


def _as_text(result: object) -> str:
    if isinstance(result, str):
        return result
    if isinstance(result, dict):
        try:
            return json.dumps(result)
        except TypeError:
            return str(result)
    return str(result)


def _public(instance: object) -> dict[str, Any]:
    return {name: value for name, value in vars(instance).items() if not name.startswith("_")}


def _check_numbers(arguments: Mapping[str, Any]) -> None:
    for name, value in arguments.items():
        limit = LARGEST_SMALL if name in _SMALL else LARGEST
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, int | float) and not abs(item) <= limit:
                raise ValueError(f"{name} must be between {-limit} and {limit}")


def _is_too_large(folder: Any) -> bool:
    """Whether there are too many paths in a folder; endlessly many, if it holds itself."""
    paths, waiting = 0, [folder]
    while waiting and paths <= MOST_PATHS:
        contents = getattr(waiting.pop(), "contents", {})
        paths += len(contents)
        waiting.extend(contents.values())
    return paths > MOST_PATHS
