"""Units of measure, as they trail an answer: read, compared, converted."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

PERCENT = "percent"
DEGREE = "degree"

# name: (factor, dimension); the names after it are other spellings.
TABLE: tuple[tuple[str, str, str], ...] = (
    ("1/1000", "m", "mm millimeter millimetre"), ("1/100", "m", "cm centimeter centimetre"),
    ("1/10", "m", "dm decimeter decimetre"), ("1", "m", "m meter metre"),
    ("1000", "m", "km kilometer kilometre"), ("1", "inch", "inch inches"), ("12", "inch", "ft foot feet"),
    ("36", "inch", "yd yard"), ("63360", "inch", "mi mile"),
    ("1", "s", "s sec second"), ("60", "s", "min minute"), ("3600", "s", "h hr hour"),
    ("86400", "s", "day"), ("604800", "s", "week"), ("1", "month", "month"), ("12", "month", "yr year"),
    ("1/1000", "g", "mg milligram"), ("1", "g", "g gram"), ("1000", "g", "kg kilogram"),
    ("1000000", "g", "tonne"), ("1", "lb", "lb lbs pound_mass"), ("1", "oz", "oz ounce"),
    ("1", "liter", "L l liter litre"), ("1/1000", "liter", "mL ml milliliter millilitre"),
    ("1", "gallon", "gallon gal"), ("1", "cent", "cent"), ("100", "cent", "dollar usd buck"),
    ("1", "euro", "euro eur"), ("1", "pound", "pound gbp"), ("1", "yen", "yen"),
    ("1", DEGREE, "degree deg"), ("1", "radian", "rad radian"), ("1", PERCENT, "percent pct percentage"),
    ("1", "unit", "unit"), ("1", "newton", "N newton"), ("1", "joule", "J joule"), ("1", "watt", "W watt"),
    ("1", "volt", "V volt"), ("1", "celsius", "celsius"), ("1", "fahrenheit", "fahrenheit"),
)  # fmt: skip
UNITS: Mapping[str, tuple[Fraction, str]] = {
    name: (Fraction(factor), dimension)
    for factor, dimension, names in TABLE
    for name in names.split()
}
SHORTHAND = {"mph": "mile per hour", "kph": "km per hour", "kmh": "km per hour", "sq": "square"}
SCALES = {
    "hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12,
}  # fmt: skip

# Words that make a trailing phrase more than a unit: what they say of the number must not be dropped.
TELLING = frozenset(
    (
        *("not", "no", "never", "non", "or", "and", "nor", "isn't", "cannot", "incorrect", "wrong"),
        *(
            "false",
            "true",
            "but",
            "maybe",
            "perhaps",
            "is",
            "are",
            "was",
            "equals",
            "plus",
            "minus",
        ),
        *(
            "times",
            "over",
            "to",
            "than",
            "less",
            "more",
            "least",
            "most",
            "between",
            "from",
            "half",
        ),
        *("thirds", "squared", "cubed", "if", "unless", "except", "without", "excluding", "about"),
        *(
            "either",
            "neither",
            "both",
            "unknown",
            "undefined",
            "infinite",
            "none",
            "solutions",
            "mod",
        ),
        *("base", "th", "st", "nd", "rd", "negative", "positive", "where", "when", "while", "any"),
        *("all", "every", "some", "power"),
    )
)
JOINING = frozenset({"per", "each", "a", "an", "the", "of", "in"})
TOKEN = re.compile(
    r"\s*(?:(?P<word>[A-Za-z][A-Za-z']*)|(?P<power>\^\s*\{?\s*(-?\d)\s*\}?)|(?P<over>/)|[-.*]|\\cdot)"
)


@dataclass(frozen=True)
class Unit:
    """A unit: its size in base units, and the powers of those."""

    factor: Fraction
    dimension: tuple[tuple[str, int], ...]

    def times(self, other: "Unit") -> "Unit":
        """The product of two units."""
        powers = dict(self.dimension)
        for base, power in other.dimension:
            powers[base] = powers.get(base, 0) + power
        dimension = tuple(sorted((base, power) for base, power in powers.items() if power))
        return Unit(self.factor * other.factor, dimension)

    @property
    def name(self) -> str:
        """The base unit where it is just one; else empty."""
        return (
            self.dimension[0][0] if len(self.dimension) == 1 and self.dimension[0][1] == 1 else ""
        )


def singular(word: str) -> str:
    """A word as the table has it: known spelling, else lower case without a plural s."""
    for form in (
        word,
        word.lower(),
        word.lower().removesuffix("es"),
        word.lower().removesuffix("s"),
    ):
        if form in UNITS:
            return form
    lowered = word.lower()
    return lowered.removesuffix("s") if len(lowered) > 3 and not lowered.endswith("ss") else lowered


def read_unit(text: str) -> Unit | None:
    """The unit that a phrase names, such as "square cm", "km/h" or "apples".

    Returns:
        The unit; an unknown noun is a unit of its own. None if the phrase says more than a unit does.
    """
    for short, long in SHORTHAND.items():
        text = re.sub(rf"\b{short}\b", long, text)
    factor, powers = Fraction(1), dict[str, int]()
    sign, pending, last = 1, 1, ""
    unknown: list[str] = []
    position = 0
    while position < len(text.rstrip()):
        match = TOKEN.match(text, position)
        if match is None:
            return None
        position = match.end()
        word = match["word"]
        if word is None:
            if match["over"]:
                sign = -1
            elif match["power"]:
                if not last or last not in UNITS:
                    return None
                size, base = UNITS[last]
                extra = sign * (int(match[3]) - 1)
                factor *= size**extra
                powers[base] = powers.get(base, 0) + extra
            continue
        lowered = word.lower()
        if lowered in TELLING or len(word) > 20:
            return None
        if lowered in JOINING:
            sign = -1 if lowered in ("per", "each") else sign
            continue
        if lowered in ("square", "cubic"):
            pending = 2 if lowered == "square" else 3
            continue
        last = singular(word)
        if last in UNITS:
            size, base = UNITS[last]
            factor *= size ** (sign * pending)
            powers[base] = powers.get(base, 0) + sign * pending
        else:
            unknown.append(last)
        pending = 1
    if len(unknown) > 4 or (not unknown and not powers):
        return None
    if unknown:
        powers["_".join(unknown)] = 1
    return Unit(factor, tuple(sorted((base, power) for base, power in powers.items() if power)))
