"""Numbers with a unit: the exact fast path of the math verifier, no parser needed."""

import re
from dataclasses import dataclass
from fractions import Fraction

from grpo_gym.verifiers.units import (
    DEGREE,
    JOINING,
    PERCENT,
    SCALES,
    SHORTHAND,
    UNITS,
    Unit,
    read_unit,
    singular,
)

MAX_DIGITS = 200
MIN_ROUNDED = 6
"""Significant digits a rounded decimal needs to stand for an exact number, such as 1/3 or a root."""
MIN_CUT = 8
"""Significant digits it needs where it was cut off, not rounded: 0.66666666 for 2/3."""

DECIMAL = re.compile(
    r"(?P<sign>[+-]?) ?(?P<digits>\d+\.?\d*|\.\d+)(?:(?P<e>[eE])(?P<power>[+-]?\d{1,4}))?"
)
FRACTION = re.compile(
    r"(?P<sign>[+-]?) ?(?P<whole>\d+(?: (?=\d)| ?(?=\\frac)))?"
    r"(?:\\frac ?(?:\{ ?(?P<inner>[+-]?) ?(?P<top>\d+) ?\}|(?P<top1>\d)) ?"
    r"(?:\{ ?(?P<bottom>\d+) ?\}|(?P<bottom1>\d))|(?P<left>\d+) ?/ ?(?P<right>\d+))"
)
REPEATING = re.compile(
    r"(?P<sign>[+-]?) ?(?P<fixed>\d*\.\d*)\\(?:overline|bar|dot) ?\{?(?P<cycle>\d+)\}?"
)
POWER_OF_TEN = re.compile(
    r"(?P<number>.*\d) ?(?:\\times|\\cdot|\*) ?10 ?\^ ?(?:\{ ?(?P<braced>[+-]?\d{1,4}) ?\}|(?P<bare>\d))"
)

CURRENCY = re.compile(
    r"(?P<sign>[+-]?) ?(?:\\text\{ ?)?(?P<unit>(?:US ?)?\$|[€£¥¢]|USD|EUR|GBP) ?\}? ?(?P<rest>.*)"
)
MONEY = {"$": "dollar", "€": "euro", "£": "pound", "¥": "yen", "¢": "cent"}
MONEY |= {"USD": "dollar", "EUR": "euro", "GBP": "pound", "US$": "dollar", "US $": "dollar"}
DEGREES = re.compile(r" ?\^ ?\{? ?\\circ ?\}? ?(?:\\text\{ ?(?P<styled>[CF]) ?\}|(?P<bare>[CF]))?")
FUNCTION = re.compile(r"\\?(?:sin|cos|tan|cot|sec|csc)")
STYLED_UNIT = re.compile(r"(?:\\text\{[^{}]*\}|\^ ?\{? ?\d ?\}?|[ /*]|\\cdot)+")
NUMERAL = re.compile(
    r"[+-]? ?(?:(?:\d[\d.,/ ]*)?\\frac ?(?:\{[^{}]*\}|\d) ?(?:\{[^{}]*\}|\d) ?|[\d.][\d.,/ ]*)"
)
NOUN = re.compile(r"[A-Za-z]?[a-z]*[aeiou][a-z]*(?<=\w{3})|[A-Za-z]{4,}")
BARE_UNIT = re.compile(r"[A-Za-z][A-Za-z /'^{}23]*")
SCALED = re.compile(rf"(?P<scale>{'|'.join(SCALES)})s?\b ?(?P<rest>.*)", re.IGNORECASE)


@dataclass(frozen=True)
class Quantity:
    """An answer split into its body and its unit.

    Attributes:
        body: what is left of the answer without its unit.
        unit: the unit, if one is written.
        scale: what a scale word such as "million" multiplies the body by.
    """

    body: str
    unit: Unit | None = None
    scale: Fraction = Fraction(1)


def plain_decimal(text: str) -> Fraction | None:
    """The exact value of an integer or a decimal, 1.5e3 included; None if the text is anything else.

    "2e-3" is not read so: it may be two times Euler's number, less three.
    """
    match = DECIMAL.fullmatch(text) if len(text) <= MAX_DIGITS else None
    if match is None:
        return None
    power = match["power"]
    if (
        match["e"] == "e"
        and power[0] in "+-"
        and "." not in match["digits"]
        and match["digits"] != "1"
    ):
        return None
    value = Fraction(match["digits"].rstrip(".")) * Fraction(10) ** int(power or 0)
    return -value if match["sign"] == "-" else value


def plain_number(text: str) -> Fraction | None:
    r"""The exact value of a plain number; None if the text is anything else.

    Integers, decimals, fractions of integers (`1/2`, `\frac{1}{2}`, `\frac12`), mixed numbers,
    repeating decimals and multiples of powers of ten count as plain.

    Args:
        text: a normalised answer without its unit.
    """
    if len(text) > 2 * MAX_DIGITS:
        return None
    if (value := plain_decimal(text)) is not None:
        return value
    if match := FRACTION.fullmatch(text):
        bottom = int(match["bottom"] or match["bottom1"] or match["right"])
        if bottom == 0 or (match["whole"] and match["inner"]):
            return None
        top = int(match["top"] or match["top1"] or match["left"])
        value = int(match["whole"] or 0) + Fraction(-top if match["inner"] == "-" else top, bottom)
        return -value if match["sign"] == "-" else value
    if match := REPEATING.fullmatch(text):
        fixed, cycle = match["fixed"], match["cycle"]
        places = len(fixed.partition(".")[2])
        tail = Fraction(int(cycle), (10 ** len(cycle) - 1) * 10**places)
        value = Fraction(fixed if fixed != "." else "0") + tail
        return -value if match["sign"] == "-" else value
    if match := POWER_OF_TEN.fullmatch(text):
        number = plain_decimal(match["number"])
        return (
            None
            if number is None
            else number * Fraction(10) ** int(match["braced"] or match["bare"])
        )
    return None


def split_quantity(text: str) -> Quantity:
    """A normalised answer as body and unit; without a unit where none is certain."""
    if text.endswith("%"):
        return Quantity(text[:-1].rstrip(), read_unit(PERCENT))
    if match := CURRENCY.fullmatch(text):
        money = read_unit(MONEY[match["unit"]])
        if money is not None and not CURRENCY.fullmatch(match["rest"]):
            inner = split_quantity(match["rest"])
            unit = money if inner.unit is None else money.times(inner.unit)
            return Quantity(match["sign"] + inner.body, unit, inner.scale)
        return Quantity(text)
    if text[-1:] in MONEY:
        return Quantity(text[:-1].rstrip(), read_unit(MONEY[text[-1]]))
    mark = text.find("^")
    if mark > 0 and (match := DEGREES.fullmatch(text, mark - (text[mark - 1] == " "))):
        kind = {None: DEGREE, "C": "celsius", "F": "fahrenheit"}[match["styled"] or match["bare"]]
        if not FUNCTION.match(text):
            return Quantity(text[:mark].rstrip(), read_unit(kind))
    start = text.find("\\text{")
    if start > 0 and STYLED_UNIT.fullmatch(text, start):
        phrase = re.sub(r"\\text\{([^{}]*)\}", r" \1 ", text[start:])
        return with_unit(text, text[:start], phrase)
    if (match := NUMERAL.match(text)) and BARE_UNIT.fullmatch(text, match.end()):
        phrase = text[match.end() :]
        if is_bare_unit(phrase, match[0].endswith(" ")):
            return with_unit(text, match[0], phrase)
    return Quantity(text)


def is_bare_unit(phrase: str, spaced: bool) -> bool:
    """Whether letters after a numeral, outside text, are a unit and not names it is multiplied by."""
    words = re.findall("[A-Za-z]+", phrase)
    known = all(
        singular(word) in UNITS or word in SHORTHAND or word in JOINING or NOUN.fullmatch(word)
        for word in words
    )
    joined = len(words[0]) > 1 and len(words[0]) < 4 and singular(words[0]) in UNITS
    return known and (spaced or joined or words[0] in SHORTHAND)


def with_unit(text: str, body: str, phrase: str) -> Quantity:
    """The quantity that a body and a trailing phrase make; all is body if the phrase is no unit."""
    body, phrase, scale = body.rstrip(), phrase.strip(), Fraction(1)
    if match := SCALED.match(phrase):
        scale, phrase = Fraction(SCALES[match["scale"].lower()]), match["rest"].strip()
        if not phrase:
            return Quantity(body, None, scale)
    unit = read_unit(phrase.replace("(", " ").replace(")", " "))
    return Quantity(text) if unit is None else Quantity(body, unit, scale)


def units_agree(answer: Unit | None, reference: Unit | None) -> bool:
    """Whether two units can name the same quantity; a unit that is not written agrees with any."""
    return answer is None or reference is None or answer.dimension == reference.dimension


def readings(
    value: Fraction, other: Fraction, unit: Unit | None, other_unit: Unit | None
) -> set[Fraction]:
    """What a value may stand for beside another: as written, or, of a percentage, its hundredth.

    A percent sign may be left out or added where the number is at least 1: 12% is 12 and 0.12, but 0.5% is
    not 0.5.
    """
    if unit is not None and other_unit is not None:
        return {value * unit.factor}
    if unit is not None and unit.name == PERCENT:
        return {value / 100, value} if abs(other) >= 1 else {value / 100}
    return {value}


def same_quantity(answer: Quantity, reference: Quantity) -> bool | None:
    """Whether two plain quantities are equal, exactly; None where either is not plain.

    A decimal stands for exactly itself, so two numbers that differ in any digit differ; only against a
    fraction may it be rounded, to at least six significant digits.
    """
    left, right = plain_number(answer.body), plain_number(reference.body)
    if left is None or right is None:
        return None
    left, right = left * answer.scale, right * reference.scale
    if not units_agree(answer.unit, reference.unit):
        return False
    lefts = readings(left, right, answer.unit, reference.unit)
    rights = readings(right, left, reference.unit, answer.unit)
    if lefts & rights:
        return True
    if answer.unit == reference.unit and answer.scale == reference.scale == 1:
        return rounds_to(answer.body, right, reference.body) or rounds_to(
            reference.body, left, answer.body
        )
    return False


def rounds_to(decimal: str, exact: Fraction, written: str) -> bool:
    """Whether `decimal` is `exact` rounded, or cut off, to enough significant digits.

    Args:
        decimal: a decimal as written; anything else is False.
        exact: the other value.
        written: how the other value is written; if as a decimal, it stands for itself and this is False.
    """
    if "." not in decimal or plain_decimal(written) is not None:
        return False
    value = plain_decimal(decimal)
    if value is None or "e" in decimal.lower():
        return False
    digits = decimal.lstrip("+- ")
    significant = len(digits.replace(".", "").lstrip("0"))
    last_place = Fraction(1, 10 ** len(digits.partition(".")[2]))
    gap = abs(value - exact)
    return (significant >= MIN_ROUNDED and gap <= last_place / 2) or (
        significant >= MIN_CUT and gap < last_place and abs(value) < abs(exact)
    )
