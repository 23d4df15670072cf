"""The tests' side of a judged run: requests, and proxies for the program's objects that are no data."""

import _thread
from collections.abc import Callable, Iterator
from typing import Any

from . import plain, wire
from .raised import exception, failure

MOST_FUNCTIONS = 100_000
POWERFUL = (
    eval,
    exec,
    compile,
    __import__,
    open,
    input,
    getattr,
    setattr,
    delattr,
    vars,
    globals,
    locals,
)
"""Functions by which the program could reach into the tests' process, were it given one to call back."""


class Link:
    """The tests' side of the connection.

    Attributes:
        asked: something was asked of the program.
        broken: the program has ended, or sent what is no message: no test counts any more.
        unfit: an argument that cannot be sent; the tests are not fit for this kind of judging.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.asked = False
        self.broken = False
        self.unfit = ""
        self.functions: list[Callable[..., Any]] = []
        self.lock = _thread.RLock()  # tests may use threads; `threading` would slow every fork

    def look_up(self, name: str) -> Any:
        """What the program calls `name`; raises NameError if it has no such name."""
        try:
            return self.ask("name", name)
        except KeyError:
            raise NameError(f"name {name!r} is not defined") from None

    def ask(self, verb: str, *arguments: Any, **keywords: Any) -> Any:
        """One request and its answer, as builtin values or proxies.

        Raises:
            Exception: What the program raised, as the builtin exception of that name.
            plain.NotPlain: An argument cannot be sent, or the answer is no value.
            wire.Closed: The program has ended.
        """
        try:
            parts = [plain.encode(part, self.identify) for part in arguments]
            named = {name: plain.encode(part, self.identify) for name, part in keywords.items()}
        except plain.NotPlain as error:
            self.unfit = str(error)
            raise
        answer = self.exchange({"verb": verb, "arguments": parts, "keywords": named})
        if "error" in answer:
            raise exception(str(answer["error"]), str(answer.get("message", "")))
        value = plain.decode(answer.get("value"), self.proxy)
        if value is None and isinstance(answer.get("after"), list):
            for argument, after in zip(arguments[1:], answer["after"], strict=False):
                if after is not None:
                    replace(argument, plain.decode(after, self.proxy))
        return value

    def exchange(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send a request and wait for its answer; meanwhile the program may call the tests' functions."""
        self.asked = True
        with self.lock:
            try:
                wire.send(self.fd, request)
                while True:
                    answer = wire.receive(self.fd)
                    if not isinstance(answer, dict):
                        raise wire.Closed
                    if "back" not in answer:
                        return answer
                    wire.send(self.fd, self.called_back(answer))
            except wire.Closed:
                self.broken = True
                raise

    def called_back(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to the program's call of a function that it was given."""
        try:
            function = self.functions[-1 - int(request["back"])]
            parts = [plain.decode(part, self.proxy) for part in list(request["arguments"])]
            named = {
                str(name): plain.decode(part, self.proxy)
                for name, part in dict(request["keywords"]).items()
            }
            return {"value": plain.encode(function(*parts, **named), self.identify)}
        except wire.Closed:
            raise
        except Exception as error:
            return failure(error)

    def identify(self, value: Any) -> int:
        """The number of a proxy, or a negative one for a function of the tests.

        Raises:
            plain.NotPlain: It is neither, and cannot be sent.
        """
        if isinstance(value, Remote):
            return number_of(value)
        if isinstance(value, type) or not callable(value) or value in POWERFUL:
            raise plain.NotPlain(f"a {type(value).__name__} cannot be handed to the program")
        if len(self.functions) >= MOST_FUNCTIONS:
            raise plain.NotPlain("too many functions")
        self.functions.append(value)
        return -len(self.functions)

    def proxy(self, number: Any) -> "Remote":
        """A proxy for the program's object of this number."""
        if not isinstance(number, int):
            raise plain.NotPlain("no handle")
        return Remote(self, number)


def replace(argument: Any, after: Any) -> None:
    """Give an argument the content that the program left in its copy; another type changes nothing."""
    if type(argument) is not type(after):
        return
    if isinstance(argument, (list, bytearray)):
        argument[:] = after
    elif isinstance(argument, (dict, set)):
        argument.clear()
        argument.update(after)


def number_of(remote: "Remote") -> int:
    """The number that stands for the object on the other side."""
    number: int = object.__getattribute__(remote, "_number")
    return number


def link_of(remote: "Remote") -> Link:
    """The connection to the object."""
    link: Link = object.__getattribute__(remote, "_link")
    return link


class Remote:
    """An object of the program, used from the tests.

    It can be called, iterated, indexed, and its attributes read and set. It compares by identity alone and
    knows no arithmetic, so that no method of the program decides whether an assertion holds.
    """

    __slots__ = ("_link", "_number")

    def __init__(self, link: Link, number: int) -> None:
        object.__setattr__(self, "_link", link)
        object.__setattr__(self, "_number", number)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Call the object on the other side."""
        return link_of(self).ask("call", self, *arguments, **keywords)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return link_of(self).ask("getattr", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        link_of(self).ask("setattr", self, name, value)

    def __getitem__(self, key: Any) -> Any:
        return link_of(self).ask("getitem", self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        link_of(self).ask("setitem", self, key, value)

    def __iter__(self) -> Iterator[Any]:
        iterator = link_of(self).ask("iter", self)
        while True:
            try:
                yield link_of(self).ask("next", iterator)
            except StopIteration:
                return

    def __next__(self) -> Any:
        return link_of(self).ask("next", self)

    def __len__(self) -> int:
        length = link_of(self).ask("len", self)
        return length if type(length) is int else -1

    def __str__(self) -> str:
        return str(link_of(self).ask("str", self))

    def __repr__(self) -> str:
        return str(link_of(self).ask("repr", self))
