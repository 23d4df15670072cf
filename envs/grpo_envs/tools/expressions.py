"""Arithmetic on text without `eval`: numbers, brackets and seven operators, every size bounded."""

import ast
import operator
import re
from collections.abc import Callable

Number = int | float

MAX_LENGTH = 200
MAX_BITS = 4096

_RULE = "an expression is made of numbers and + - * / // % ** ( )"
_ALLOWED = re.compile(r"[0-9.+\-*/%() ]*")

_BINARY: dict[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def evaluate(expression: str) -> Number:
    """The value of an expression of numbers, `+ - * / // % **` and brackets.

    Integers stay exact up to about a thousand digits. The work is bounded: text, nesting and every
    intermediate result are.

    Raises:
        ValueError: The text is not such an expression, is too long, divides by zero, or has too
            large a value on the way. The message is for whoever wrote the expression.
    """
    if len(expression) > MAX_LENGTH:
        raise ValueError(f"an expression has at most {MAX_LENGTH} characters")
    if not _ALLOWED.fullmatch(expression):
        raise ValueError(_RULE)
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(_RULE) from error
    try:
        return _value(tree.body)
    except ZeroDivisionError as error:
        raise ValueError("division by zero") from error
    except OverflowError as error:
        raise ValueError("the result is too large") from error


def _value(node: ast.expr) -> Number:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return _bounded(number)
        case ast.UnaryOp(op=ast.USub()):
            return -_value(node.operand)
        case ast.UnaryOp(op=ast.UAdd()):
            return _value(node.operand)
        case ast.BinOp(op=ast.Pow()):
            return _power(_value(node.left), _value(node.right))
        case ast.BinOp() if type(node.op) in _BINARY:
            return _bounded(_BINARY[type(node.op)](_value(node.left), _value(node.right)))
    raise ValueError(_RULE)


def _power(base: Number, exponent: Number) -> Number:
    """`base ** exponent`, refused before it is computed when the result would be too large."""
    whole = isinstance(base, int) and isinstance(exponent, int) and abs(base) > 1
    if whole and exponent * (int(base).bit_length() - 1) >= MAX_BITS:
        raise ValueError("the power is too large")
    result = base**exponent
    if isinstance(result, complex):
        raise ValueError("the power is not a real number")
    return _bounded(result)


def _bounded(number: Number) -> Number:
    if isinstance(number, int):
        if number.bit_length() > MAX_BITS:
            raise ValueError("the result is too large")
    elif number != number or number in (float("inf"), float("-inf")):
        raise ValueError("the result is not finite")
    return number
