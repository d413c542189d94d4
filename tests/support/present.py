"""A value that a test needs and that its type calls optional."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def present(value: T | None) -> T:
    """Return the value, which must be there."""
    assert value is not None, "a value is missing"
    return value
