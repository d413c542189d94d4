"""SQL92 message filters: an expression compiled once into a function of a message's properties.

The language is RocketMQ's (its `FilterAPI` and selector grammar): AND, OR, NOT, comparison of properties and literals,
BETWEEN, IN, IS NULL, CONTAINS, STARTSWITH, ENDSWITH. Properties are strings; beside a number they are read as numbers,
beside a boolean as booleans. A comparison with an absent property, or with one that is no number, is unknown, and a
message whose result is unknown is not matched.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from gantry_broker.protocol.digits import whole_number

if TYPE_CHECKING:
    from lark import Lark, Token, Tree

Props = Mapping[str, str]
Value = str | int | float | bool | None
Evaluate = Callable[[Props], Value]
Filter = Callable[[Props], bool]

MAX_LENGTH = 8_192
"""Characters of an expression. RocketMQ has no limit."""
MAX_TOKENS = 600
"""Names, literals and signs of an expression: 150 comparisons, or 300 choices of an IN. Parsing them takes some 20 ms,
and each message some 0.1 ms.
"""
MAX_DEPTH = 64
"""Nested parentheses, NOTs and junctions."""
MAX_DIGITS = 64
"""Characters of a number, in an expression or a property. A Java long has 19 digits; a longer text is no number."""

_GRAMMAR = r"""
?start: or_expr
?or_expr: and_expr ("OR"i and_expr)*
?and_expr: not_expr ("AND"i not_expr)*
?not_expr: "NOT"i not_expr -> negate
    | comparison
?comparison: operand
    | operand "=" operand -> eq
    | operand ("<>" | "!=") operand -> ne
    | operand ">" operand -> gt
    | operand ">=" operand -> ge
    | operand "<" operand -> lt
    | operand "<=" operand -> le
    | operand "IS"i "NULL"i -> is_null
    | operand "IS"i "NOT"i "NULL"i -> is_not_null
    | operand "BETWEEN"i operand "AND"i operand -> between
    | operand "NOT"i "BETWEEN"i operand "AND"i operand -> not_between
    | operand "IN"i "(" literal ("," literal)* ")" -> in_list
    | operand "NOT"i "IN"i "(" literal ("," literal)* ")" -> not_in_list
    | operand "CONTAINS"i STRING -> contains
    | operand "NOT"i "CONTAINS"i STRING -> not_contains
    | operand "STARTSWITH"i STRING -> startswith
    | operand "NOT"i "STARTSWITH"i STRING -> not_startswith
    | operand "ENDSWITH"i STRING -> endswith
    | operand "NOT"i "ENDSWITH"i STRING -> not_endswith
?operand: literal
    | NAME -> prop
    | "(" or_expr ")"
literal: STRING -> string
    | SIGNED_INT -> integer
    | SIGNED_FLOAT -> decimal
    | "TRUE"i -> true
    | "FALSE"i -> false
    | "NULL"i -> null
NAME: /(?!(?i:RESERVED)(?![a-zA-Z0-9_$]))[a-zA-Z_$][a-zA-Z0-9_$]*/
STRING: /'(?:[^']|'')*'/
SIGNED_INT: /[+-]?[0-9]+[lL]?/
SIGNED_FLOAT.2: /[+-]?(?:[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)/
%import common.WS
%ignore WS
""".replace("RESERVED", "AND|OR|NOT|IN|IS|NULL|BETWEEN|TRUE|FALSE|CONTAINS|STARTSWITH|ENDSWITH")


_TOKEN = re.compile(r"'(?:[^']|'')*'|[a-zA-Z0-9_$.]+|\S")


class FilterSyntaxError(ValueError):
    """The expression is not in the language; the message names the position."""


@cache
def _parser() -> Lark:
    """Return the parser, built at the first SQL92 subscription: most brokers never need it."""
    from lark import Lark

    return Lark(_GRAMMAR, parser="lalr", maybe_placeholders=False, propagate_positions=True)


def compile_filter(expression: str) -> Filter:
    """Return the function that decides whether a message with given properties matches.

    Raises FilterSyntaxError with line and column, or with the types that a comparison cannot compare.
    """
    from lark.exceptions import LarkError, UnexpectedEOF, UnexpectedInput

    if not expression or expression.isspace():
        raise FilterSyntaxError("the SQL92 expression is empty; write for example: a > 5 AND b IN ('x', 'y')")
    if len(expression) > MAX_LENGTH:
        raise FilterSyntaxError(f"the SQL92 expression has {len(expression)} characters; at most {MAX_LENGTH} are read")
    tokens = sum(1 for _ in _TOKEN.finditer(expression))
    if tokens > MAX_TOKENS:
        raise FilterSyntaxError(
            f"the SQL92 expression has {tokens} names, literals and signs; at most {MAX_TOKENS} are read"
        )
    try:
        tree = _parser().parse(expression)
    except UnexpectedEOF:
        column = len(expression.rpartition("\n")[2]) + 1
        line = expression.count("\n") + 1
        raise FilterSyntaxError(
            f"the SQL92 expression ends too early, at line {line} column {column}: {expression[:200]!r}"
        ) from None
    except UnexpectedInput as error:
        near = expression[max(error.pos_in_stream or 0, 0) :][:20]
        raise FilterSyntaxError(
            f"SQL92 syntax error at line {error.line} column {error.column}, near {near!r}: {expression[:200]!r}"
        ) from None
    except (LarkError, RecursionError) as error:
        raise FilterSyntaxError(f"the SQL92 expression cannot be read: {error}") from None
    evaluate = _build(tree, 0)
    return lambda props: _truth(evaluate(props)) is True


def _truth(value: Value) -> bool | None:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return len(value) == 4 and value.lower() == "true"
    return False


_LARGEST = 10**MAX_DIGITS
_REAL = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")


def _number(value: Value) -> int | float | None:
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, str):
        if len(value) > MAX_DIGITS:
            return None
        if (number := whole_number(value, -_LARGEST, _LARGEST)) is not None:
            return number
        return float(value) if _REAL.fullmatch(value) else None
    return value


def _equal(left: Value, right: Value) -> bool | None:
    if left is None or right is None:
        return None
    if isinstance(left, bool) or isinstance(right, bool):
        texts = [str(v).lower() if isinstance(v, bool) else v for v in (left, right)]
        return bool(texts[0] == texts[1]) if all(isinstance(t, str) for t in texts) else False
    if isinstance(left, str) and isinstance(right, str):
        return left == right
    a, b = _number(left), _number(right)
    return None if a is None or b is None else a == b


def _build(node: Tree[Token] | Token, depth: int) -> Evaluate:
    if depth > MAX_DEPTH:
        raise FilterSyntaxError(f"the SQL92 expression is nested deeper than {MAX_DEPTH}{_position(node)}")
    kind = str(getattr(node, "data", ""))
    parts: list[Any] = list(getattr(node, "children", []))
    if kind in _LITERALS:
        text = str(parts[0]) if parts else ""
        if kind in ("integer", "decimal") and len(text) > MAX_DIGITS:
            raise FilterSyntaxError(
                f"the SQL92 expression has a number of {len(text)} characters{_position(node)}; "
                f"at most {MAX_DIGITS} are read"
            )
        constant = _LITERALS[kind](text)
        return lambda props: constant
    if kind == "prop":
        name = str(parts[0])
        return lambda props: props.get(name)
    if kind in ("or_expr", "and_expr"):
        return _junction([_build(p, depth + 1) for p in parts], stop_at=kind == "or_expr")
    if kind == "negate":
        inner = _build(parts[0], depth + 1)

        def negate(props: Props) -> Value:
            value = _truth(inner(props))
            return None if value is None else not value

        return negate
    left = _build(parts[0], depth + 1)
    if kind in ("is_null", "is_not_null"):
        null = kind == "is_null"
        return lambda props: (left(props) is None) is null
    if kind in ("eq", "ne"):
        return _negated(_equality(left, _build(parts[1], depth + 1)), kind == "ne")
    if kind in _ORDER:
        for part in parts:
            _must_be_number(part, kind)
        return _order(left, _build(parts[1], depth + 1), _ORDER[kind])
    if kind in ("between", "not_between"):
        for part in parts:
            _must_be_number(part, "BETWEEN")
        low = _order(left, _build(parts[1], depth + 1), operator.ge)
        high = _order(left, _build(parts[2], depth + 1), operator.le)
        return _negated(_junction([low, high], stop_at=False), kind == "not_between")
    if kind in ("in_list", "not_in_list"):
        choices = [_equality(left, _build(p, depth + 1)) for p in parts[1:]]
        return _negated(_junction(choices, stop_at=True), kind == "not_in_list")
    negative = kind.startswith("not_")
    return _negated(_text(left, _unquote(str(parts[1])), kind.removeprefix("not_")), negative)


def _must_be_number(part: Any, kind: str) -> None:
    if str(getattr(part, "data", "")) in ("string", "true", "false", "null"):
        raise FilterSyntaxError(
            f"the SQL92 operator {_SYMBOL.get(kind, kind)} compares numbers only, not {str(part.data).upper()} "
            f"literals{_position(part)}"
        )


def _position(node: Tree[Token] | Token) -> str:
    """Return the position of a part of the expression as text."""
    where = getattr(node, "meta", node)
    line, column = getattr(where, "line", None), getattr(where, "column", None)
    return "" if line is None else f", at line {line} column {column}"


def _equality(left: Evaluate, right: Evaluate) -> Evaluate:
    return lambda props: _equal(left(props), right(props))


def _order(left: Evaluate, right: Evaluate, compare: Callable[[Any, Any], bool]) -> Evaluate:
    def evaluate(props: Props) -> Value:
        a, b = _number(left(props)), _number(right(props))
        return None if a is None or b is None else compare(a, b)

    return evaluate


def _junction(parts: list[Evaluate], stop_at: bool) -> Evaluate:
    """AND (`stop_at` False) and OR (`stop_at` True) of three-valued parts."""

    def evaluate(props: Props) -> Value:
        result: bool | None = not stop_at
        for part in parts:
            value = _truth(part(props))
            if value is stop_at:
                return stop_at
            if value is None:
                result = None
        return result

    return evaluate


def _negated(inner: Evaluate, negative: bool) -> Evaluate:
    if not negative:
        return inner

    def evaluate(props: Props) -> Value:
        value = inner(props)
        return None if value is None else not value

    return evaluate


def _text(left: Evaluate, piece: str, kind: str) -> Evaluate:
    def evaluate(props: Props) -> Value:
        value = left(props)
        if not isinstance(value, str):
            return None
        if kind == "contains":
            return piece in value
        return value.startswith(piece) if kind == "startswith" else value.endswith(piece)

    return evaluate


def _unquote(text: str) -> str:
    return text[1:-1].replace("''", "'")


_LITERALS: dict[str, Callable[[str], Value]] = {
    "string": _unquote,
    "integer": lambda text: int(text.rstrip("lL")),
    "decimal": float,
    "true": lambda _: True,
    "false": lambda _: False,
    "null": lambda _: None,
}
_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "gt": operator.gt,
    "ge": operator.ge,
    "lt": operator.lt,
    "le": operator.le,
}
_SYMBOL = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
