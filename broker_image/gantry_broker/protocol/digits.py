"""Whole numbers in texts from outside: the one parser of them. Pure.

`str.isdigit` also accepts characters that `int()` refuses (a superscript 2). `int()` also accepts what other programs
read as no number: digits of other scripts, `1_000`, spaces around, and thousands of digits.
"""

from __future__ import annotations

from typing import Final

MIN_INT: Final = -(2**31)
MAX_INT: Final = 2**31 - 1
MIN_LONG: Final = -(2**63)
MAX_LONG: Final = 2**63 - 1
"""Java's ranges."""
MAX_DIGITS: Final = 40
"""Digits of a number in a text, zeros at its begin included: more than any number has that is in range."""


def whole_number(text: str | bytes, low: int = 0, high: int = MAX_LONG) -> int | None:
    """Return the number that ASCII digits write; None: the text is no number, or it is outside [low, high].

    With a negative `low`, a "-" may come before the digits.
    """
    # Bytes have no `isdecimal`. Of ASCII characters `isdigit` is true for 0 to 9 alone.
    if not text.isdigit() or not text.isascii() or len(text) > MAX_DIGITS:  # Most texts are digits alone.
        digits = text[1:]
        if low >= 0 or text[:1] not in ("-", b"-") or len(digits) > MAX_DIGITS:
            return None
        if not (digits.isascii() and digits.isdigit()):
            return None
    number = int(text)
    return number if low <= number <= high else None
