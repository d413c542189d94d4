"""Buffered writes, and which of them are stored when this member is master again."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from gantry_broker.broker import forward
from gantry_broker.protocol.codes import RequestCode, ResponseCode
from gantry_broker.protocol.frame import Frame, FrameDecoder, encode_frame
from gantry_broker.remoting.budget import DEFAULT_BUDGET

if TYPE_CHECKING:
    from tests.broker.conftest import Bench


def paused() -> tuple[forward.Forwarder, Any, Any, list[bytes]]:
    """A forwarder while writes are paused, its role and replication, and the bodies that it has stored."""
    replication: Any = SimpleNamespace(writes_paused=True, handed_to=None)
    role: Any = SimpleNamespace(may_append=False)
    client: Any = None
    stored: list[bytes] = []

    def store(conn: Any, frames: Any) -> None:
        stored.extend(frame.body for frame in frames)

    return forward.Forwarder(role, replication, client, store, DEFAULT_BUDGET.buffered_bytes), role, replication, stored


async def test_writes_of_closed_or_late_connections_are_not_stored(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have sent again, or got an error: it would be there twice."""
    made, role, replication, stored = paused()
    patient, gone, late = (type(bench.wire)(port) for port in (1, 2, 3))

    def pause_writes(conn: Any, body: bytes, *, oneway: bool = False) -> None:
        made.take(conn, [Frame(RequestCode.SEND_MESSAGE, flag=2 if oneway else 0, body=body)])

    monkeypatch.setattr(forward, "FORWARD_S", 0.05)
    pause_writes(late, b"late")
    await asyncio.sleep(0.1)
    monkeypatch.setattr(forward, "FORWARD_S", 60.0)
    pause_writes(patient, b"patient")
    pause_writes(gone, b"gone")
    pause_writes(gone, b"answered and gone", oneway=True)
    gone.close()
    replication.writes_paused, role.may_append = False, True
    made.role_changed()
    assert stored == [b"patient", b"answered and gone"]
    assert [f.code for f in late.frames] == [ResponseCode.SERVICE_NOT_AVAILABLE]
    assert not gone.frames


async def test_buffered_writes_are_answered_at_their_time_limit(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward, "FORWARD_S", 0.05)
    monkeypatch.setattr(forward, "LATE_S", 0.02)
    made, role, replication, stored = paused()
    made.take(bench.wire, [Frame(RequestCode.SEND_MESSAGE, body=b"a"), Frame(RequestCode.SEND_MESSAGE, body=b"b")])  # type: ignore[arg-type]
    made.take(bench.wire, [Frame(RequestCode.SEND_MESSAGE, flag=2, body=b"nobody waits")])  # type: ignore[arg-type]
    async with asyncio.timeout(5):
        await bench.wire.arrived.wait()
    assert [f.code for f in bench.wire.frames] == [ResponseCode.SERVICE_NOT_AVAILABLE] * 2
    replication.writes_paused, role.may_append = False, True
    made.role_changed()
    assert stored == [b"nobody waits"]
    await made.close()


async def test_writes_that_return_from_forwarding_are_answered_in_time_too(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write is under way during the check for expired ones, and this member pauses writes again when it returns."""
    monkeypatch.setattr(forward, "FORWARD_S", 0.2)
    monkeypatch.setattr(forward, "LATE_S", 0.02)
    replication: Any = SimpleNamespace(writes_paused=False, handed_to="127.0.0.1:1", leader_address=None)
    refused = asyncio.Event()

    async def request(target: str, frame: Frame, timeout_s: float) -> Frame:
        await refused.wait()
        return Frame.response_to(frame, ResponseCode.SERVICE_NOT_AVAILABLE, "not yet")

    client: Any = SimpleNamespace(request=request)
    role: Any = SimpleNamespace(may_append=False)
    made = forward.Forwarder(role, replication, client, lambda conn, frames: None, DEFAULT_BUDGET.buffered_bytes)
    made.take(bench.wire, [Frame(RequestCode.SEND_MESSAGE, body=b"a")])  # type: ignore[arg-type]
    await asyncio.sleep(0.1)
    replication.writes_paused = True
    refused.set()
    async with asyncio.timeout(5):
        await bench.wire.arrived.wait()
    assert [f.code for f in bench.wire.frames] == [ResponseCode.SERVICE_NOT_AVAILABLE]
    await made.close()


@pytest.mark.parametrize(
    ("bodies", "properties"),
    [([4_000_000, 16_000_000, 10], 0), ([10] * 600, 2_500)],
    ids=["of large messages", "of large properties"],
)
async def test_a_bundle_is_never_larger_than_a_frame_may_be(bench: Bench, bodies: list[int], properties: int) -> None:
    """The new master would refuse it whole, however often it is tried."""
    replication: Any = SimpleNamespace(writes_paused=True, handed_to="127.0.0.1:1", leader_address=None)
    given: list[Frame] = []

    async def request(target: str, frame: Frame, timeout_s: float) -> Frame:
        bundle = FrameDecoder().feed(encode_frame(frame))[0]
        given.extend(FrameDecoder().feed(bundle.body))
        return Frame.response_to(frame, ResponseCode.SUCCESS)

    client: Any = SimpleNamespace(request=request)
    role: Any = SimpleNamespace(may_append=False)
    made = forward.Forwarder(role, replication, client, lambda conn, frames: None, DEFAULT_BUDGET.buffered_bytes)
    ext = {"i": "key\x01value\x02" * properties}
    made.take(bench.wire, [Frame(RequestCode.SEND_MESSAGE, flag=2, ext=ext, body=bytes(size)) for size in bodies])  # type: ignore[arg-type]
    replication.writes_paused = False
    made.role_changed()
    await made.drained(60)
    assert [len(frame.body) for frame in given] == bodies
    await made.close()
