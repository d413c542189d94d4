"""The error of a header field, in a module without the headers: their classes take long to make."""

from __future__ import annotations

from gantry_broker.protocol.codes import ResponseCode


class BadField(ValueError):
    """A header field is absent or of the wrong type; `code` is the answer's code."""

    def __init__(self, field: str, value: str | None, expected: str, code: int = ResponseCode.SYSTEM_ERROR) -> None:
        self.field = field
        self.value = value
        self.expected = expected
        self.code = int(code)
        what = "is absent" if value is None else f"is {value[:80]!r}"
        super().__init__(f"the field {field} {what}; {expected} is expected")
