"""LiveCodeBench's private tests: base64 of zlib of a pickled text, read without loading the pickle."""

import base64
import binascii
import pickletools
import zlib

LARGEST = 64 << 20


def unpacked(text: str) -> str | None:
    """The text that was packed; None if it is not that.

    The pickle is only looked at, operation by operation: loading it would run what it says.
    """
    try:
        inflate = zlib.decompressobj()
        data = inflate.decompress(base64.b64decode(text, validate=True), LARGEST)
        parts = [
            argument
            for operation, argument, _ in pickletools.genops(data)
            if "UNICODE" in operation.name
        ]
    except (binascii.Error, zlib.error, ValueError, UnicodeError):
        return None
    return parts[0] if len(parts) == 1 and isinstance(parts[0], str) else None
