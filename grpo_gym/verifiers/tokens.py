"""Tokens of the LaTeX that answers are written in."""

import re


class Unreadable(Exception):
    """The text is not in the reader's language."""


TRIGONOMETRIC = ("sin", "cos", "tan", "cot", "sec", "csc")
INVERSE = ("arcsin", "arccos", "arctan", "arccot", "asin", "acos", "atan")
HYPERBOLIC = ("sinh", "cosh", "tanh")
OTHER = ("ln", "log", "lg", "exp", "min", "max", "gcd", "lcm", "sgn", "arg", "Re", "Im")
FUNCTIONS = frozenset({*TRIGONOMETRIC, *INVERSE, *HYPERBOLIC, *OTHER})
ALIASES = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "lg": "log"}
CONSTANTS = {"pi": "pi", "e": "e", "infty": "inf", "inf": "inf", "infinity": "inf"}
GREEK = frozenset(
    (
        *("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa"),
        *(
            "lambda",
            "mu",
            "nu",
            "xi",
            "rho",
            "sigma",
            "tau",
            "upsilon",
            "phi",
            "chi",
            "psi",
            "omega",
        ),
        *("Gamma", "Delta", "Theta", "Lambda", "Xi", "Pi", "Sigma", "Phi", "Psi", "Omega", "ell"),
    )
)
TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d+)?(?:E[+-]?\d{1,4}|e\d{1,4})?|\.\d+)"
    r"|\\(?P<command>[A-Za-z]+|.)|(?P<word>[A-Za-z]+)|(?P<mark>\*\*|.))",
    re.DOTALL,
)
MAX_WORD = 3
"""Longest run of bare letters that is read as a product of names; a longer one is a word."""

PRODUCT = frozenset({"*", "\\cdot", "\\times"})
QUOTIENT = frozenset({"/", ":", "\\div"})
CLOSERS = {"(": ")", "[": "]", "\\{": "\\}", "\\lfloor": "\\rfloor", "\\lceil": "\\rceil"}


def tokens(text: str) -> list[str]:
    r"""Tokens of a normalised text: numbers, letters, marks, and commands with their backslash.

    Raises:
        Unreadable: a word among the letters.
    """
    found: list[str] = []
    position = 0
    text = text.rstrip()
    while position < len(text):
        match = TOKEN.match(text, position)
        assert match is not None
        position = match.end()
        if match["command"]:
            found.append("\\" + match["command"])
        elif match["word"]:
            found.extend(letters(match["word"]))
        else:
            found.append(match["number"] or match["mark"])
    return found


def letters(word: str) -> list[str]:
    """A run of bare letters as names: a function or constant if it is one, else letter by letter."""
    if word in FUNCTIONS or word in ("sqrt", "pi", "inf", "infinity"):
        return ["\\" + word]
    for name in ("sqrt", "sin", "cos", "tan", "log", "ln", "exp", "pi"):
        if word.endswith(name) and len(word) <= len(name) + 2:
            return [*word[: -len(name)], "\\" + name]
    if word.startswith("pi") and len(word) <= 3:
        return ["\\pi", *word[2:]]
    if len(word) > MAX_WORD or (len(word) > 1 and word.isupper()):
        raise Unreadable(word)
    return list(word)
