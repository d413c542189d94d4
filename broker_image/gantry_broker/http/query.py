"""Values in the query of a URL."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator

from gantry_broker.protocol.digits import whole_number


def _whole(value: object) -> object:
    if not isinstance(value, str):
        return value
    number = whole_number(value)
    if number is None:
        raise ValueError("a whole number in the digits 0 to 9 is expected")
    return number


WholeNumber = Annotated[int, BeforeValidator(_whole)]
"""A whole number as `protocol.digits` reads it: pydantic would also take `1_000`, `+5` and ` 5 `."""
