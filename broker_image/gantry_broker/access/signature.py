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

from binascii import b2a_base64
from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import sha1
from hmac import compare_digest
from operator import itemgetter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from hashlib import _Hash

    from gantry_broker.protocol.frame import Frame

ACCESS_KEY: Final = "AccessKey"
SIGNATURE: Final = "Signature"
SECURITY_TOKEN: Final = "SecurityToken"
UNSIGNED_BY_OLD: Final = "_UNIQUE_KEY_QUERY"
"""The field that clients up to 4.9.3 add after they have signed."""

_NOBODY: Final = b"\0" * 32
"""The key that the signature of an unknown user is compared by: it costs the same time."""

_MAX_SHAPES: Final = 256
_MAX_SHAPE: Final = 1_024
"""Characters of the names of a header whose order is remembered."""
_shapes: dict[tuple[str, ...], Callable[[Mapping[str, str]], tuple[str, ...]]] = {}
"""By the names of a header, as they stand there: what reads the signed values in their order. Clients send the same
few headers again and again. Only headers of valid requests get here."""


def content(ext: Mapping[str, str], body: bytes, *, without: str = SIGNATURE) -> bytes:
    """Return what is signed. `without`: one more field that does not count."""
    return "".join([ext[name] for name in _order(ext, without)]).encode("utf-8", "replace") + body


def _order(names: Iterable[str], without: str = SIGNATURE) -> list[str]:
    return [name for name in sorted(names) if name != SIGNATURE and name != without]


def _remember(names: tuple[str, ...]) -> None:
    order = _order(names)
    if len(order) < 2 or sum(map(len, names)) > _MAX_SHAPE:
        return
    if len(_shapes) >= _MAX_SHAPES:
        _shapes.clear()
    _shapes[names] = itemgetter(*order)


@lru_cache(maxsize=4_096)
def _keyed(key: bytes) -> tuple[_Hash, _Hash]:
    """Return the inner and outer hash of HMAC (RFC 2104) after the key. Copies take half the time of `hmac`."""
    block = (key if len(key) <= _BLOCK else sha1(key).digest()).ljust(_BLOCK, b"\0")
    return sha1(block.translate(_INNER)), sha1(block.translate(_OUTER))


_BLOCK: Final = 64
"""Bytes that SHA-1 takes in one step."""
_TOGETHER: Final = 64
"""The most frames that one call of a check looks at. Requests of two kinds in turn would copy a long list for each."""
_INNER: Final = bytes(byte ^ 0x36 for byte in range(256))
_OUTER: Final = bytes(byte ^ 0x5C for byte in range(256))


def _digest(keyed: tuple[_Hash, _Hash], text: bytes, body: bytes) -> bytes:
    """Return the signature as it stands in the header."""
    start, end = keyed
    inner, outer = start.copy(), end.copy()
    inner.update(text)
    inner.update(body)
    outer.update(inner.digest())
    return b2a_base64(outer.digest(), newline=False)


def sign(ext: Mapping[str, str], body: bytes, secret: str) -> str:
    """Return the value of the field `Signature` for a request with these fields, `AccessKey` among them."""
    return _digest(_keyed(secret.encode()), content(ext, b""), body).decode()


def is_valid(ext: Mapping[str, str], body: bytes, keys: Sequence[bytes]) -> bool:
    """Whether the request is signed with one of these keys, newest first. The comparison takes constant time."""
    given = ext.get(SIGNATURE, "").encode("utf-8", "replace")
    names = tuple(ext)
    values = _shapes.get(names)
    text = content(ext, b"") if values is None else "".join(values(ext)).encode("utf-8", "replace")
    valid = False
    for key in keys or (_NOBODY,):
        valid |= compare_digest(_digest(_keyed(key), text, body), given)
    if valid and keys:
        if values is None:
            _remember(names)
        return True
    if UNSIGNED_BY_OLD in ext:
        text = content(ext, b"", without=UNSIGNED_BY_OLD)
        for key in keys:
            valid |= compare_digest(_digest(_keyed(key), text, body), given)
    return valid and bool(keys)


Check = Callable[[Sequence["Frame"], int], int]
"""Returns how many of the frames from this place on are valid and allowed, up to the first that it cannot decide."""


def repeated(
    frame: Frame, user: str, keys: Iterable[bytes], names: Sequence[str], allowed: Container[Hashable]
) -> Check | None:
    """Return the check of further requests like this one, which was valid just now, by the same user: it costs half of
    `is_valid`. None: the fields of this request are not remembered.

    `names`: the fields of what the request is about, one at least. `allowed` has what was allowed to the user, as
    `itemgetter(*names)` reads it. A frame at which the check ends may be valid: the signature is wrong, the fields are
    others, or no one has decided about these names yet.
    """
    shape = tuple(frame.ext)
    values = _shapes.get(shape)  # reads all fields but the signature
    if values is None:
        return None
    code, count = frame.code, len(shape)
    order = _order(shape)
    user_at = order.index(ACCESS_KEY)
    about_at = list(map(order.index, names))
    name_at = about_at[0]
    about = itemgetter(*about_at) if len(about_at) > 1 else None
    newest, *older = map(_keyed, keys)
    start, end = newest[0].copy, newest[1].copy

    def check(
        frames: Sequence[Frame],
        first: int,
        join: Callable[[Iterable[str]], str] = "".join,
        same: Callable[[bytes, bytes], bool] = compare_digest,
        base64: Callable[..., bytes] = b2a_base64,
    ) -> int:
        at, last = first, None
        for frame in frames[first : first + _TOGETHER]:
            if frame.code != code:
                break
            ext = frame.ext
            if len(ext) != count:
                break
            try:
                fields = values(ext)
                text = join(fields).encode()
                given = ext["Signature"].encode()
            except (KeyError, UnicodeEncodeError):
                break
            if fields[user_at] != user:
                break
            name = fields[name_at] if about is None else about(fields)
            if name != last:
                if name not in allowed:
                    break
                last = name
            inner = start()  # `_digest`, without a call
            inner.update(text)
            inner.update(frame.body)
            outer = end()
            outer.update(inner.digest())
            if not same(base64(outer.digest(), newline=False), given) and not any(
                same(_digest(key, text, frame.body), given) for key in older
            ):
                break
            at += 1
        return at - first

    return check
