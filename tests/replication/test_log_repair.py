"""A member whose disk has lost a part of the log gets it back from another one, as leader and as follower."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from gantry_broker.protocol.codes import GetStatus, SendStatus
from gantry_broker.protocol.message import decode_records
from gantry_broker.replication import log_repair
from gantry_broker.store.errors import BadRecords

from tests.replication.group import Group, Node
from tests.support.running import until

BODIES = [b"%03d" % n * 30 for n in range(50)]
BAD = 20
PATIENCE_S = 20.0


@pytest.fixture(params=[0, 1], ids=["of the master", "of a slave"])
async def damaged(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[tuple[Group, Node]]:
    """A whole group, and the member with a damaged record."""
    async with Group(tmp_path) as group:
        await _filled(group)
        node = group.nodes[request.param]
        _spoil(node)
        yield group, node


async def _filled(group: Group) -> None:
    await group.promote(0, (0, 1, 2))
    assert await group.nodes[0].put(*BODIES) is SendStatus.SEND_OK
    await until(
        lambda: len({n.store.state.confirmed for n in group.nodes}) == 1,
        "everybody knows what is confirmed",
        PATIENCE_S,
    )
    for node in group.nodes:
        node.store.state.verified_from = node.store.log.end  # As after a start: only what lies above was looked at.


def _place(node: Node) -> int:
    return next(r.phys_offset for r in node.store.reader.walk(0) if r.body == BODIES[BAD])


def _spoil(node: Node, at: int | None = None, piece: bytes = b"\xff\xff", part: int = 100) -> int:
    """Other bytes in the record, by default in its body, which begins at its byte 88; answers where the record is."""
    at = _place(node) if at is None else at
    with open(node.store.log.path(at), "r+b") as file:
        file.seek(at + part)
        file.write(piece)
    return at


def _shown(node: Node, offset: int = 0) -> tuple[list[bytes], int]:
    got = node.store.reader.get("T", 0, offset, 100, 1 << 20)
    return [r.body for r in decode_records(got.data)], got.damaged


async def test_a_read_hides_damage_and_starts_the_repair(damaged: tuple[Group, Node]) -> None:
    group, node = damaged
    assert _shown(node) == (BODIES[:BAD], -1)
    got = node.store.reader.get("T", 0, BAD, 1, 1 << 20)
    assert (got.status, got.damaged >= 0) == (GetStatus.OFFSET_FOUND_NULL, True)
    assert node.log_repair.damaged == 1
    await until(lambda: node.log_repair.repaired == 1 and node.log_repair.damaged == 0, "it is repaired", PATIENCE_S)
    assert _shown(node) == (BODIES, -1)
    assert len({n.store.log.read_raw(0, 1 << 20) for n in group.nodes}) == 1


async def test_the_scrub_finds_damage_that_no_reader_meets(
    damaged: tuple[Group, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    group, node = damaged
    monkeypatch.setattr(log_repair, "FIRST_S", 0.0)
    node.log_repair.start()
    await until(lambda: node.log_repair.repaired == 1, "the walk has found and repaired it", PATIENCE_S)
    assert _shown(node) == (BODIES, -1)
    assert len({n.store.log.read_raw(0, 1 << 20) for n in group.nodes}) == 1


@pytest.mark.parametrize("part", [100, 0], ids=["a body", "where a record ends"])
async def test_a_follower_gets_everything_though_its_leaders_disk_lost_a_part(tmp_path: Path, part: int) -> None:
    """It reports a body that it was given; where a record ends the leader itself must know, or it can give nothing."""
    async with Group(tmp_path, 3) as group:
        empty = group.nodes[2]
        await group.promote(0, (0, 1), (0, 1))
        assert await group.nodes[0].put(*BODIES) is SendStatus.SEND_OK
        await until(
            lambda: len({n.store.state.confirmed for n in group.nodes[:2]}) == 1,
            "both know what is confirmed",
            PATIENCE_S,
        )
        _spoil(group.nodes[0], part=part)
        assert empty.store.log.end == 0
        await group.send_assignments()
        await until(lambda: empty.store.log.end == group.nodes[0].store.log.end, "the third has everything", PATIENCE_S)
        assert group.nodes[0].log_repair.repaired == 1
        assert len({n.store.log.read_raw(0, 1 << 20) for n in group.nodes}) == 1


@pytest.mark.parametrize("unreadable", [False, True])
async def test_two_members_that_lost_different_records_have_them_from_each_other(
    tmp_path: Path, bad_sector: dict[str, Any], unreadable: bool
) -> None:
    """The requested bytes are just before those that the other member has lost without knowing it."""
    async with Group(tmp_path, 2) as group:
        await group.promote(0, (0, 1))
        for number in range(20):
            await group.nodes[0].put(b"%02d" % number * 2_500)
        one, other = group.nodes
        await until(lambda: one.store.state.confirmed == other.store.state.confirmed, "both know it", PATIENCE_S)
        places = [r.phys_offset for r in one.store.reader.walk(0) if r.topic == "T"]
        _spoil(one, places[3])
        if unreadable:
            bad_sector.update(path=str(tmp_path / other.store.log.path(0)), at=10 * 4096)
        else:
            _spoil(other, places[6])
        one.log_repair.suspect(places[3])
        await until(lambda: one.log_repair.repaired == other.log_repair.repaired == 1, "both are whole", PATIENCE_S)
        assert one.bodies() == other.bodies() == [b"%02d" % number * 2_500 for number in range(20)]


async def test_the_only_copy_stays_as_it_is_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is repaired as soon as another member has a valid copy."""
    async with Group(tmp_path) as group:
        await _filled(group)
        places = {_spoil(node) for node in group.nodes}
        assert len(places) == 1
        at = places.pop()
        master = group.nodes[0]
        _shown(master, BAD)
        await until(lambda: "no reader sees it" in caplog.text, "it says so", PATIENCE_S)
        assert "the record is damaged here, too" in caplog.text
        assert _shown(master, BAD) == ([], at)
        with pytest.raises(BadRecords):
            master.store.scrubber.verify(at, 1)
        _spoil(group.nodes[2], at, BODIES[BAD][12:14])
        await until(lambda: master.log_repair.repaired == 1, "the copy that is valid again has repaired it", PATIENCE_S)
        await asyncio.sleep(0)
        assert _shown(master, BAD)[0][0] == BODIES[BAD]
