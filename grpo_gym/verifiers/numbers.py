"""Plain numbers read exactly, without a parser: the fast path of the math verifier."""

import re
from fractions import Fraction

DIGITS = 100
"""Longest numeral that is read as a number."""

SIGN = r"[+-]?\s*"
DECIMAL = r"(?:\d+\.?\d*|\.\d+)"
PLAIN = re.compile(rf"(?P<sign>{SIGN})(?P<number>{DECIMAL})")
FRACTION = re.compile(
    rf"(?P<sign>{SIGN})(?:\\frac\s*(?:\{{\s*(?P<top>{SIGN}\d+)\s*\}}\s*\{{\s*(?P<bottom>\d+)\s*\}}|(?P<short>\d)\s*(?P<under>\d))"
    r"|(?P<left>\d+)\s*/\s*(?P<right>\d+))"
)


def plain_number(text: str) -> Fraction | None:
    r"""The exact value of an integer, a decimal or a fraction of integers; None if it is anything else.

    Args:
        text: a normalised answer.
    """
    if len(text) > DIGITS or not text.isascii():
        return None
    if match := PLAIN.fullmatch(text):
        value = Fraction(match["number"].rstrip(".") if match["number"] != "." else "0")
    elif match := FRACTION.fullmatch(text):
        top = match["top"] or match["short"] or match["left"]
        bottom = int(match["bottom"] or match["under"] or match["right"])
        if bottom == 0:
            return None
        value = Fraction(int(top.replace(" ", "")), bottom)
    else:
        return None
    return -value if match["sign"].startswith("-") else value
