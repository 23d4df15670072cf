"""The program's side of a judged run: does what the tests ask for."""

from collections.abc import Callable
from typing import Any

from . import plain, wire
from .raised import exception, failure

MOST_OBJECTS = 100_000


class Answers:
    """The program's side: does what the tests ask for, and keeps the objects that they hold handles to.

    Args:
        fd: connection to the tests.
        names: the program's names.
    """

    def __init__(self, fd: int, names: dict[str, Any]) -> None:
        self.fd = fd
        self.names = names
        self.objects: list[Any] = []

    def until_reply(self) -> dict[str, Any]:
        """Answer requests until a message comes that is none: the reply to a call back."""
        while True:
            message = wire.receive(self.fd)
            if "verb" not in message:
                return dict(message)
            wire.send(self.fd, self.answer(message))

    def handle(self, value: Any) -> int:
        """A number for an object that stays here."""
        if len(self.objects) >= MOST_OBJECTS:
            raise MemoryError("too many objects are held")
        self.objects.append(value)
        return len(self.objects) - 1

    def find(self, number: int) -> Any:
        """The object of a number; a negative one is a function of the tests."""
        return self.objects[number] if number >= 0 else self.call_back(number)

    def call_back(self, number: int) -> Callable[..., Any]:
        """A function that calls one of the tests'."""

        def function(*arguments: Any, **keywords: Any) -> Any:
            parts = [plain.encode(part, self.handle) for part in arguments]
            named = {name: plain.encode(part, self.handle) for name, part in keywords.items()}
            wire.send(self.fd, {"back": number, "arguments": parts, "keywords": named})
            reply = self.until_reply()
            if "error" in reply:
                raise exception(reply["error"], reply["message"])
            return plain.decode(reply["value"], self.find)

        return function

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to one request: a value, or the exception that came instead."""
        try:
            arguments = [plain.decode(part, self.find) for part in request["arguments"]]
            keywords = {
                name: plain.decode(part, self.find) for name, part in request["keywords"].items()
            }
            result = self.perform(request["verb"], arguments, keywords)
            answer = {"value": plain.encode(result, self.handle)}
            if request["verb"] == "call" and result is None:
                answer["after"] = [self.content(part) for part in arguments[1:]]
            return answer
        except Exception as error:
            return failure(error)

    def content(self, argument: Any) -> Any:
        """What a mutable argument holds now; None for any other."""
        mutable = isinstance(argument, (list, dict, set, bytearray))
        return plain.encode(argument, self.handle) if mutable else None

    def perform(self, verb: str, arguments: list[Any], keywords: dict[str, Any]) -> Any:
        """Do one thing with a name or with an object that was handed out."""
        if verb == "name":
            return self.names[arguments[0]]
        first, *rest = arguments
        if verb == "call":
            return first(*rest, **keywords)
        if verb == "next":
            return next(first)
        if verb == "iter":
            return iter(first)
        if verb == "getattr":
            return getattr(first, rest[0])
        if verb == "setattr":
            return setattr(first, rest[0], rest[1])
        if verb == "getitem":
            return first[rest[0]]
        if verb == "setitem":
            first[rest[0]] = rest[1]
            return None
        functions: dict[str, Callable[[Any], Any]] = {"len": len, "str": str, "repr": repr}
        return functions[verb](first)
