"""Signatures: the content that counts, and every change of it."""

from __future__ import annotations

import base64
import hashlib
import hmac
import random

from gantry_broker.access.signature import content, is_valid, sign
from gantry_broker.client.credentials import Credentials
from gantry_broker.protocol.frame import Frame

KEY = "12345678"


def plain(ext: dict[str, str], body: bytes, key: str) -> str:
    """RFC 2104 over the values in the order of their names."""
    text = b"".join(ext[name].encode() for name in sorted(ext) if name != "Signature") + body
    return base64.b64encode(hmac.new(key.encode(), text, hashlib.sha1).digest()).decode()


def test_signatures_are_those_of_the_plain_model_and_no_others() -> None:
    rng = random.Random(7)
    for _ in range(2_000):
        names = rng.sample("abcdefghijklmnop", rng.randint(0, 12))
        ext = {name: "".join(rng.choices("xyzä€ 0\x01", k=rng.randint(0, 9))) for name in names}
        ext["AccessKey"] = "orders"
        body = rng.randbytes(rng.choice([0, 1, 300]))
        ext["Signature"] = sign(ext, body, KEY)
        assert ext["Signature"] == plain(ext, body, KEY)
        assert is_valid(ext, body, [b"other-key", KEY.encode()])
        assert not is_valid(ext, body, [b"other-key"])
        assert not is_valid(ext, body, [])
        assert not is_valid(ext, body + b"x", [KEY.encode()])
        assert not is_valid({**ext, "Signature": ext["Signature"][:-1]}, body, [KEY.encode()])
        assert not is_valid({**ext, "Signature": "ä"}, body, [KEY.encode()])
        name = rng.choice(sorted(set(ext) - {"Signature"}))
        assert not is_valid({**ext, name: ext[name] + "1"}, body, [KEY.encode()])


def test_a_query_by_unique_key_of_an_old_client() -> None:
    """Clients up to 4.9.3 add the field after they have signed."""
    ext = {"AccessKey": "orders", "topic": "a", "key": "b"}
    ext["Signature"] = sign(ext, b"", KEY)
    assert is_valid({**ext, "_UNIQUE_KEY_QUERY": "true"}, b"", [KEY.encode()])
    later = {"AccessKey": "orders", "topic": "a", "key": "b", "_UNIQUE_KEY_QUERY": "true"}
    later["Signature"] = sign(later, b"", KEY)
    assert is_valid(later, b"", [KEY.encode()])
    assert not is_valid({**later, "_UNIQUE_KEY_QUERY": "false"}, b"", [KEY.encode()])


def test_values_follow_the_order_of_their_names() -> None:
    assert content({"b": "2", "Signature": "no", "a": "1", "B": "0"}, b"body") == b"012body"


def test_a_frame_is_signed_again_for_each_attempt() -> None:
    credentials = Credentials("orders", KEY, "token")
    frame = Frame(310, ext={"b": "Orders"}, body=b"x")
    credentials.sign(frame)
    first = frame.ext["Signature"]
    credentials.sign(frame)
    assert frame.ext["Signature"] == first
    assert frame.ext["SecurityToken"] == "token"
    assert is_valid(frame.ext, frame.body, [KEY.encode()])
    assert KEY not in repr(credentials)
    assert "token" not in repr(credentials)
    assert first not in repr(frame)
