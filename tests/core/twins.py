"""Compares both bodies of `gantry_core` on seeded, mutated buffers: `python -m tests.core.twins --count 1000000`.

Each seed makes one input; both bodies must give equal values or the same kind of error. A difference prints its seed.
"""

from __future__ import annotations

import argparse
import json
import random
import struct
import sys
import time
import zlib
from collections.abc import Callable
from importlib import import_module
from typing import Any

import gantry_core
from gantry_broker.access.signature import sign
from gantry_core import _python as python

TEXTS = (
    "",
    "a",
    "TagA",
    "order-17",
    "a b  c",
    " ",
    "ä",
    "日本",
    "\U0001f600",
    "x" * 40,
    "7F00000121A75FFD2B276840243900FF",
    "jbvfmomt",
)
"""The last one has the least hash as a key of the topic "T"."""
NAMES = ("TAGS", "KEYS", "UNIQ_KEY", "WAIT", "color", "DELAY", "TRAN_MSG", "1ST_POP_TIME", "ä", "", "CLUSTER", "TAG")
SPECIAL = ("DELAY", "TRAN_MSG", "1ST_POP_TIME", "TIMER_OUT_MS")
SUFFIX = b"CLUSTER\x01DefaultCluster"
HOST = b"\x0a\0\0\1\0\0\x2a\x9f"
EXTREME = (0, 1, 3, 4, 21, 22, 87, 88, 91, 92, 0x7FFF, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFC, 0xFFFFFFFF)
"""Sizes and lengths at which a sum or a difference may overflow."""


def native() -> Any:
    """The compiled module, or None where it was not built."""
    for name in gantry_core.MODULES:
        try:
            return import_module(name)
        except ImportError:
            continue
    return None


def outcome(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a call gives: its value, or the kind of its error."""
    try:
        return function(*arguments)
    except (ValueError, OverflowError, TypeError) as error:
        return ValueError if isinstance(error, ValueError) else type(error)


def properties(rng: random.Random) -> bytes:
    pieces = [f"{rng.choice(NAMES)}\x01{rng.choice(TEXTS)}" for _ in range(rng.choice((0, 1, 2, 3, 3, 3, 6)))]
    if rng.random() < 0.1:
        pieces.insert(rng.randrange(len(pieces) + 1), rng.choice(("", "no separator", "\x01", "KEYS\x01a\x01b")))
    return ("\x02".join(pieces) + rng.choice(("", "\x02"))).encode()


def batch_body(rng: random.Random) -> bytes:
    parts = []
    for _ in range(rng.choice((0, 1, 2, 3, 5, 9))):
        body, named = rng.randbytes(rng.choice((0, 1, 7, 64, 200))), properties(rng)
        head = struct.pack(">iIIii", 22 + len(body) + len(named), 0, 0, rng.randrange(-9, 9), len(body))
        parts += [head, body, len(named).to_bytes(2, "big"), named]
    return b"".join(parts)


_NAMES = (
    "producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag", "bornTimestamp", "flag",
    "properties", "reconsumeTimes", "unitMode", "maxReconsumeTimes", "batch", "brokerName",
)  # fmt: skip
SEND_RULES = ((*SPECIAL, "WAIT"), SUFFIX)


def send_fields(rng: random.Random, topics: tuple[str, ...] = ("T", "orders")) -> dict[str, Any]:
    """The fields of a send by their long names, nearly always plain."""
    named = properties(rng).decode()
    if rng.random() < 0.9:
        pieces = [piece for piece in named.split("\x02") if piece.count("\x01") == 1]
        pieces = [piece for piece in pieces if not piece.startswith(("WAIT\x01", "\x01", *SPECIAL))]
        if rng.random() < 0.8:
            pieces.insert(rng.randrange(len(pieces) + 1), "WAIT\x01true")
        if rng.random() < 0.03:
            unusual = rng.choice(("WAIT\x01true", "WAIT\x01false", "WAIT", "a\x01b\0"))
            pieces.insert(rng.randrange(len(pieces) + 1), unusual)
        named = "\x02".join(pieces)
    values: dict[str, Any] = {
        "producerGroup": "PG", "topic": rng.choice(topics), "defaultTopic": "TBW102", "defaultTopicQueueNums": "4",
        "queueId": str(rng.randrange(3)), "sysFlag": rng.choice(("0",) * 20 + ("1", "48", "4")),
        "bornTimestamp": str(1_795_240_234_041 + rng.randrange(9)), "flag": "0",
        "properties": named or "a\x01b", "reconsumeTimes": "0", "unitMode": "false", "batch": "false",
    }  # fmt: skip
    if rng.random() < 0.05:
        name = rng.choice(_NAMES)
        values[name] = rng.choice(("", "0", "01", "-1", "true", "+5", "9" * 10, "9" * 19, "x" * 2000, "ä", "x" * 128))
        if rng.random() < 0.3:
            values[name] = rng.choice((None, 7, 1.5, True, ["a"], {"a": "b"}))
    for name in list(values):
        if rng.random() < 0.002:
            del values[name]
    if rng.random() < 0.03:
        values[rng.choice(("AccessKey", "Signature", "SecurityToken", "other", "nsd"))] = rng.choice(("u", "v", ""))
    if rng.random() < 0.1:
        values.update(at_a_limit(rng))
    return values


def batch_fields(rng: random.Random, topics: tuple[str, ...] = ("T", "orders")) -> dict[str, Any]:
    """The fields of a batch send, nearly always plain."""
    values = send_fields(rng, topics)
    if rng.random() < 0.95:
        values["properties"] = rng.choice(("", "WAIT\x01true", "WAIT\x01true\x02"))
    values["batch"] = rng.choice(("true", "true", "false")) if rng.random() < 0.98 else rng.choice(("False", ""))
    return {**values, "items": True}


def items(rng: random.Random) -> bytes:
    """The messages of a batch, nearly always plain."""
    parts = []
    for _ in range(rng.choice((1, 2, 3, 9)) if rng.random() < 0.97 else 0):
        body, named = rng.randbytes(rng.choice((0, 1, 64))), properties(rng)
        if rng.random() < 0.96:
            named = b"\x02".join([piece for piece in named.split(b"\x02") if not piece.startswith((b"WAIT", b"DELAY",
                b"TRAN_MSG", b"1ST_POP"))])  # fmt: skip
        if rng.random() < 0.02:
            named += rng.choice((b"\0", b"\xff", b"\x02a"))
        head = struct.pack(">iIIii", 22 + len(body) + len(named), 0, 0, rng.randrange(-9, 9), len(body))
        parts += [head, body, len(named).to_bytes(2, "big"), named]
    made = b"".join(parts)
    return mutated(rng, made) if rng.random() < 0.05 else made


def at_a_limit(rng: random.Random) -> dict[str, str]:
    """A field that is as long as it may be, or longer."""
    more = rng.choice((0, 0, 1))
    name = rng.choice(("names", "topic", "bornTimestamp", "number"))
    if name == "names":
        sizes = [rng.randrange(1, 400), rng.randrange(1, 400)]
        texts = ["x" * size for size in (*sizes, 1024 + more - sum(sizes))]
        return dict(zip(rng.sample(("producerGroup", "defaultTopic", "brokerName"), 3), texts, strict=True))
    if name == "topic":
        return {"topic": "t" * (255 + more)}
    if name == "bornTimestamp":
        return {name: "1" * (18 + more)}
    return {rng.choice(("queueId", "sysFlag", "flag", "defaultTopicQueueNums")): "1" + "0" * (8 + more)}


def send_frame(rng: random.Random, fields: dict[str, Any], body: bytes, key: bytes | None = None) -> bytes:
    """The frame of a send, nearly always plain; with a key it is signed, or nearly."""
    code = rng.choice((310, 10)) if rng.random() < 0.1 else 310
    if "items" in fields:  # A batch.
        code, fields = 320, {name: value for name, value in fields.items() if name != "items"}
    ext = {
        "abcdefghijklmn"[_NAMES.index(name)] if code != 10 and name in _NAMES else name: value
        for name, value in fields.items()
    }
    if key is not None:
        ext = signed(rng, {name: str(value) for name, value in ext.items()}, body, key)
    opaque, flag = rng.choice((1, 77, 0x7FFFFFFF, -5)), rng.choice((0,) * 80 + (1, 2))
    if rng.random() < 0.25:
        texts = [(name.encode(), str(value).encode()) for name, value in ext.items()]
        if rng.random() < 0.05:
            texts.append(rng.choice(texts))
        packed = b"".join(struct.pack(">h", len(a)) + a + struct.pack(">i", len(b)) + b for a, b in texts)
        remark = rng.choice((0,) * 60 + (1, 1 << 24))
        header = struct.pack(">hBhiiii", code, 0, 399, opaque, flag, remark, len(packed)) + packed
        return struct.pack(">iI", 4 + len(header) + len(body), 1 << 24 | len(header)) + header + body
    head: dict[str, Any] = {
        "code": code, "extFields": ext, "flag": flag, "language": "JAVA", "opaque": opaque,
        "serializeTypeCurrentRPC": "JSON", "version": 399,
    }  # fmt: skip
    if rng.random() < 0.04:
        head[rng.choice(("remark", "version", "opaque", "language", "other", "flag", "code", "extFields"))] = (
            rng.choice((None, "x", 'ä\n"\\/', 5, 1 << 40, 10**18, -7, 1.5, False, [1], {"a": "b"}, {}))
        )
    if rng.random() < 0.03:
        del head[rng.choice(tuple(head))]
    text = json.dumps(head, separators=(",", ":"), ensure_ascii=rng.random() < 0.5)
    if rng.random() < 0.04:
        old, new = rng.choice(
            (
                (":", ": "), ("}", "}\n"), ("TBW", "\\ud83d\\ude00"), ("TBW", "\\ud83d"), ("TBW", "\\ud83d\\ue000"),
                ("TBW", "\\u00E4\\/\\b\\f"),
                ('"flag":0', '"flag":-0'), ('"flag":0', '"flag":00'), ('"flag":0', '"flag":0,"flag":2'),
                ('"code"', '"code":9,"code"'), ("399", "399e0"), ("JAVA", "JAVA\t"), ("PG", "\\uZZZZ"), ("PG", "\\q"),
                ('"version"', '"\\u0076ersion"'), ("399", "nul"), ("399", "NaN"), ("399", "1" * 19), ("}", "},"),
                ("399", str((1 << 64) + 399)),
                ('"flag":0', '"extFields":{"b":"Z"},"flag":0'), ('"flag":0', '"extFields":{"l":"1"},"flag":0'),
                ('"extFields"', '"extFields":{"AccessKey":"w","l":"1"},"extFields"'), ('"b":', '"b":"Z","b":'),
            )
        )  # fmt: skip
        text = text.replace(old, new)
    header = text.encode()
    return struct.pack(">ii", 4 + len(header) + len(body), len(header)) + header + body


def mutated(rng: random.Random, data: bytes) -> bytes:
    """The data, or the data with a few bytes changed, moved, cut or added."""
    if not data or rng.random() < 0.4:
        return data
    made = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(len(made)) if made else 0
        kind = rng.randrange(6)
        if kind == 0 and made:
            made[at] = rng.choice((0, 1, 2, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        elif kind == 1 and made:
            made[at] ^= 1 << rng.randrange(8)
        elif kind == 2:
            del made[at : at + rng.choice((1, 4, 22))]
        elif kind == 3:
            made[at:at] = rng.randbytes(rng.choice((1, 4)))
        elif kind == 4:
            made[at : at + 4] = rng.choice(EXTREME).to_bytes(4, "big")
        else:
            del made[at:]
    return bytes(made)


def compare_batches(rng: random.Random, other: Any) -> tuple[Any, Any]:
    body = mutated(rng, batch_body(rng))
    at_most = len(SUFFIX) + 1 + rng.randrange(64)
    limits = (
        len(SUFFIX),
        rng.choice((3, 1000)),
        rng.choice((at_most, 100, 30_000)),
        rng.choice((2, 1000)),
        rng.choice((0, rng.randrange(8), 3, 4000)),
    )
    special = (*SPECIAL, "") if rng.random() < 0.5 else SPECIAL
    topic = rng.choice(("T", "orders", "ä", "x" * 127, "x" * 128, "日本"))
    numbers = (
        rng.choice((0, 7, 0x7FFFFFFF)), rng.choice((0, 1 << 40)), rng.choice((0, 1 << 33)),
        rng.choice((0, 2047, 2048, 2500, 4096, 1 << 30)), rng.choice((0, 2048)), rng.choice((0, 1, 4)),
        rng.choice((0, 1_795_240_234_041)), HOST, 1_795_240_234_099, HOST[::-1], rng.choice((0, 2, 1000)),
    )  # fmt: skip
    found = []
    for body_of in (python, other):
        checked = outcome(body_of.BatchRules(special, *limits).check, body)
        made = outcome(body_of.batch_records, body, SUFFIX, topic, 0xDAA320A7, *numbers)
        entries = made[1] if isinstance(made, tuple) else body
        found.append(
            (
                checked,
                made,
                outcome(body_of.entry_sizes, entries),
                outcome(body_of.message_ids, "0A00000100002A9F", entries),
            )
        )
    return found[0], found[1]


def compare_index(rng: random.Random, other: Any) -> tuple[Any, Any]:
    slots = rng.choice((1, 7, 100))
    times = (0, 1_000, 1_999, -5, 1 << 41, (1 << 62))
    items = b"".join(
        struct.pack(">iqq", rng.choice((0, 1, 7, 107, 0x7FFFFFFF, -3)), rng.randrange(1 << 40), rng.choice(times))
        for _ in range(rng.choice((0, 1, 2, 30)))
    )
    items = mutated(rng, items)
    numbers = [rng.choice((0, 0, 1, 5, 40, -1)) for _ in range(slots)]
    buffer = bytes(40) + struct.pack(f">{slots}i", *numbers)
    if rng.random() < 0.1:
        buffer = buffer[: rng.randrange(len(buffer))]
    count, begin = rng.choice((1, 6, 1_000_000)), rng.choice(times)
    asked = rng.choice((slots, slots, slots, 0))
    found = []
    for body_of in (python, other):
        made = outcome(body_of.index_entries, items, buffer, asked, count, begin)
        written = bytearray(buffer)
        changes = made[1] if isinstance(made, tuple) else items
        found.append((outcome(body_of.key_times, items), made, outcome(body_of.set_slots, written, changes), written))
    return found[0], found[1]


def compare_records(rng: random.Random, other: Any) -> tuple[Any, Any]:
    """Records of several batches, some of them of other kinds, as the log has them."""
    base = rng.choice((0, 1 << 20, 60_000))
    parts: list[bytes] = []
    numbers: dict[tuple[str, int], int] = {}
    at = base
    odd = rng.random() < 0.5
    for _ in range(rng.choice((1, 2, 4, 8))):
        topic, queue = rng.choice(("T", "orders", "ä", "GANTRY") if odd else ("T", "orders", "ä")), rng.randrange(2)
        number = numbers.get((topic, queue), rng.choice((0, 5)))
        flags = rng.choice((0, 0, 0, 4, 8, 12, 0x10)) if odd else 0
        body = batch_body(rng)
        stored_ms = rng.choice((1_000_000 + at, 1_000_000 + at, 990_001 + at, 0))
        place = (queue, number, at, 1 << 30, 0, flags, 5, HOST, stored_ms, HOST, 9)
        made = outcome(python.batch_records, body, SUFFIX, topic, 0xDAA320A7, *place)
        if isinstance(made, tuple):
            parts.append(made[0])
            numbers[topic, queue] = number + len(made[1]) // 20 + (odd and rng.random() < 0.2)
            at += len(made[0])
    data = b"".join(parts)
    if rng.random() < 0.5:
        data = mutated(rng, data)
    segment = rng.choice((65_536, 1 << 20, 1 << 30))
    first = rng.choice((0, 0, 0, 0, 0, 0, 0, 1, len(data)))
    words, most = rng.choice((0, 2, 1000)), rng.choice((None, 0, 3, 1000))
    rules = (segment, rng.random() < 0.8, ["GANTRY"], words, most, rng.choice((0, 1_000_000 + base, 1 << 41)))
    asked = (data, first, base - first if rng.random() < 0.05 else base, *rules)
    filler = struct.pack(">II", 20, 0xCBD43194) + bytes(12)
    found = []
    for body_of in (python, other):
        sizes = [outcome(body_of.size_of_whole, data, start) for start in (0, first, len(data) + 1)]
        sizes.append(outcome(body_of.size_of_whole, data + filler + data, len(data)))
        found.append((outcome(body_of.checked_records, *asked[:4], rules[2]), sizes))
    for body_of in (python, other):
        # The archive has no limit of keys.
        block = memoryview(bytearray(data)) if len(data) % 2 else data
        archived = outcome(body_of.archived_records, block, *asked[1:4], rules[2], words)
        if not isinstance(archived, tuple):
            found.append((outcome(body_of.plain_records, *asked), archived))
            continue
        rows, keys = b"".join(run[3] for run in archived[1]), archived[2]
        cut = len(data) % 3
        made = body_of.archived_columns(rows[cut:]), body_of.archived_keys(keys[cut:])
        found.append((outcome(body_of.plain_records, *asked), archived, made))
    return (*found[2], found[0]), (*found[3], found[1])


def compare_sends(rng: random.Random, other: Any) -> tuple[Any, Any]:
    """The sends of a read, with their places and their answers."""
    topics = rng.choice((("T",), ("T", "orders"), ("T", "x" * 127, "x" * 128, "ä", "日本")))
    batches = rng.choice((0.02, 0.02, 0.98))
    parts = [
        send_frame(rng, batch_fields(rng, topics), items(rng))
        if rng.random() < batches
        else send_frame(rng, send_fields(rng, topics), rng.randbytes(rng.choice((0, 1, 64))))
        for _ in range(rng.choice((1, 2, 5, 20)))
    ]
    data = b"".join(parts)
    if rng.random() < 0.4:
        data = mutated(rng, data)
    limits = (
        rng.choice((rng.randrange(30, 160), 30_000, 30_000, 1 << 20)), rng.choice((1, 1000, 1000)),
        rng.choice((2, 4096, 4096)), rng.choice((65_536, 65_536, rng.randrange(300, 600))),
        rng.choice((16_384, 16_384, rng.randrange(250, 550))),
        rng.choice((1 << 20, 1 << 20, rng.randrange(300, 1_000))), rng.choice((1_000, 1_000, 2, 3)),
        rng.choice((4_000, 4_000, 0, 3)),
    )  # fmt: skip
    most = rng.choice((0, 2, 128, 128))
    place = (
        rng.choice((0, 1 << 40, (1 << 63) - 3)), rng.choice((0, 2047, 2048, 2500, 4096, 1 << 30, 1 << 30, 1 << 30)),
        rng.choice((0, 2048)), 1_795_240_234_099, HOST[::-1],
    )  # fmt: skip
    first = rng.choice((0, 7, (1 << 63) - 2))
    code, cut = rng.choice((0, 10, 1)), rng.randrange(1 << 30) if rng.random() < 0.1 else None
    exact = (rng.randrange(1, 6), rng.choice((7, 8, 9))) if rng.random() < 0.2 else None
    found = []
    for body_of in (python, other):
        split = outcome(body_of.SendRules(*SEND_RULES, *limits).split, data, most, HOST)
        made: Any = None
        answers: Any = None
        if isinstance(split, tuple):
            *_, records, rows, hashes, _ = split
            if exact is not None:  # Room for some of the records and a filler, or a byte less or more.
                sizes = [int.from_bytes(rows[at : at + 4], "big") for at in range(0, len(rows), 19)]
                place = (place[0], sum(sizes[: exact[0]]) + exact[1], 0, *place[3:])
            if cut is not None:
                seed = random.Random(cut)
                records, rows, hashes = bytearray(mutated(seed, records)), mutated(seed, rows), mutated(seed, hashes)
            made = outcome(body_of.place_sends, records, rows, hashes, [first] * len(split[7]), *place)
            if isinstance(made, tuple):
                answers = outcome(body_of.send_answers, made[2], code, "0A00000100002A9F", "Region", 399)
        found.append((split, made, answers, cut is not None and isinstance(split, tuple) and bytes(records)))
    return found[0], found[1]


def signed(rng: random.Random, fields: dict[str, str], body: bytes, key: bytes) -> dict[str, str]:
    """The fields with a signature, in any order."""
    fields["AccessKey"] = "user"
    if rng.random() < 0.1:
        fields[rng.choice(("SecurityToken", "nsd", "A", "Z", "aa", "zz", "ä"))] = rng.choice(TEXTS)
    signature = sign(fields, body, key.decode())
    names = list(fields)
    rng.shuffle(names)
    fields = {name: fields[name] for name in names}
    if rng.random() < 0.97:
        wrong = rng.choice(("", "x", signature.lower(), signature + "=", signature[:-2] + "A="))
        fields["Signature"] = signature if rng.random() < 0.95 else wrong
    return fields


def compare_signed(rng: random.Random, other: Any) -> tuple[Any, Any]:
    """The signatures of the sends of a read."""
    key = rng.choice((b"secret", b"k" * 64, b"k" * 65))
    batches = rng.random() < 0.2
    data = b"".join(
        [
            send_frame(rng, batch_fields(rng), items(rng), key)
            if batches
            else send_frame(rng, send_fields(rng), rng.randbytes(rng.choice((0, 1, 64, 200))), key)
            for _ in range(rng.choice((1, 1, 2, 5)))
        ]
    )
    if rng.random() < 0.3:
        data = mutated(rng, data)
    keys = rng.choice(([key], [key], [key], [b"other", key], [key, b"other"], [b"other"], []))
    cut = rng.random() < 0.2
    found = []
    for body_of in (python, other):
        split = outcome(
            body_of.SendRules(*SEND_RULES, 30_000, 1000, 4096, 65_536, 16_384, 1 << 20, 1_000, 4_000).split,
            data,
            128,
            HOST,
        )
        parts = split[-1] if isinstance(split, tuple) else b""
        if cut:
            parts = mutated(random.Random(len(data)), parts)
        found.append((split, outcome(body_of.SignatureKeys(keys).signed, parts)))
    return found[0], found[1]


def compare_reads(rng: random.Random, other: Any) -> tuple[Any, Any]:
    """Records that entries name, whole or not, near each other or spread."""
    base, number = rng.choice((0, 1 << 20)), rng.choice((0, 7))
    parts, entries, at = [], b"", base
    topic = rng.choice(("T", "orders", "ä", "x" * 127, "x" * 128))
    for _ in range(rng.choice((1, 2, 4))):
        place = (1, number, at, 1 << 30, 0, rng.choice((0,) * 9 + (0x10, 4)), 5, HOST, 1_000_000, HOST, 9)
        body = batch_body(rng)
        made = outcome(python.batch_records, body, SUFFIX, topic, 0xDAA320A7 + 4 * (len(topic) > 127), *place)
        if isinstance(made, tuple):
            parts.append(made[0])
            entries += made[1]
            number += len(made[1]) // 20
            at += len(made[0])
        if rng.random() < 0.2:
            parts.append(bytes(50))
            at += 50
    block = b"".join(parts)
    if rng.random() < 0.3:
        block = mutated(rng, block)
    if rng.random() < 0.3:
        entries = mutated(rng, entries)
    if rng.random() < 0.1:
        whole = [entries[place : place + 20] for place in range(0, len(entries), 20)]
        rng.shuffle(whole)
        entries = b"".join(whole)
    if len(entries) >= 20 and rng.random() < 0.1:
        place = rng.randrange(len(entries) // 20) * 20 + 8
        entries = entries[:place] + rng.choice((0, 0x7FFFFFFE, 0x7FFFFFFF)).to_bytes(4, "big") + entries[place + 4 :]
    some = sum(python.entry_sizes(entries)[: rng.randrange(1, 6)]) + rng.choice((0, 0, -1))
    limits = (
        rng.choice((0, 200, 1 << 20, max(some, 0))), rng.choice((base, base, base + 100, -1)),
        rng.choice((at, at, at - 1, 1 << 62)),
    )  # fmt: skip
    first = rng.choice((number - len(entries) // 20, number - len(entries) // 20, 0))
    asked, queue = rng.choice((topic, topic, topic[:-1], "T" * 256)).encode(), rng.choice((1, 1, 1, 2))
    more = rng.choice((0, 0, 3))
    near = rng.choice((0, 49, 50, 1 << 14)), rng.choice((0, 200, max(some, 0), 1 << 18))
    found = []
    for body_of in (python, other):
        wanted = outcome(body_of.wanted_records, entries, *limits)
        count = wanted[0] if isinstance(wanted, tuple) else 1
        data = outcome(body_of.gather_records, block, base, entries, count)
        records = data if isinstance(data, bytes) else block
        found.append(
            (
                wanted,
                data,
                outcome(body_of.near_records, entries, count + more, *near),
                outcome(body_of.records_named, records, entries, count, asked, queue, first),
                outcome(body_of.records_whole, records, entries, count),
            )
        )
    return found[0], found[1]


def log_record(rng: random.Random, at: int) -> bytes:
    """A record of any form that the log has."""
    flags = rng.choice((0, 0, 0, 0x10, 0x20, 0x30))
    wide = rng.random() < 0.3
    topic = rng.choice(("T", "orders", "ä", "x" * 127, *(("x" * 300,) if wide else ()))).encode()
    if rng.random() < 0.05:
        topic = b"\xc3"
    body, props = rng.randbytes(rng.choice((0, 1, 40))), properties(rng)
    if rng.random() < 0.1:
        props += rng.choice(
            (
                b"\x02TAGS\x01\xff\xc3(",
                b"\x02\xe6\x97\x01a",
                b"\x02" + b"\x02".join(b"n%d\x01v" % n for n in (*range(20), 3)),
            )
        )
    hosts = [HOST + bytes(12 * bool(flags & bit)) for bit in (0x10, 0x20)]
    after = struct.pack(">iqi", 0, 0, len(body)) + body + len(topic).to_bytes(1 + wide, "big") + topic
    after += len(props).to_bytes(2, "big") + props
    magic, crc = 0xDAA320AB if wide else 0xDAA320A7, zlib.crc32(body) & 0x7FFFFFFF
    size = 56 + len(hosts[0]) + 8 + len(hosts[1]) - 8 + len(after)
    head = struct.pack(">iIIiiqqiq", size, magic, crc, rng.choice((0, 3, -1)), 0, rng.randrange(9), at, flags, 5)
    return head + hosts[0] + struct.pack(">q", 1_000_000 + at) + hosts[1] + after


def compare_rows(rng: random.Random, other: Any) -> tuple[Any, Any]:
    """Columns of a block of the log."""
    base = rng.choice((0, 1 << 20, 1 << 62))
    block = b""
    for _ in range(rng.choice((0, 1, 3, 9, 17))):
        block += log_record(rng, base + len(block))
    if rng.random() < 0.5:
        block = mutated(rng, block)
    stop, check = rng.choice((0, 1, len(block), 1 << 40)), rng.random() < 0.7
    names = [name.encode() for name in rng.sample(("KEYS", "TAGS", "UNIQ_KEY", "none", "ä"), rng.choice((0, 1, 3)))]
    cut = random.Random(stop) if rng.random() < 0.2 else None
    asked = rng.choice((base, base, base, None))
    found = []
    for body_of in (python, other):
        made = outcome(body_of.record_rows, rng.choice((bytes, bytearray))(block), asked, stop, check, names)
        rows = made[1] if isinstance(made, tuple) else b""
        if cut is not None:
            cut.seed(len(block))
            rows = mutated(cut, rows)
        slices = [outcome(body_of.row_slices, memoryview(block), rows, column) for column in (6, 8, 10, 11)]
        texts = [outcome(body_of.row_properties, memoryview(block), rows, name) for name in (b"KEYS", b"TAGS", b"n3")]
        found.append((made, slices, texts, outcome(body_of.row_maps, block, rows)))
    return found[0], found[1]


COMPARE = (
    compare_batches, compare_index, compare_records, compare_sends, compare_signed, compare_reads, compare_rows,
)  # fmt: skip


def difference(seed: int, other: Any) -> str:
    """Empty: both bodies did the same; else what each did."""
    rng = random.Random(seed)
    one, two = COMPARE[seed % len(COMPARE)](rng, other)
    return "" if one == two else f"seed {seed}:\n  Python: {one!r}\n  Rust:   {two!r}"


NOT_BUILT = "the compiled core is not built: python broker_image/gantry_core/build.py (needs cargo)"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    options = parser.parse_args()
    other = native()
    if other is None:
        print(f"error: {NOT_BUILT}", file=sys.stderr)
        return 1
    begun = time.monotonic()
    for seed in range(options.first, options.first + options.count):
        if said := difference(seed, other):
            print(said)
            return 1
    print(f"{options.count} inputs from seed {options.first} on: no difference, {time.monotonic() - begun:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
