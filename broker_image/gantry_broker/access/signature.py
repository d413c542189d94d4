"""How RocketMQ's clients sign a request, and the check of it.

A signed request has the header fields `AccessKey`, `Signature` and, if the client has one, `SecurityToken`. The
signature is HMAC-SHA1 with the secret key, in Base64, over the values of all other header fields in the order of their
names, without anything between them, and then the body. A request without a body counts as one with an empty body.
Code, opaque, flag, language and version are not signed. Source: clients 4.9.7 and 5.5.0, the Go client 2.1.

Two details: clients up to 4.9.3 sign the fields of their request class only, and add `_UNIQUE_KEY_QUERY` to a query by
unique key afterwards. Brokers therefore leave this field out: 4.9.7 always, 5.5.0 for clients up to 4.9.3. Here both
forms are valid. A query with the field and one without it need the same right.
"""

from __future__ import annotations

import hmac
from binascii import b2a_base64
from collections.abc import Mapping, Sequence
from functools import lru_cache
from hmac import compare_digest
from typing import Final

ACCESS_KEY: Final = "AccessKey"
SIGNATURE: Final = "Signature"
SECURITY_TOKEN: Final = "SecurityToken"
UNSIGNED_BY_OLD: Final = "_UNIQUE_KEY_QUERY"
"""The field that clients up to 4.9.3 add after they have signed."""

_NOBODY: Final = b"\0" * 32
"""The key that the signature of an unknown user is compared by: it costs the same time."""


def content(ext: Mapping[str, str], body: bytes, *, without: str = SIGNATURE) -> bytes:
    """Return what is signed. `without`: one more field that does not count."""
    text = "".join([ext[name] for name in sorted(ext) if name != SIGNATURE and name != without])
    return text.encode("utf-8", "replace") + body


@lru_cache(maxsize=4_096)
def _keyed(key: bytes) -> hmac.HMAC:
    """The part of the computation that depends on the key alone."""
    return hmac.new(key, digestmod="sha1")


def digest(signed: bytes, key: bytes) -> bytes:
    """Return the signature of `content` as it stands in the header."""
    mac = _keyed(key).copy()
    mac.update(signed)
    return b2a_base64(mac.digest(), newline=False)


def sign(ext: Mapping[str, str], body: bytes, secret: str) -> str:
    """Return the value of the field `Signature` for a request with these fields, `AccessKey` among them."""
    return digest(content(ext, body), secret.encode()).decode()


def is_valid(ext: Mapping[str, str], body: bytes, keys: Sequence[bytes]) -> bool:
    """Whether the request is signed with one of these keys, newest first. The comparison takes constant time."""
    given = ext.get(SIGNATURE, "").encode("utf-8", "replace")
    signed = content(ext, body)
    valid = False
    for key in keys or (_NOBODY,):
        valid |= compare_digest(digest(signed, key), given)
    if not valid and UNSIGNED_BY_OLD in ext:
        signed = content(ext, body, without=UNSIGNED_BY_OLD)
        for key in keys:
            valid |= compare_digest(digest(signed, key), given)
    return valid and bool(keys)
