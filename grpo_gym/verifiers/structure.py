"""The outer structure of an answer: a list, set, tuple, interval, matrix, equation of parts."""

import re
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Leaf:
    """An answer without outer structure."""

    text: str


@dataclass(frozen=True)
class Group:
    r"""Several parts.

    Attributes:
        kind: the brackets, such as "()" or "[)"; "{}" a set; "list" of alternatives; "union"; "row" and
            "matrix"; "ratio".
        items: the parts.
    """

    kind: str
    items: tuple["Part", ...]


@dataclass(frozen=True)
class Named:
    """A part with a name: x = 5, or x in [1, 2].

    Attributes:
        name: what stands on the left.
        part: what it is.
        member: whether the part is a set of values (x in, x <), not a value.
    """

    name: str
    part: "Part"
    member: bool = False


@dataclass(frozen=True)
class Equation:
    """Two or more sides with equals signs between them, the first of which is no name."""

    sides: tuple[str, ...]


@dataclass(frozen=True)
class Relation:
    r"""An inequality that is no interval, or a statement with `\ne` and the like."""

    text: str


Part = Leaf | Group | Named | Equation | Relation

TOKEN = re.compile(r"\\begin|\\end|\\[A-Za-z]+|\\.|.", re.DOTALL)
OPENING = frozenset({"(", "[", "{", "\\{", "\\langle", "\\begin"})
CLOSING = frozenset({")", "]", "}", "\\}", "\\rangle", "\\end"})
COMMAS = frozenset({",", ";"})
CONJUNCTION = re.compile(
    r",? ?\\text\{ ?,?(?:and|or) ?\}|,? \b(?:and|or)\b |\\lor(?![A-Za-z])|\\text\{ ?[,;] ?\}"
)
RELATIONS = {"<": "<", "\\le": "<=", ">": ">", "\\ge": ">=", "=": "=", "\\in": "in", "\\ne": "!="}
STATEMENTS = frozenset(
    {
        "\\approx",
        "\\equiv",
        "\\sim",
        "\\subset",
        "\\subseteq",
        "\\to",
        "\\implies",
        "\\notin",
        "\\not",
    }
)
LEADING = re.compile(
    r"(?:\\approx|\\therefore|=|:|(?:\\text\{ ?)?(?:the )?(?:final )?answer(?: is)?:?(?: ?\})?) ",
    re.IGNORECASE,
)
NAME = re.compile(
    r"(?:\\?[A-Za-z]+|\\angle ?[A-Z]+|\\text\{[^{}]*\}|\|[A-Z]{1,3}\||\\overline ?\{[A-Z]{1,3}\})'*"
    r"(?: ?_ ?(?:\w|\{[^{}]*\}))?(?: ?\^ ?\{ ?-1 ?\})?(?: ?\([A-Za-z](?: ?, ?[A-Za-z])*\))?"
    r"|\( ?[A-Za-z](?:_\w)?(?: ?, ?[A-Za-z](?:_\w)?)+ ?\)|[A-Za-z]\([^()]*\)"
    r"|\\frac ?\{ ?d ?[a-z] ?\} ?\{ ?d ?[a-z] ?\}"
)
MATRIX = re.compile(
    r"\\begin ?\{([pbB]?matrix|array)\}(?: ?\{[lcr| ]*\})?(.*)\\end ?\{\1\}", re.DOTALL
)
MAX_PARTS = 100


def tokens(text: str) -> Iterator[tuple[int, str, int]]:
    """Each token of a text with its start, and the depth of brackets around it."""
    depth = 0
    for match in TOKEN.finditer(text):
        token = match[0]
        if token in CLOSING:
            depth -= 1
        yield match.start(), token, depth
        if token in OPENING:
            depth += 1


def split(text: str, separators: frozenset[str] | set[str]) -> list[tuple[str, str]]:
    """A text cut at separators outside all brackets: pairs of a piece's separator ("" first) and it."""
    pieces, start, before = [], 0, ""
    for position, token, depth in tokens(text):
        if depth == 0 and token in separators:
            pieces.append((before, text[start:position].strip()))
            before, start = token, position + len(token)
    pieces.append((before, text[start:].strip()))
    return pieces


def enclosed(text: str) -> tuple[str, str, str] | None:
    """Opening bracket, content and closing bracket, where one pair encloses the whole text; else None."""
    items = list(tokens(text))
    if len(items) < 2 or items[0][1] not in OPENING or items[-1][1] not in CLOSING:
        return None
    if any(depth < 1 for _, _, depth in items[1:-1]) or items[-1][2] != 0:
        return None
    opening, closing = items[0][1], items[-1][1]
    return opening, text[len(opening) : items[-1][0]].strip(), closing


def parts_of(text: str, depth: int = 0) -> Part:
    """The structure of a normalised answer."""
    text = text.strip()
    while match := LEADING.match(text):
        text = text[match.end() :]
    if text == r"\mathbb{R}":
        return Group("()", (Leaf(r"-\infty"), Leaf(r"\infty")))
    if depth > 12:
        return Leaf(text)
    text = outside_brackets_conjunctions(text)
    pieces = [piece for _, piece in split(text, COMMAS)]
    if len(pieces) > 1:
        if pieces[-1] == "":
            pieces.pop()
        if len(pieces) > MAX_PARTS or "" in pieces:
            return Leaf(text)
        return gathered("list", [parts_of(piece, depth + 1) for piece in pieces])
    return (
        relation(text, depth) or bracketed(text, depth) or alternatives(text, depth) or Leaf(text)
    )


def gathered(kind: str, parts: list[Part]) -> Part:
    """A group; a list within a list is part of it."""
    flat: list[Part] = []
    for part in parts:
        if kind == "list" and isinstance(part, Group) and part.kind == "list":
            flat.extend(part.items)
        else:
            flat.append(part)
    return Group(kind, tuple(flat))


def outside_brackets_conjunctions(text: str) -> str:
    """Text with "and" and "or" between parts written as a comma."""
    return CONJUNCTION.sub(",", text)


def relation(text: str, depth: int) -> Part | None:
    """An equation, an inequality or a membership; None if the text is none of them."""
    if any(token in STATEMENTS for _, token, level in tokens(text) if level == 0):
        return Relation(text)
    pieces = split(text, set(RELATIONS))
    if len(pieces) == 1:
        return None
    signs = [RELATIONS[sign] for sign, _ in pieces[1:]]
    sides = [side for _, side in pieces]
    if "" in sides or "!=" in signs:
        return Relation(text)
    if set(signs) == {"="}:
        if NAME.fullmatch(sides[0]):
            return Named(sides[0], parts_of(sides[-1], depth + 1))
        return Equation(tuple(sides))
    if signs == ["in"]:
        return Named(sides[0], parts_of(sides[1], depth + 1), member=True)
    return interval(signs, sides) or Relation(text)


def interval(signs: list[str], sides: list[str]) -> Part | None:
    """An inequality of one name as the interval of its values; None if it is none."""
    upward = {"<": ("(", ")"), "<=": ("[", "]")}
    flipped = {">": "<", ">=": "<="}
    if all(sign in flipped for sign in signs):
        signs, sides = [flipped[sign] for sign in reversed(signs)], sides[::-1]
    if not all(sign in upward for sign in signs):
        return None
    if len(sides) == 3 and NAME.fullmatch(sides[1]):
        kind = upward[signs[0]][0] + upward[signs[1]][1]
        return Named(sides[1], Group(kind, (Leaf(sides[0]), Leaf(sides[2]))), member=True)
    if len(sides) == 2 and NAME.fullmatch(sides[0]) and not NAME.fullmatch(sides[1]):
        low = Group("(" + upward[signs[0]][1], (Leaf(r"-\infty"), Leaf(sides[1])))
        return Named(sides[0], low, member=True)
    if len(sides) == 2 and NAME.fullmatch(sides[1]):
        high = Group(upward[signs[0]][0] + ")", (Leaf(sides[0]), Leaf(r"\infty")))
        return Named(sides[1], high, member=True)
    return None


def bracketed(text: str, depth: int) -> Part | None:
    """A text that one pair of brackets encloses; None if there is no such pair."""
    if match := MATRIX.fullmatch(text):
        rows = [row for row in re.split(r"\\cr(?![A-Za-z])", match[2]) if row.strip()]
        cells = [Group("row", tuple(Leaf(cell.strip()) for cell in row.split("&"))) for row in rows]
        return Group("matrix", tuple(cells[:MAX_PARTS]))
    found = enclosed(text)
    if found is None:
        return None
    opening, content, closing = found
    if opening == "\\begin":
        return None
    if opening == "{":
        return parts_of(content, depth + 1) if closing == "}" else None
    kind = {"\\{": "{", "\\langle": "("}.get(opening, opening) + {"\\}": "}", "\\rangle": ")"}.get(
        closing, closing
    )
    if kind == "{}":
        builder = split(content, {"|", "\\mid", ":"})
        if len(builder) == 2:
            return parts_of(builder[1][1], depth + 1)
    inner = parts_of(content, depth + 1) if content else Group("list", ())
    if isinstance(inner, Group) and inner.kind == "list":
        return Group(kind, inner.items)
    if kind == "{}":
        return Group(kind, (inner,))
    return inner if kind == "()" else None


def alternatives(text: str, depth: int) -> Part | None:
    r"""A union, a plus-or-minus, or a ratio of three and more; None if the text is none of them."""
    pieces = split(text, {"\\cup"})
    if 1 < len(pieces) <= MAX_PARTS:
        return gathered("union", [parts_of(piece, depth + 1) for _, piece in pieces])
    if "\\pm" in text:
        plus = text.replace("\\pm", "+").replace("\\mp", "-")
        minus = text.replace("\\pm", "-").replace("\\mp", "+")
        return gathered(
            "list", [parts_of(plus.removeprefix("+"), depth + 1), parts_of(minus, depth + 1)]
        )
    pieces = split(text, {":"})
    if 2 < len(pieces) <= MAX_PARTS:
        return Group("ratio", tuple(Leaf(piece) for _, piece in pieces))
    return None
