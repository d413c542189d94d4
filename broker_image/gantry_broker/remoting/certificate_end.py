"""The end of a certificate's validity, out of its PEM text. Pure.

The package `cryptography` reads it, too, and takes 9 MiB of memory in each process.
"""

from __future__ import annotations

import base64
import re
from datetime import UTC, datetime
from typing import Final

from gantry_broker.protocol.digits import whole_number

_PEM: Final = re.compile(rb"-----BEGIN (X509 )?CERTIFICATE-----\s(.*?)-----END (X509 )?CERTIFICATE-----", re.DOTALL)
_SEQUENCE: Final = 0x30
_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17
_LONG_TIME: Final = 0x18
_NO_TIME: Final = "its validity has no time"


def not_after(pem: bytes) -> datetime:
    """Return when the first certificate of a PEM text ends. Raises ValueError for anything that is none."""
    match = _PEM.search(pem)
    if match is None:
        raise ValueError("there is no certificate in PEM form")
    der = base64.b64decode(b"".join(match[2].split()), validate=True)
    _, inner, _ = _element(der, _SEQUENCE)
    _, fields, _ = _element(inner, _SEQUENCE)
    tag, _, rest = _element(fields)
    if tag == _VERSION:
        _, _, rest = _element(rest)  # The serial number; without a version it was the first field.
    for _ in ("signature", "issuer"):
        _, _, rest = _element(rest, _SEQUENCE)
    _, validity, _ = _element(rest, _SEQUENCE)
    _, _, behind = _element(validity)
    tag, text, _ = _element(behind)
    return _time(tag, text)


def _element(data: bytes, expected: int | None = None) -> tuple[int, bytes, bytes]:
    """Return the tag and the content of the first element of DER, and what comes behind it. Raises ValueError."""
    if len(data) < 2:
        raise ValueError("the certificate is cut off")
    tag, length, start = data[0], data[1], 2
    if length >= 0x80:
        start += length & 0x7F
        length = int.from_bytes(data[2:start], "big")
    if len(data) < start + length:
        raise ValueError("the certificate is cut off")
    if expected is not None and tag != expected:
        raise ValueError(f"the certificate has an element of kind {tag} where {expected} is expected")
    return tag, data[start : start + length], data[start + length :]


def _time(tag: int, text: bytes) -> datetime:
    """Return the time of `YYMMDDhhmmssZ` or `YYYYMMDDhhmmssZ`, the forms of RFC 5280. Raises ValueError."""
    size = {_UTC_TIME: 13, _LONG_TIME: 15}.get(tag)
    if len(text) != size or not text.endswith(b"Z"):
        raise ValueError(_NO_TIME)
    years = size - 11
    parts = [whole_number(text[:years]), *(whole_number(text[at : at + 2]) for at in range(years, size - 1, 2))]
    year, month, day, hour, minute, second = [part if part is not None else -1 for part in parts]
    if tag == _UTC_TIME and year >= 0:
        year += 1900 if year >= 50 else 2000
    return datetime(year, month, day, hour, minute, second, tzinfo=UTC)
