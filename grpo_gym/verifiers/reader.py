"""A small reader of LaTeX arithmetic and algebra: text to a tree, or a clear refusal.

It reads the closed forms that answers consist of: numbers, names, the four operations, powers,
roots, fractions, factorials, binomials, absolute values, and the common functions. Sums, integrals,
limits and the like it refuses; those are math-verify's.
"""

from dataclasses import dataclass
from fractions import Fraction

from grpo_gym.verifiers.quantity import plain_number
from grpo_gym.verifiers.tokens import (
    ALIASES,
    CLOSERS,
    CONSTANTS,
    FUNCTIONS,
    GREEK,
    PRODUCT,
    QUOTIENT,
    Unreadable,
    tokens,
)


@dataclass(frozen=True)
class Node:
    """An operation on nodes, or a leaf: `num` with a value, `name` with a name."""

    op: str
    args: tuple["Node", ...] = ()
    value: Fraction | str | None = None


class Reader:
    """A precedence-climbing parser over the tokens of one text."""

    def __init__(self, text: str) -> None:
        self.tokens = tokens(text)
        self.position = 0
        self.inside_bars = False

    def peek(self) -> str:
        """The next token; empty at the end."""
        return self.tokens[self.position] if self.position < len(self.tokens) else ""

    def take(self) -> str:
        """The next token, consumed."""
        token = self.peek()
        self.position += 1
        return token

    def expect(self, token: str) -> None:
        """Consume this token.

        Raises:
            Unreadable: another one stands there.
        """
        if self.take() != token:
            raise Unreadable(token)

    def whole(self) -> Node:
        """The tree of the whole text."""
        node = self.sum()
        if self.peek():
            raise Unreadable(self.peek())
        return node

    def sum(self) -> Node:
        """Terms added and subtracted."""
        terms = [self.term()]
        while self.peek() in ("+", "-"):
            sign = self.take()
            term = self.term()
            terms.append(negated(term) if sign == "-" else term)
        return terms[0] if len(terms) == 1 else Node("add", tuple(terms))

    def term(self) -> Node:
        """Factors multiplied and divided; a sign in front applies to all of them."""
        if self.peek() in ("+", "-"):
            return negated(self.term()) if self.take() == "-" else self.term()
        factors = [self.factor()]
        while True:
            token = self.peek()
            if token in ("\\bmod", "\\mod"):
                self.take()
                before = factors[0] if len(factors) == 1 else Node("mul", tuple(factors))
                factors = [Node("mod", (before, self.factor()))]
            elif token in PRODUCT or token in QUOTIENT:
                self.take()
                sign = self.take() if self.peek() in ("+", "-") else "+"
                factor = self.factor()
                factor = negated(factor) if sign == "-" else factor
                factors.append(inverse(factor) if token in QUOTIENT else factor)
            elif self.starts_factor(token):
                # Two numerals side by side are no product: "3 4" is a slip or a list.
                if token[0].isdigit() or token[0] == ".":
                    raise Unreadable(token)
                fraction = token == "\\frac"
                factor = self.factor()
                if fraction and is_number(factors[-1]) and is_ratio(factor):
                    factors[-1] = Node("add", (factors[-1], factor))  # a mixed number
                else:
                    factors.append(factor)
            else:
                break
        return factors[0] if len(factors) == 1 else Node("mul", tuple(factors))

    def starts_factor(self, token: str) -> bool:
        """Whether a factor may begin with this token."""
        if not token:
            return False
        if (
            token[0].isalnum()
            or token[0] == "."
            or token in ("(", "[", "{", "\\{", "\\lfloor", "\\lceil")
        ):
            return True
        if token == "|":
            return not self.inside_bars
        name = token[1:]
        return token[0] == "\\" and (
            name in FUNCTIONS
            or name in GREEK
            or name in CONSTANTS
            or name in ("frac", "sqrt", "binom", "text", "mathbb")
        )

    def factor(self) -> Node:
        """An atom with its factorials, percent signs and powers."""
        return self.powers(self.atom())

    def powers(self, node: Node) -> Node:
        """What stands after an atom: `!`, `%`, `^`."""
        while True:
            token = self.peek()
            if token == "!":
                self.take()
                node = Node("factorial", (node,))
            elif token == "%":
                self.take()
                node = Node("mul", (node, number(Fraction(1, 100))))
            elif token in ("^", "**"):
                self.take()
                if self.is_degree():
                    node = Node("mul", (node, Node("degree")))
                else:
                    node = Node("pow", (node, self.exponent()))
            else:
                return node

    def is_degree(self) -> bool:
        r"""Whether `\circ` follows, alone or in braces; it is consumed then."""
        ahead = self.tokens[self.position : self.position + 3]
        for mark in (["\\circ"], ["{", "\\circ", "}"]):
            if ahead[: len(mark)] == mark:
                self.position += len(mark)
                return True
        return False

    def exponent(self) -> Node:
        """What a power is raised to; powers of powers bind to the right."""
        if self.peek() in ("+", "-"):
            return negated(self.exponent()) if self.take() == "-" else self.exponent()
        node = self.script()
        if self.peek() in ("^", "**"):
            self.take()
            return Node("pow", (node, self.exponent()))
        return node

    def script(self) -> Node:
        r"""One argument of `^`, `\frac` or `\sqrt`: a braced group, or a single atom or digit."""
        if self.peek() == "{":
            return self.group("{", "}")
        token = self.peek()
        if len(token) > 1 and token.isdigit() and self.tokens[self.position - 1] not in ("^", "**"):
            self.tokens[self.position : self.position + 1] = [token[0], token[1:]]
        return self.atom()

    def group(self, opening: str, closing: str) -> Node:
        """A sum in brackets."""
        self.expect(opening)
        node = self.sum()
        self.expect(closing)
        return node

    def atom(self) -> Node:
        """A number, a name, a bracket, or a function with its argument."""
        token = self.peek()
        if not token:
            raise Unreadable("end")
        if token[0].isdigit() or (token[0] == "." and len(token) > 1):
            return number(Fraction(self.take()))
        if token in ("(", "[", "{", "\\{", "\\lfloor", "\\lceil"):
            node = self.group(token, CLOSERS.get(token, "}"))
            return Node(token[1:], (node,)) if token in ("\\lfloor", "\\lceil") else node
        if token == "|":
            self.take()
            outside, self.inside_bars = self.inside_bars, True
            node = self.sum()
            self.expect("|")
            self.inside_bars = outside
            return Node("abs", (node,))
        self.take()
        if token.isalpha():
            return Node("const", value=token) if token in ("e", "i") else self.name(token)
        if token[0] != "\\":
            raise Unreadable(token)
        return self.command(token[1:])

    def command(self, name: str) -> Node:
        """What a command with this name makes of what follows it."""
        if name in CONSTANTS:
            return Node("const", value=CONSTANTS[name])
        if name in GREEK:
            return self.name(name)
        if name == "frac":
            return Node("mul", (self.script(), inverse(self.script())))
        if name == "binom":
            return Node("binomial", (self.script(), self.script()))
        if name == "sqrt":
            index = self.group("[", "]") if self.peek() == "[" else number(Fraction(2))
            return Node("root", (self.script(), index))
        if name in FUNCTIONS:
            return self.function(ALIASES.get(name, name))
        raise Unreadable(name)

    def name(self, name: str) -> Node:
        """A variable with its subscript."""
        if self.peek() == "_":
            self.take()
            if self.peek() == "{":
                self.take()
                parts = []
                while (part := self.take()) not in ("}", ""):
                    parts.append(part)
                name += "_" + "".join(parts)
            else:
                name += "_" + self.take()
        return Node("name", value=name)

    def function(self, name: str) -> Node:
        r"""A function applied: `\sin x`, `\sin^2(x)`, `\log_2 8`, `\gcd(4, 6)`."""
        base: Node | None = None
        if name == "log" and self.peek() == "_":
            self.take()
            base = self.script()
        elif name == "log":
            name = "bare_log"
        power: Node | None = None
        if self.peek() == "^":
            self.take()
            power = self.exponent()
            if power == negated(number(Fraction(1))) and name in ("sin", "cos", "tan", "cot"):
                name, power = "arc" + name, None
        args = self.arguments()
        if name == "ln":
            name = "log"
        node = Node(name, (*args, base) if base is not None else args)
        return node if power is None else Node("pow", (node, power))

    def arguments(self) -> tuple[Node, ...]:
        """The arguments of a function: in brackets, or a product up to the next sign or function."""
        if self.peek() in ("(", "["):
            opening = self.take()
            args = [self.sum()]
            while self.peek() == ",":
                self.take()
                args.append(self.sum())
            self.expect(CLOSERS[opening])
            return tuple(args)
        factors = [self.factor()]
        while self.starts_factor(token := self.peek()) and token[1:] not in FUNCTIONS:
            if token[0].isdigit() or token in ("(", "["):
                break
            factors.append(self.factor())
        return (factors[0] if len(factors) == 1 else Node("mul", tuple(factors)),)


def number(value: Fraction) -> Node:
    """A numeral."""
    return Node("num", value=value)


def is_number(node: Node) -> bool:
    """Whether a node is a whole numeral."""
    return isinstance(node.value, Fraction) and node.value.denominator == 1


def is_ratio(node: Node) -> bool:
    r"""Whether a node is `\frac` of two whole numerals."""
    return node.op == "mul" and is_number(node.args[0]) and is_number(node.args[1].args[0])


def negated(node: Node) -> Node:
    """Minus a node."""
    if isinstance(node.value, Fraction):
        return number(-node.value)
    return Node("mul", (number(Fraction(-1)), node))


def inverse(node: Node) -> Node:
    """One over a node."""
    return Node("pow", (node, number(Fraction(-1))))


def read(text: str) -> Node:
    """The tree of a normalised text.

    Raises:
        Unreadable: the text is not in the reader's language.
        RecursionError: it is nested too deeply.
    """
    value = plain_number(text)
    return number(value) if value is not None else Reader(text).whole()
