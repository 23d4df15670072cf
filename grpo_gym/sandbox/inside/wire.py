"""Messages on a pipe or socket: a length of four bytes, then JSON."""

import json
import os
import struct
from typing import Any

LARGEST = 64 << 20


class Closed(Exception):
    """The other side has closed, or sent what is no message."""


class TooLarge(Closed):
    """The message is longer than the other side would read."""


def encoded(text: str) -> bytes:
    """UTF-8, with escaped bytes as the bytes that they stand for, and other surrogates as they are."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def read_exactly(fd: int, length: int) -> bytes:
    """`length` bytes and no more, so that what follows stays in the kernel.

    Raises:
        Closed: The other side closed before.
    """
    parts = []
    while length:
        try:
            part = os.read(fd, min(length, 1 << 20))
        except ConnectionResetError:  # it closed before it had read all that was sent
            part = b""
        if not part:
            raise Closed
        parts.append(part)
        length -= len(part)
    return b"".join(parts)


def receive(fd: int) -> Any:
    """The next message.

    Raises:
        Closed: There is none, or it is no JSON, or longer than 64 MiB.
    """
    (length,) = struct.unpack(">I", read_exactly(fd, 4))
    if length > LARGEST:
        raise Closed
    try:
        return json.loads(read_exactly(fd, length))
    except (ValueError, RecursionError) as error:
        raise Closed from error


def send(fd: int, message: Any) -> None:
    """Write one message whole.

    Raises:
        Closed: The other side has closed.
        TooLarge: The message is longer than 64 MiB.
    """
    body = json.dumps(message).encode()
    if len(body) > LARGEST:
        raise TooLarge
    rest = memoryview(struct.pack(">I", len(body)) + body)
    try:
        while rest:
            rest = rest[os.write(fd, rest) :]
    except OSError as error:
        raise Closed from error
