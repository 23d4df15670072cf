"""A typed function as a tool: its type hints make the schema and validate the arguments."""

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, NotRequired, get_type_hints

import pydantic
from typing_extensions import TypedDict

from grpo_gym.errors import UsageError


@dataclass(frozen=True, eq=False)
class Tool:
    """A function that a model may call; made by `tool`.

    Attributes:
        function: what runs.
        arguments: validates the arguments, a JSON object.
        instance: the object that the function is bound to, when it is a method.
    """

    function: Callable[..., Any]
    arguments: pydantic.TypeAdapter[dict[str, Any]]
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

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of the tool, in the form that chat APIs use."""
        parameters = _without_titles(self.arguments.json_schema())
        function = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": function}

    def run(self, arguments: Mapping[str, Any]) -> tuple[str, bool]:
        """Validate the arguments strictly, run the function, and give its result as text.

        Returns:
            The text, and whether all went well. A wrong argument, or whatever the function raises,
            becomes a text that begins with "Error".
        """
        try:
            values = self.arguments.validate_json(json.dumps(arguments), strict=True)
        except pydantic.ValidationError as error:
            return f"Error: {self.name}: {_explain(error)}", False
        except (ValueError, TypeError, RecursionError) as error:
            return f"Error: {self.name}: arguments cannot be read ({type(error).__name__})", False
        try:
            return _as_text(self(**values)), True
        except Exception as error:  # whatever a tool raises is the model's to read
            return f"Error: {str(error) or type(error).__name__}", False


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
    parameters = list(inspect.signature(function).parameters.values())
    for position, parameter in enumerate(parameters):
        if position == 0 and parameter.name == "self":
            continue
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise UsageError(f"tool {name}: parameter {parameter} cannot be passed by name")
        if parameter.name not in hints:
            raise UsageError(f"tool {name}: parameter {parameter.name!r} needs a type hint")
        hint = hints[parameter.name]
        if parameter.default is not parameter.empty:
            hint = NotRequired[Annotated[hint, pydantic.Field(default=parameter.default)]]
        fields[parameter.name] = hint
    # A typed dict, as a model's fields could clash with the model's own methods ("copy", "json").
    make_type: Any = TypedDict
    arguments = make_type(name, fields)
    arguments.__pydantic_config__ = pydantic.ConfigDict(extra="forbid")
    return Tool(function, pydantic.TypeAdapter(arguments))


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
