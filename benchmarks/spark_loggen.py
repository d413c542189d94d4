"""Writes large commit logs quickly: valid records of one size, made by numpy from a template, with distinct bodies."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
from gantry_broker.protocol.message import MAGIC_BLANK, encode_record, format_properties, pack_host

HOST = pack_host("10.0.0.7", 10911)
TOPICS = ("orders-by-id", "prices-by-id", "audit-trails", "clicks-at-all")
KEY_DIGITS = 8
CRC_AT = 8
BODY_AT = 88
LETTERS = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", dtype=np.uint8)
"""Random content of bodies, as hard to compress as encoded data."""


def template(topic: str, body: bytes) -> tuple[np.ndarray, int]:
    """Return one record as bytes, and the position of the digits of its key."""
    key = "0" * KEY_DIGITS
    properties = format_properties(
        {"KEYS": f"k{key}", "UNIQ_KEY": "7F00000121A75FFD2B27684024390000", "CLUSTER": "demo", "TAGS": "TagA"}
    )
    raw = encode_record(
        topic=topic.encode(), body=body, properties=properties, queue_id=0, queue_offset=0, phys_offset=0,
        born_ms=0, born_host=pack_host("10.0.0.99", 40000), store_ms=0, store_host=HOST,
    )  # fmt: skip
    return np.frombuffer(raw, dtype=np.uint8), raw.index(b"KEYS\x01k") + 6


def write_log(
    root: Path, total: int, body_bytes: int, *, keys: int = 100_000, segment: int = 1 << 30, start_ms: int, span_ms: int
) -> int:
    """Write a store directory with a log of about `total` bytes, and return the number of its records.

    Topics and queues alternate, keys are drawn at random from `keys`, and store times spread evenly over `span_ms`.
    """
    folder = root / "commitlog"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(7)
    templates = [template(t.ljust(13, "-")[:13], bytes(body_bytes)) for t in TOPICS]
    size = len(templates[0][0])
    assert all(len(t) == size for t, _ in templates)
    key_at = templates[0][1]
    base = np.stack([t for t, _ in templates])
    assert not base[0, BODY_AT : BODY_AT + body_bytes].any()
    per_segment = (segment - 8) // size
    records = total // size
    done = 0
    while done < records:
        count = min(per_segment, records - done)
        first = done // per_segment * segment
        with open(folder / f"{first:020d}", "wb") as file:
            for chunk in range(0, count, 16_384):
                ids = np.arange(done + chunk, done + min(chunk + 16_384, count))
                place = first + (ids - done) * size
                chosen = rng.integers(0, keys, len(ids))
                bodies = LETTERS[rng.integers(0, len(LETTERS), (len(ids), body_bytes), dtype=np.uint8)]
                file.write(_fill(base, ids, place, key_at, chosen, bodies, start_ms, span_ms, records))
            if count == per_segment:
                file.write((segment - count * size).to_bytes(4, "big") + MAGIC_BLANK.to_bytes(4, "big"))
            file.truncate(segment)
        done += count
    return records


def _fill(
    base: np.ndarray, ids: np.ndarray, place: np.ndarray, key_at: int, key: np.ndarray, bodies: np.ndarray,
    start_ms: int, span_ms: int, records: int,
) -> bytes:  # fmt: skip
    out = base[ids % len(base)].copy()

    def put(at: int, dtype: str, values: np.ndarray) -> None:
        raw = values.astype(dtype).view(np.uint8).reshape(len(ids), -1)
        out[:, at : at + raw.shape[1]] = raw

    out[:, BODY_AT : BODY_AT + bodies.shape[1]] = bodies
    put(CRC_AT, ">u4", np.array([zlib.crc32(body) & 0x7FFFFFFF for body in bodies], dtype=np.uint32))
    put(12, ">i4", ids // len(base) % 8)
    put(20, ">i8", ids // len(base) // 8)
    put(28, ">i8", place)
    times = start_ms + ids * span_ms // records
    put(40, ">i8", times)
    put(56, ">i8", times + 1)
    for digit in range(KEY_DIGITS):
        out[:, key_at + digit] = 48 + key // 10 ** (KEY_DIGITS - 1 - digit) % 10
    return out.tobytes()
