"""What a peer brings in one read is handled in turns, in its order; many unsigned requests end the connection."""

from __future__ import annotations

import asyncio
import time

from gantry_broker.access.decide import ENABLED
from gantry_broker.access.gate import Gate
from gantry_broker.access.guesses import UNSIGNED_A_SECOND
from gantry_broker.inbox import FULL, Inbox
from gantry_broker.protocol.frame import Frame, FrameDecoder, encode_frame
from gantry_broker.remoting.connection import BURST, Connection, Shared
from gantry_broker.timeslice import GRANT_S, SLICE_S, TimeSlices

from tests.support.present import present
from tests.support.remoting import Socket


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Owner:
    """Each piece costs half a turn."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.got: list[bytes] = []
        self.paused = False
        self.ended = 0

    def handle(self, data: bytes) -> bool:
        self.clock.now += GRANT_S / 2
        self.got.append(data)
        return False

    def pause_input(self, wait: bool) -> None:
        self.paused = wait

    def input_ended(self) -> None:
        self.ended += 1

    def abort(self) -> None:
        raise AssertionError("aborted")


async def test_peers_take_turns_and_no_pass_takes_longer_than_a_slice() -> None:
    clock = Clock()
    slices = TimeSlices(clock)
    owners = [Owner(clock) for _ in range(5)]
    boxes = [Inbox(slices, owner, piece=1_000) for owner in owners]
    data = bytes(range(256)) * 400
    for box in boxes:
        box.received(data)
    assert clock.now <= SLICE_S + GRANT_S
    assert all(owner.paused for owner in owners if box.size >= FULL)
    most = 0.0
    while any(boxes):
        before = clock.now
        await asyncio.sleep(0)
        most = max(most, clock.now - before)
        counts = [len(owner.got) for owner in owners]
        assert max(counts) - min(counts) <= 12, "no peer gets far ahead of the others"
    assert most <= SLICE_S + 2 * GRANT_S
    assert all(b"".join(owner.got) == data for owner in owners)
    assert not any(owner.paused for owner in owners)
    assert [owner.ended for owner in owners] == [1] * 5


async def test_a_held_inbox_keeps_its_order_and_goes_on_later() -> None:
    clock = Clock()
    owner = Owner(clock)
    box = Inbox(TimeSlices(clock), owner)
    box.hold(True)
    for number in range(3):
        box.received(b"%d" % number)
    await asyncio.sleep(0)
    assert owner.got == []
    box.hold(False)
    for _ in range(5):
        await asyncio.sleep(0)
    assert owner.got == [b"0", b"1", b"2"]
    box.clear()
    assert not box


def test_a_decoder_returns_some_frames_and_goes_on_with_the_rest() -> None:
    frames = [Frame(10, number, body=b"x" * (number % 7)) for number in range(500)]
    data = b"".join(encode_frame(frame) for frame in frames)
    decoder, got = FrameDecoder(), list[Frame]()
    for at in range(0, len(data), 10_000):
        got += decoder.feed(data[at : at + 10_000], 16)
        while decoder.more:
            more = decoder.feed(b"", 16)
            assert len(more) <= 16
            got += more
    assert got == frames
    assert not decoder.unfinished


class Handler:
    def __init__(self) -> None:
        self.reads: list[list[int]] = []

    def on_frames(self, conn: Connection, frames: list[Frame]) -> None:
        self.reads.append([frame.opaque for frame in frames])

    def on_open(self, conn: Connection) -> None: ...
    def on_close(self, conn: Connection) -> None: ...


async def test_a_handler_gets_few_frames_at_once_and_all_in_order_also_at_the_end() -> None:
    handler, socket, shared = Handler(), Socket(), Shared()
    conn = Connection(handler, accepted=True, shared=shared)
    conn.connection_made(socket)
    data = b"".join(encode_frame(Frame(10, number)) for number in range(20_000))
    conn.data_received(data[: 1 << 20])
    conn.data_received(data[1 << 20 :])
    if conn._inbox:
        assert shared.held > 0
        assert conn.eof_received(), "what it sent before it ended is handled"
    while conn._inbox:  # noqa: ASYNC110 (the passes of the loop are the matter)
        await asyncio.sleep(0)
    assert [number for read in handler.reads for number in read] == list(range(20_000))
    assert max(len(read) for read in handler.reads) <= BURST
    assert shared.held == 0
    conn.connection_lost(None)


def test_many_unsigned_requests_end_their_connection() -> None:
    from gantry_broker.access.decide import Policy
    from gantry_broker.access.gate import Caller
    from gantry_broker.access.table import AccessTable

    gate = Gate("demo", ENABLED, None)  # type: ignore[arg-type]
    gate.set_policy(Policy.of(AccessTable.model_validate({"version": 1, "mode": ENABLED}).model_dump()))
    now = time.monotonic()
    found = [gate.check(Caller("192.0.2.1"), Frame(10, 1), now, 0) for _ in range(UNSIGNED_A_SECOND + 1)]
    assert [one is not None and one.ends for one in found] == [False] * UNSIGNED_A_SECOND + [True]
    assert not present(gate.check(Caller("192.0.2.2"), Frame(10, 1), now, 0)).ends
