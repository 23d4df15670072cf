"""The answer that a completion commits to: its last box, or else what follows its last answer mark."""

import re

BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*")
MARK = re.compile(r"####|\banswer(?:\s+is\b|\s*:|\*\*\s*:)", re.IGNORECASE)
LINE_END = re.compile(r"[.!?](?=\s|$)|\n")

BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
WORD = re.compile(r"[^\s$]*")

MAX_TAIL = 100_000
"""Characters of a text that are looked at, from its end: the answer stands last."""


def matching_brace(text: str, start: int) -> int | None:
    """Index of the brace that closes the one at `start`; None if it is never closed."""
    depth = 0
    for match in BRACE.finditer(text, start):
        if match[0] == "{":
            depth += 1
        elif match[0] == "}":
            depth -= 1
            if depth == 0:
                return match.start()
    return None


def last_box(text: str) -> str | None:
    r"""What stands in the last `\boxed{...}`, `\fbox{...}` or `\boxed 5`.

    The last box counts even when it is empty or was cut off: an earlier one is not the answer any more.

    Returns:
        The content, maybe empty; None if there is no box.
    """
    last = None
    for match in BOX.finditer(text):
        last = match
    if last is None:
        return None
    start = last.end()
    if text[start : start + 1] == "{":
        end = matching_brace(text, start)
        return "" if end is None else text[start + 1 : end]
    word = WORD.match(text, start)
    return word[0] if word else ""


def after_mark(text: str) -> str | None:
    """What follows the last `####`, "answer is" or "answer:", up to the end of the sentence or line.

    Returns:
        The rest of the sentence, maybe empty; None if there is no mark.
    """
    last = None
    for match in MARK.finditer(text):
        last = match
    if last is None:
        return None
    rest = text[last.end() :].lstrip(" \t\n:*")
    return LINE_END.split(rest, maxsplit=1)[0].strip()


def extract_answer(text: str, require_boxed: bool = False) -> str | None:
    """The answer a text commits to: the last box; without one, what follows the last answer mark.

    Args:
        text: a completion, or a reference solution.
        require_boxed: take an answer from a box only.

    Returns:
        The answer as written, maybe empty; None if there is none.
    """
    tail = text[-MAX_TAIL:]
    content = last_box(tail)
    if content is None and not require_boxed:
        content = after_mark(tail)
    return content
