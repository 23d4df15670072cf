"""The answer that a completion commits to: its last box, or else what follows its last answer mark."""

import re

BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])")
MARK = re.compile(
    r"####|\b(?:final\s+)?answer(?:\s+is\s*:?|\s*:)|\\text\{\s*(?:final\s+)?answer\s*:?\s*\}",
    re.IGNORECASE,
)
MAX_TAIL = 100_000
"""Characters of the completion that are looked at, from its end: the answer stands last."""


def matching_brace(text: str, start: int) -> int | None:
    """Index of the brace that closes the one at `start`; None if it is never closed."""
    depth = 0
    position = start
    while position < len(text):
        character = text[position]
        if character == "\\":
            position += 2
            continue
        if character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
            if depth == 0:
                return position
        position += 1
    return None


def last_box(text: str) -> str | None:
    r"""What stands in the last `\boxed{...}`, `\fbox{...}` or `\boxed 5`.

    An unclosed last box counts as empty: a completion that was cut off has not committed to an answer.

    Returns:
        The content, maybe empty; None if there is no box.
    """
    content: str | None = None
    position = 0
    while (match := BOX.search(text, position)) is not None:
        position = match.end()
        rest = re.compile(r"\s*").match(text, position)
        start = rest.end() if rest else position
        if start < len(text) and text[start] == "{":
            end = matching_brace(text, start)
            content = "" if end is None else text[start + 1 : end]
            # A box inside a box is part of it: \boxed{\boxed{5}} has the content 5.
            position = len(text) if end is None else end + 1
        else:
            bare = re.compile(r"\S+").match(text, start)
            content = bare.group().strip("$.,;:") if bare else ""
    if content is not None and BOX.search(content):
        return last_box(content)
    return content


def after_mark(text: str) -> str | None:
    """What follows the last `####`, "answer is" or "answer:" on its line; None if there is none."""
    content: str | None = None
    for match in MARK.finditer(text):
        lines = text[match.end() :].strip().splitlines()
        content = lines[0].strip() if lines else ""
    return content


def extract_answer(text: str, require_boxed: bool = False) -> str | None:
    """The answer a text commits to: the last box; without one, what follows the last answer mark.

    Args:
        text: the completion.
        require_boxed: take an answer from a box only.

    Returns:
        The answer as written, maybe empty; None if there is none.
    """
    tail = text[-MAX_TAIL:]
    content = last_box(tail)
    if content is None and not require_boxed:
        content = after_mark(tail)
    return content
