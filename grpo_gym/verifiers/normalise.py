r"""One spelling for each answer: unicode, LaTeX dressing, thousands separators, full stops.

Everything downstream reads plain ASCII LaTeX in which words stand in `\text{}`, spaces are single, and a
command has one name.
"""

import re
import unicodedata

from grpo_gym.verifiers.tokens import FUNCTIONS

MAX_LENGTH = 2_000
"""Longest answer that is read; nobody's final answer is longer."""

SYMBOLS = {
    "−": "-", "–": "-", "—": "-", "‐": "-", "‑": "-", "﹣": "-", "⁄": "/", "∕": "/", "×": r"\times ",
    "·": r"\cdot ", "⋅": r"\cdot ", "∙": r"\cdot ", "÷": r"\div ", "π": r"\pi ", "𝜋": r"\pi ",
    "∞": r"\infty ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "±": r"\pm ", "∓": r"\mp ",
    "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "∅": r"\emptyset ", "°": r"^\circ ", "º": r"^\circ ",
    "℃": r"^\circ C", "∠": r"\angle ", "…": r"\ldots ", "≈": r"\approx ", "ℝ": r"\mathbb{R}",
    "ℤ": r"\mathbb{Z}", "ℕ": r"\mathbb{N}", "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ",
    "γ": r"\gamma ", "δ": r"\delta ", "λ": r"\lambda ", "μ": r"\mu ", "φ": r"\phi ", "ω": r"\omega ",
    "σ": r"\sigma ", "ρ": r"\rho ", "ε": r"\epsilon ", "′": "'", "’": "'", "“": '"', "”": '"',
    "⟨": r"\langle ", "⟩": r"\rangle ", "⌊": r"\lfloor ", "⌋": r"\rfloor ", "⌈": r"\lceil ",
    "⌉": r"\rceil ",
}  # fmt: skip
SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ"
SUBSCRIPTS = "₀₁₂₃₄₅₆₇₈₉"
ROOTS = {"√": r"\sqrt", "∛": r"\sqrt[3]", "∜": r"\sqrt[4]"}
ROOT = re.compile(r"([√∛∜])\s*(\d+(?:\.\d+)?|[A-Za-zπ]|\([^()]*\)|\{[^{}]*\})?")

# Longest names first, so that \dfrac is not read as \d followed by "frac".
RENAMED = {
    "dfrac": r"\frac", "tfrac": r"\frac", "cfrac": r"\frac", "dbinom": r"\binom", "tbinom": r"\binom",
    "leq": r"\le ", "leqslant": r"\le ", "geq": r"\ge ", "geqslant": r"\ge ", "neq": r"\ne ",
    "lt": "<", "gt": ">", "ast": r"\cdot ", "degree": r"^\circ ", "degrees": r"^\circ ",
    "varnothing": r"\emptyset ", "lbrace": r"\{", "rbrace": r"\}", "lvert": "|", "rvert": "|", "vert": "|",
    "lbrack": "[", "rbrack": "]", "dots": r"\ldots ", "cdots": r"\ldots ", "arcsin": r"\arcsin ",
    "varphi": r"\phi ", "varepsilon": r"\epsilon ", "wedge": r"\land ", "vee": r"\lor ",
    "euro": "€", "pounds": "£", "pound": "£", "cents": "¢", "percent": "%", "displaystyle": " ",
    "textstyle": " ", "limits": "", "quad": " ", "qquad": " ", "thinspace": " ", "enspace": " ",
    "left": "", "right": "", "middle": "", "big": "", "Big": "", "bigg": "", "Bigg": "", "bigl": "",
    "bigr": "", "Bigl": "", "Bigr": "", "biggl": "", "biggr": "", "Biggl": "", "Biggr": "", "rm": " ",
    "bf": " ", "it": " ", "nobreak": "", "hfill": " ", "newline": " ", "implies": r"\implies ",
}  # fmt: skip
COMMAND = re.compile(r"\\([A-Za-z]+)(\.(?![0-9]))?")
STYLED = re.compile(
    r"\\(text|textrm|textbf|textit|textnormal|mbox|hbox|mathrm|mathbf|mathit|mathsf|mathtt|boldsymbol"
    r"|bm|vec|operatorname|mathop|emph|texttt|textsf|underline) ?\*?\s*\{([^{}]*)\}"
)
LETTER_STYLES = frozenset({"mathbf", "mathit", "boldsymbol", "bm", "vec", "underline"})
BARE = re.compile(r"[ei]|[-+\x01]{0,2}[\d.,/ ]+|\\[A-Za-z]+|\([A-Za-z]\)|[^A-Za-z]+")
UNIT_FRACTION = re.compile(
    r"\\frac ?\{ ?(\\text\{[^{}]*\}(?:\^ ?\{?\d\}?)?) ?\} ?\{ ?(\\text\{[^{}]*\}(?:\^ ?\{?\d\}?)?) ?\}"
)
LETTERS = re.compile(r"[A-J](?:(?:, (?:and |or )?| and | or | & )[A-J])+")
MIXED = re.compile(r"(?:[A-Za-z]++(?![\d$])|[-+\x01]{0,2}\d[\d.,/]*+(?![A-Za-z])|[,;()\s])++")
WORDS = re.compile(r"[A-Za-z]+(?: +[A-Za-z]+)*")
MONEY = "\x01"
"""Stands for a dollar sign that is money until those that delimit mathematics are gone."""
LONE_DOLLAR = re.compile(r"(?<![\d$])\$(?=\s*-?\d)(?=[^$]*$)")
IGNORED = re.compile(
    r"\\(?:hspace|vspace|phantom|textcolor|color) ?\{[^{}]*\}|\\(?:left|right) ?\."
    r"|\\(?:tiny|small|normalsize|large|Large|LARGE|huge|Huge)(?![A-Za-z])"
)
SPACES = re.compile(r"\\[ ,;:!>]|~|\s+")
THIN = r"(?:\\[,;:!> ]|\{,\}|,\\!|[\u00a0\u2000-\u200a\u202f\u205f '’]|\\thinspace |\{\\,\})"
THIN_GROUPS = re.compile(rf"(?<![\d.,])(\d{{1,3}})((?:{THIN}\d{{3}})+)(?!\d)")
COMMA_GROUPS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?!,?\d)")
DECIMAL_COMMA = re.compile(r"(?<=\d)\{,\}(?=\d)")
THIN_SPACES = ("\\,", "\\;", "\\:", "\\!")
OUTER = (
    ("$$", "$$"),
    ("$", "$"),
    (r"\(", r"\)"),
    (r"\[", r"\]"),
    ("**", "**"),
    ("`", "`"),
    ('"', '"'),
)


def plain_unicode(text: str) -> str:
    """Unicode spellings of mathematics as LaTeX; what has none as its compatibility form."""

    def root(match: re.Match[str]) -> str:
        body = match[2] or ""
        return ROOTS[match[1]] + (f"{{{body.strip('(){}')}}}" if body else " ")

    text = ROOT.sub(root, text)
    text = raise_digits(text, SUPERSCRIPTS, "0123456789-+n", "^")
    text = raise_digits(text, SUBSCRIPTS, "0123456789", "_")
    return "".join(character if character < "\x7f" else spelled(character) for character in text)


def raise_digits(text: str, digits: str, plain: str, mark: str) -> str:
    """Unicode super- or subscripts as `mark{plain digits}`."""
    table = str.maketrans(digits, plain)
    return re.sub(f"[{digits}]+", lambda run: f"{mark}{{{run[0].translate(table)}}}", text)


def spelled(character: str) -> str:
    """One character beyond ASCII, spelled out."""
    if character in SYMBOLS:
        return SYMBOLS[character]
    compatible = unicodedata.normalize("NFKC", character)
    if unicodedata.decomposition(character).startswith("<fraction>"):
        top, _, bottom = compatible.partition("⁄")
        return rf"\frac{{{top}}}{{{bottom}}}"
    if unicodedata.category(character) in ("Cf", "Cc"):  # zero-width and direction marks
        return ""
    return SYMBOLS.get(compatible, compatible)


def rename(match: re.Match[str]) -> str:
    r"""A command under its one name; the invisible delimiter in `\right.` goes with its command."""
    name, dot = match[1], match[2] or ""
    if name in ("left", "right"):
        return ""
    return RENAMED.get(name, match[0][: len(match[0]) - len(dot)]) + dot


def unstyle(match: re.Match[str]) -> str:
    r"""Styled mathematics without its style; styled words as `\text{words}`."""
    content = " ".join(match[2].split())
    if not content or BARE.fullmatch(content) or (match[1] in LETTER_STYLES and len(content) == 1):
        return f" {content} "
    if content in FUNCTIONS:
        return rf"\{content} "
    if LETTERS.fullmatch(content):
        return ", ".join(re.findall("[A-J]", content))
    if re.search(r"\d", content) and MIXED.fullmatch(content):
        return WORDS.sub(r"\\text{\g<0>}", f" {content} ")
    return rf"\text{{{content}}}"


def strip_outside(text: str) -> str:
    """Text without the dollars, delimiters, bold marks and full stops around it."""
    before = None
    while before != text:
        before = text
        text = text.strip()
        for left, right in OUTER:
            if len(text) > len(left + right) and text.startswith(left) and text.endswith(right):
                inside = text[len(left) : -len(right)]
                if left not in inside:
                    text = inside.strip()
        text = text.removesuffix(r"\cr").rstrip()
        # A factorial is not an exclamation mark, nor a thin space a comma.
        stop = text.endswith((".", ",", ";", ":", "!")) and not text.endswith(THIN_SPACES)
        if stop and not re.search(r"[\w)}]!$", text):
            text = text[:-1]
    return text


def collapse_brackets(text: str) -> str:
    """Text without a second pair of round brackets around the same content: ((x)) becomes (x)."""
    stack: list[int] = []
    partner: dict[int, int] = {}
    for index, character in enumerate(text):
        if character == "(":
            stack.append(index)
        elif character == ")" and stack:
            partner[stack.pop()] = index
    drop: set[int] = set()
    for opening, closing in partner.items():
        if partner.get(opening + 1) == closing - 1:
            drop |= {opening, closing}
    return "".join(character for index, character in enumerate(text) if index not in drop)


def join_commas(text: str) -> str:
    """Text with 1,234 written as 1234."""
    return COMMA_GROUPS.sub(lambda match: match[0].replace(",", ""), text)


def normalise(text: str) -> str:
    """The one spelling of an answer that the other modules read.

    Args:
        text: an answer as written, without its box.

    Returns:
        Plain LaTeX, in ASCII where possible; a dollar sign in it is money. Equal strings mean equal
        answers, different ones say nothing yet.
    """
    text = strip_outside(text[: MAX_LENGTH + 1])
    text = text.replace(MONEY, "").replace("\\\\", r"\cr ")
    text = THIN_GROUPS.sub(lambda match: match[1] + re.sub(r"\D", "", match[2]), text)
    text = DECIMAL_COMMA.sub(".", text)
    text = plain_unicode(text)
    text = text.replace(r"\$", MONEY).replace(r"\%", "%").replace(r"\#", "#")
    text = LONE_DOLLAR.sub(MONEY, text).replace("$", " ")
    text = IGNORED.sub(" ", text)
    text = COMMAND.sub(rename, text)
    text = STYLED.sub(unstyle, STYLED.sub(unstyle, text))
    text = UNIT_FRACTION.sub(r"\1/\2", text)
    text = SPACES.sub(" ", text)
    text = collapse_brackets(text.replace("( ", "(").replace(" )", ")"))
    return strip_outside(text).replace(MONEY, "$")


def same_text(answer: str, reference: str) -> bool:
    """Whether two texts are the same, apart from spaces that separate no two digits."""
    left, right = (re.sub(r"(?<!\d) | (?!\d)", "", text) for text in (answer, reference))
    return left == right
