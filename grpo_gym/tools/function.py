"""A typed function as a tool: its type hints make the schema and validate the arguments."""

import inspect
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, NotRequired, Protocol, get_type_hints

import pydantic
from typing_extensions import TypedDict

from grpo_gym.errors import UsageError
from grpo_gym.tools.deadline import Caller, run_within

NOTHING: Mapping[str, Any] = {}


class Hidden:
    """Marks a parameter that the environment passes and the model never sees.

    As in `balance: Annotated[dict[str, int], Hidden]`; see `ToolEnv.hidden`.
    """


class AnyTool(Protocol):
    """What an environment and a codec want of a tool: a `Tool`, or one that runs elsewhere."""

    @property
    def name(self) -> str:
        """What the model calls it."""
        ...

    @property
    def description(self) -> str:
        """What it does, in a line."""
        ...

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of the tool, in the form that chat APIs use."""
        ...

    @property
    def hidden(self) -> Mapping[str, bool]:
        """Parameters that the environment passes, and whether each must be passed."""
        ...

    def run(
        self,
        arguments: Mapping[str, Any],
        *,
        hidden: Mapping[str, Any] = NOTHING,
        seconds: float | None = None,
        untyped: bool = False,
        caller: Caller | None = None,
    ) -> tuple[str, bool]:
        """The result as text, and whether all went well; never raises."""
        ...


@dataclass(frozen=True, eq=False)
class Tool:
    """A function that a model may call; made by `tool`.

    Attributes:
        function: what runs.
        arguments: validates the arguments, a JSON object.
        hidden: names of the parameters marked `Hidden`, and whether each must be passed.
        instance: the object that the function is bound to, when it is a method.
    """

    function: Callable[..., Any]
    arguments: pydantic.TypeAdapter[dict[str, Any]]
    hidden: Mapping[str, bool] = field(default_factory=dict)
    instance: object | None = None

    def __get__(self, instance: object | None, owner: type) -> "Tool":
        return self if instance is None else replace(self, instance=instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function as it is, without validation."""
        if self.instance is not None:
            return self.function(self.instance, *args, **kwargs)
        return self.function(*args, **kwargs)

    @property
    def name(self) -> str:
        """The function's name."""
        return self.function.__name__

    @property
    def description(self) -> str:
        """The first paragraph of the function's docstring."""
        return " ".join((inspect.getdoc(self.function) or "").split("\n\n")[0].split())

    @cached_property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of the tool, in the form that chat APIs use."""
        parameters = _without_titles(self.arguments.json_schema())
        function = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": function}

    def run(
        self,
        arguments: Mapping[str, Any],
        *,
        hidden: Mapping[str, Any] = NOTHING,
        seconds: float | None = None,
        untyped: bool = False,
        caller: Caller | None = None,
    ) -> tuple[str, bool]:
        """Validate the arguments strictly, run the function, and give its result as text.

        Args:
            arguments: what the model gave, by the names of the parameters.
            hidden: what the environment gives, for the parameters marked `Hidden`.
            seconds: how long the function may take; see `grpo_gym.tools.deadline`.
            untyped: whether the arguments are all text: what is not of type string is then read as
                JSON.
            caller: whose thread the function runs in, when there is a limit.

        Returns:
            The text, and whether all went well. A wrong argument, a result that is too late, or
            whatever the function raises becomes a text that begins with "Error".
        """
        try:
            text = json.dumps(read_texts(arguments, self.schema) if untyped else arguments)
            values = self.arguments.validate_json(text, strict=True)
        except pydantic.ValidationError as error:
            return f"Error: {self.name}: {_explain(error)}", False
        except (ValueError, TypeError, RecursionError) as error:
            return f"Error: {self.name}: arguments cannot be read ({type(error).__name__})", False
        values |= {name: hidden[name] for name in self.hidden if name in hidden}
        try:
            return run_within(lambda: self._finished(values), seconds, caller), True
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # whatever a tool raises is the model's to read
            return f"Error: {_message(error)}", False

    def _finished(self, values: Mapping[str, Any]) -> Any:
        """The result as text, or a coroutine that will bring it."""
        result = self(**values)
        return _awaited(result) if inspect.isawaitable(result) else _as_text(result)


def tool(function: Callable[..., Any]) -> Tool:
    """Make a typed function or method a tool: write `@tool` above its definition.

    The model is told the name, the docstring's first paragraph and the types; `Annotated[int,
    pydantic.Field(description=..., ge=0)]` tells it more.

    Raises:
        UsageError: A parameter has no type hint, or cannot be passed by name.
    """
    name = function.__name__
    try:
        hints = get_type_hints(function, include_extras=True)
    except NameError as error:
        raise UsageError(f"tool {name}: a type hint cannot be resolved: {error}") from error
    fields: dict[str, Any] = {}
    hidden: dict[str, bool] = {}
    parameters = list(inspect.signature(function).parameters.values())
    for position, parameter in enumerate(parameters):
        if position == 0 and parameter.name == "self":
            continue
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise UsageError(f"tool {name}: parameter {parameter} cannot be passed by name")
        if parameter.name not in hints:
            raise UsageError(f"tool {name}: parameter {parameter.name!r} needs a type hint")
        hint = hints[parameter.name]
        if any(mark is Hidden or isinstance(mark, Hidden) for mark in _marks(hint)):
            hidden[parameter.name] = parameter.default is parameter.empty
            continue
        if parameter.default is not parameter.empty:
            hint = NotRequired[Annotated[hint, pydantic.Field(default=parameter.default)]]
        fields[parameter.name] = hint
    # A typed dict, as a model's fields could clash with the model's own methods ("copy", "json").
    make_type: Any = TypedDict
    arguments = make_type(name, fields)
    arguments.__pydantic_config__ = pydantic.ConfigDict(extra="forbid")
    return Tool(function, pydantic.TypeAdapter(arguments), hidden)


def _marks(hint: Any) -> tuple[Any, ...]:
    return getattr(hint, "__metadata__", ())


async def _awaited(result: Awaitable[Any]) -> str:
    return _as_text(await result)


def _message(error: BaseException) -> str:
    try:
        return str(error) or type(error).__name__
    except Exception:  # somebody's exception may not know how to show itself
        return type(error).__name__


def read_texts(arguments: Mapping[str, str], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Texts as the values that the parameters' types, in a tool's schema, make of them."""
    rules = schema["function"]["parameters"].get("properties", {})
    return {name: _value(text, rules.get(name, {})) for name, text in arguments.items()}


def _value(text: str, rule: Mapping[str, Any]) -> Any:
    """A text as the type of its parameter has it; what cannot be read stays for the validation."""
    kinds = [
        option.get("type", "object" if "$ref" in option else "string")
        for option in rule.get("anyOf", [rule])
    ]
    if "string" in kinds:
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _explain(error: pydantic.ValidationError) -> str:
    problems = []
    for item in error.errors(include_url=False, include_context=False, include_input=False)[:5]:
        where = ".".join(str(part) for part in item["loc"])
        problems.append(f"{where}: {item['msg']}" if where else item["msg"])
    return "; ".join(problems)


def _as_text(result: object) -> str:
    if isinstance(result, str):
        return result
    try:
        return json.dumps(result, ensure_ascii=False)
    except TypeError:
        return str(result)


def _without_titles(schema: Any) -> Any:
    """The schema without pydantic's automatic titles, which only cost tokens."""
    if isinstance(schema, dict):
        return {
            key: _without_titles(value)
            for key, value in schema.items()
            if not (key == "title" and isinstance(value, str))
        }
    if isinstance(schema, list):
        return [_without_titles(item) for item in schema]
    return schema
