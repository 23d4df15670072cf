"""One spelling for each answer: unicode, LaTeX dressing, full stops, thousands separators."""

import re
import unicodedata

MAX_LENGTH = 2_000
"""Longest answer that is read; nobody's final answer is longer."""

MAX_DEPTH = 40
"""Deepest nesting that is handed to a parser."""

SYMBOLS = {
    "−": "-", "–": "-", "—": "-", "‐": "-", "‑": "-", "﹣": "-",
    "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "∙": r"\cdot ", "÷": r"\div ", "∕": "/", "⁄": "/",
    "π": r"\pi ", "∞": r"\infty ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "±": r"\pm ", "∪": r"\cup ",
    "∩": r"\cap ", "∈": r"\in ", "∅": r"\emptyset ", "°": r"^\circ ", "′": "'", "“": '"', "”": '"',
    "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ", "λ": r"\lambda ", "φ": r"\phi ",
}  # fmt: skip
SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ", "0123456789-+n")
SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")

SPACES = re.compile(
    r"\\(?:quad|qquad|enspace|thinspace|medspace|thickspace|hspace\{[^{}]*\})(?![A-Za-z])|\\[ ,;:!>]|~|\s+"
)
DRESSING = re.compile(
    r"\\(?:left|right|bigl?|bigr|Bigl?|Bigr|biggl?|biggr|Biggl?|Biggr|displaystyle|textstyle|limits)(?![A-Za-z])\.?"
)
GROUPED = re.compile(
    r"(?<![\d.,])\d{1,3}(?:(?P<mark>\{,\}|,\\!|,|\\[,;: !]|[ \u00a0\u2009\u202f'])\d{3})(?:(?P=mark)\d{3})*(?![\d])"
)
ROOT = re.compile(r"([√∛∜])\s*(\d+(?:\.\d+)?|[A-Za-z]|\([^()]*\)|\{[^{}]*\})")
ROOT_NAMES = {"√": r"\sqrt", "∛": r"\sqrt[3]", "∜": r"\sqrt[4]"}


def plain_unicode(text: str) -> str:
    """Unicode spellings of mathematics as LaTeX or ASCII."""

    def root(match: re.Match[str]) -> str:
        body = match[2][1:-1] if match[2][0] in "({" else match[2]
        return f"{ROOT_NAMES[match[1]]}{{{body}}}"

    text = ROOT.sub(root, text)
    text = re.sub(r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ]+", lambda m: f"^{{{m[0].translate(SUPERSCRIPTS)}}}", text)
    text = re.sub(r"[₀-₉]+", lambda m: f"_{{{m[0].translate(SUBSCRIPTS)}}}", text)
    out = []
    for character in text:
        if character in SYMBOLS:
            out.append(SYMBOLS[character])
        elif unicodedata.decomposition(character).startswith("<fraction>"):
            top, _, bottom = unicodedata.normalize("NFKC", character).partition("⁄")
            out.append(rf"\frac{{{top}}}{{{bottom}}}")
        elif unicodedata.category(character) == "Cf":
            continue  # zero-width and direction marks
        else:
            out.append(
                unicodedata.normalize("NFKC", character) if ord(character) > 127 else character
            )
    return "".join(out)


def join_thousands(text: str) -> str:
    """Whole numbers without their thousands separators."""
    return GROUPED.sub(lambda match: re.sub(r"\D", "", match[0]), text)


def strip_outside(text: str) -> str:
    """Without dollar signs, math delimiters, bold marks and the full stop around it."""
    before = None
    while before != text:
        before = text
        text = text.strip()
        for left, right in (
            ("$$", "$$"),
            ("$", "$"),
            (r"\(", r"\)"),
            (r"\[", r"\]"),
            ("**", "**"),
            ("`", "`"),
        ):
            if (
                len(text) >= len(left) + len(right)
                and text.startswith(left)
                and text.endswith(right)
            ):
                text = text[len(left) : -len(right)].strip()
        text = text.rstrip(".,;:!").rstrip()
    return text


def normalise(text: str) -> str:
    """The one spelling of an answer that the other modules read.

    Args:
        text: an answer as written, without its box.

    Returns:
        The answer in plain LaTeX; equal strings mean equal answers, different strings say nothing.
    """
    text = strip_outside(text[: MAX_LENGTH + 1])
    text = join_thousands(text)
    text = plain_unicode(text)
    text = DRESSING.sub("", text)
    text = re.sub(r"\\[dt]frac(?![A-Za-z])", r"\\frac", text)
    text = text.replace(r"\$", "").replace("$", "").replace(r"\%", "%")
    text = SPACES.sub(" ", text)
    text = strip_outside(text)
    return text
