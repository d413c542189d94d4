"""SQL92 filters: three-valued logic, types, and errors that say where."""

from __future__ import annotations

import pytest
from gantry_broker.broker.pull.sql92 import FilterSyntaxError, compile_filter
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("expression", "props", "wanted"),
    [
        ("color='red' and num > 10", {"color": "red", "num": "11"}, True),
        ("color='red' and num > 10", {"color": "red", "num": "x"}, False),
        ("color='red' and num > 10", {"color": "red"}, False),
        ("a BETWEEN 1 AND 5 AND b IS NOT NULL", {"a": "3", "b": ""}, True),
        ("a NOT BETWEEN 1 AND 2", {"a": "9"}, True),
        ("a IN ('x', 'y''z')", {"a": "y'z"}, True),
        ("a NOT IN ('q')", {}, False),
        ("a NOT IN ('q')", {"a": "r"}, True),
        ("NOT (a = 1)", {"a": "2"}, True),
        ("NOT (a = 1)", {}, False),
        ("a = TRUE", {"a": "true"}, True),
        ("a = FALSE", {"a": "true"}, False),
        ("a IS NULL OR a <> -1.5e3", {"a": "1"}, True),
        ("a IS NULL", {}, True),
        ("a = 10", {"a": "10.0"}, True),
        ("a CONTAINS 'ell'", {"a": "hello"}, True),
        ("a NOT STARTSWITH 'x'", {"a": "hello"}, True),
        ("a ENDSWITH 'lo'", {"a": "hello"}, True),
        ("nota = 5 AND orx = 1", {"nota": "5", "orx": "1"}, True),
        ("a = 1 OR b = 2 AND c = 3", {"a": "1"}, True),
    ],
)
def test_matching_expressions(expression: str, props: dict[str, str], wanted: bool) -> None:
    assert compile_filter(expression)(props) is wanted


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("a = ", "line 1"),
        ("(a=1", "near"),
        ("a ! 1", "column 3"),
        ("", "empty"),
        ("a=1 b=2", "column 5"),
        ("a > 'x'", "numbers only, not STRING literals, at line 1 column 5"),
        ("b = 1 AND a >=\nNULL", "numbers only, not NULL literals, at line 2 column 1"),
        ("a = 1 AND", "line 1 column"),
        ("a BETWEEN 'x' AND 'y'", "numbers only"),
        ("n >= AND", "near 'AND'"),
        ("x" * 70_000, "characters"),
        ("NOT " * 300 + "a", "nested deeper than 64, at line 1 column"),
    ],
)
def test_refusals_name_the_place(expression: str, says: str) -> None:
    with pytest.raises(FilterSyntaxError, match=says):
        compile_filter(expression)


@given(st.text(max_size=60))
def test_any_text_is_a_filter_or_a_refusal(text: str) -> None:
    try:
        match = compile_filter(text)
    except FilterSyntaxError:
        return
    assert match({}) in (True, False)


@given(st.integers(-1000, 1000), st.integers(-1000, 1000))
def test_comparisons_are_those_of_numbers(left: int, right: int) -> None:
    props = {"a": str(left)}
    assert compile_filter(f"a > {right}")(props) is (left > right)
    assert compile_filter(f"a <= {right}")(props) is (left <= right)
    assert compile_filter(f"a = {right}")(props) is (left == right)
