"""Header compression: the examples of RFC 7541, limits, and bytes that are no header block."""

from __future__ import annotations

import os
import random

import pytest
from gantry_broker.proxy.http2 import hpack
from gantry_broker.proxy.http2.hpack import Decoder, HpackError, TooLarge

FIRST = [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "www.example.com")]


def test_the_examples_of_the_rfc_in_one_connection() -> None:
    decoder = Decoder()
    assert decoder.decode(bytes.fromhex("828684418cf1e3c2e5f23a6ba0ab90f4ff")) == FIRST
    second = [*FIRST, ("cache-control", "no-cache")]
    assert decoder.decode(bytes.fromhex("828684be5886a8eb10649cbf")) == second
    third = [
        (":method", "GET"),
        (":scheme", "https"),
        (":path", "/index.html"),
        (":authority", "www.example.com"),
        ("custom-key", "custom-value"),
    ]
    assert decoder.decode(bytes.fromhex("828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf")) == third


def test_plain_text_and_an_entry_that_is_never_indexed() -> None:
    decoder = Decoder()
    assert decoder.decode(bytes.fromhex("100870617373776f726406736563726574")) == [("password", "secret")]
    with pytest.raises(HpackError):
        decoder.decode(b"\xbe")  # nothing was added to the table


@pytest.mark.parametrize(
    "block",
    [
        b"\x80",  # entry 0
        b"\xff\xff\xff\xff\xff\xff\x01",  # a number without end
        b"\x40",  # cut off
        b"\x40\x81\xff\x00",  # padding that is none
        b"\x82\x3f\xe1\x1f",  # a change of size in the middle
        b"\x3f\xe2\x1f",  # a table larger than allowed
        b"\x00\x05ab",
    ],
)
def test_what_is_no_block_is_refused(block: bytes) -> None:
    with pytest.raises((HpackError, IndexError)):
        Decoder().decode(block)


def test_a_bomb_of_references_is_refused_before_it_is_built() -> None:
    decoder = Decoder()
    assert len(decoder.decode(b"\x40\x01a" + b"\x7f\xa1\x1e" + b"x" * 4_000)) == 1
    with pytest.raises(TooLarge):
        decoder.decode(b"\xbe" * 4_000)  # 4 KB that stand for 16 MB


def test_random_bytes_end_in_a_block_or_a_refusal() -> None:
    chance = random.Random(7)
    for _ in range(8 * int(os.environ.get("HTTP2_HISTORIES", "400"))):
        decoder = Decoder()
        for _ in range(3):
            block = chance.randbytes(chance.randrange(80))
            try:
                fields = decoder.decode(block)
            except (HpackError, IndexError):
                break
            assert len(fields) <= hpack.MAX_FIELDS


def test_only_short_texts_of_peers_are_remembered() -> None:
    eight = int("00011" * 8, 2).to_bytes(5, "big")  # Eight times the letter a.
    assert hpack.huffman_decode(eight * 50) == "a" * 400
    before = hpack._remembered.cache_info().currsize
    for count in range(100, 150):
        assert hpack.huffman_decode(eight * count) == "a" * 8 * count
    assert hpack._remembered.cache_info().currsize == before


class Forgetful(Decoder):
    """Decodes each block from its beginning."""

    def decode(self, block: bytes) -> list[hpack.Field]:
        self._beginnings.clear()
        self._recent.clear()
        return super().decode(block)


def test_a_block_that_begins_as_the_one_before_is_decoded_as_any_other() -> None:
    chance = random.Random(11)
    parts = [b"\x82", b"\x86", b"\x84", b"\xbe", b"\xbf", b"\x20", b"\x3f\x01", hpack.literal("a", "1" * 300)]
    parts += [hpack.literal("x-id", str(number)) for number in range(4)]
    parts += [b"\x40" + hpack.literal("y", str(number))[1:] for number in range(3)]
    for _ in range(400):
        decoder, plain = Decoder(), Forgetful()
        block: list[bytes] = []
        for _ in range(12):
            kept = chance.randrange(len(block) + 1)
            usual = parts if chance.random() < 0.3 else [*parts[:3], *parts[7:12]]
            block = block[:kept] + chance.choices(usual, k=chance.randrange(6))
            outcomes: list[object] = []
            for one in (decoder, plain):
                try:
                    outcomes.append(one.decode(b"".join(block)))
                except (HpackError, IndexError) as error:
                    outcomes.append(repr(error))
            assert outcomes[0] == outcomes[1]
            if isinstance(outcomes[0], str):
                break


def test_requests_that_alternate_are_each_known_by_their_beginning() -> None:
    """A client's heartbeat between its sends, and a date that changes, cost no more than the fields that change."""
    decoder = Decoder()

    def request(path: str, date: int, number: int) -> bytes:
        fields = [(":path", path), ("te", "trailers"), ("content-type", "application/grpc"), ("x-mq-client-id", "c")]
        fields += [("x-mq-language", "JAVA"), ("x-mq-date-time", str(date)), ("x-mq-request-id", str(number))]
        return b"\x83\x86" + b"".join(hpack.literal(name, value) for name, value in fields)

    known: list[int] = []
    for number in range(24):
        for path in ("/Send", "/Heartbeat", "/Ack"):
            fields = decoder.decode(request(path, number // 2, number))
            assert fields[-2:] == [("x-mq-date-time", str(number // 2)), ("x-mq-request-id", str(number))]
            assert (":path", path) in fields
            begun = decoder.begun
            known.append(0 if begun is None else len(begun.fields))
    assert min(known[-30:]) == 7, "all fields before the date"
    assert len(decoder._beginnings) == 3


def test_a_change_of_the_table_forgets_beginnings() -> None:
    decoder = Decoder()
    entry = b"\x40" + hpack.literal("a", "1")[1:]
    for number in range(3):
        decoder.decode(b"\xbe"[: min(number, 1)] + hpack.literal("b", "2") if number else entry)
    assert decoder.decode(b"\xbe" + hpack.literal("b", "2")) == [("a", "1"), ("b", "2")]
    assert decoder.begun is not None
    decoder.decode(b"\x40" + hpack.literal("a", "3")[1:])
    assert decoder.decode(b"\xbe" + hpack.literal("b", "2")) == [("a", "3"), ("b", "2")]


def test_literals_of_answers_can_be_decoded() -> None:
    block = hpack.status(200) + hpack.status(415) + hpack.literal("grpc-message", "x" * 500)
    assert Decoder().decode(block) == [(":status", "200"), (":status", "415"), ("grpc-message", "x" * 500)]
