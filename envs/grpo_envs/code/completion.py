"""A function whose beginning is given, and the completion: its body, or the function once more."""

import re
import textwrap

from grpo_gym.verifiers.code import extract_program

# Where a bare completion is cut, after Chen et al. 2021 (arXiv:2107.03374), section 2.
_STOPS = re.compile(r"\n(?:class|def|#|if|print|@|```)")
_FUTURE = re.compile(r"^from __future__ import [\w, ]+\n?", re.MULTILINE)
_INDENT = "    "


def complete(prompt: str, name: str, completion: str) -> str:
    """The program that a completion makes of a prompt.

    Args:
        prompt: Python source that ends in the head of the function, its docstring included.
        name: of the function.
        completion: text with the function, or with its body. The last fenced Python block counts, or else
            the whole text. A body may have lost the indentation of its first line, or all of it; one that
            stands in no fence ends where something else begins at the margin.

    Returns:
        The prompt, and after it the function or its body.
    """
    text = extract_program(completion)
    whole = textwrap.dedent(text)
    if re.search(
        rf"^(?:(?:async +)?def +{name}\b|{name} *(?::[^=\n]+)?=[^=])", whole, re.MULTILINE
    ):
        return after(prompt, whole)
    text = text.lstrip("\n")
    if text[:1].isspace():
        stop = _STOPS.search(text) if text.strip() == completion.strip() else None
        return prompt + (text[: stop.start()] if stop else text)
    return prompt + _indented(text)


def after(before: str, program: str) -> str:
    """A program after other source; what it imports from `__future__` comes first of all."""
    if not before:
        return program
    first = "".join(f"{line.strip()}\n" for line in _FUTURE.findall(program))
    return f"{first}{before}\n\n{_FUTURE.sub('', program)}"


def _indented(body: str) -> str:
    """A body whose first line begins at the margin, moved to where a body stands."""
    first, _, rest = body.partition("\n")
    indents = [len(line) - len(line.lstrip()) for line in rest.splitlines() if line.strip()]
    # "if a:" before a line that is no deeper than the rest: all of it was moved to the margin.
    opens = first.rstrip().endswith(":") and indents[:1] == [min(indents, default=0)]
    if not indents or min(indents) == 0 or opens:
        return textwrap.indent(body, _INDENT)
    return f"{_INDENT}{body}"
