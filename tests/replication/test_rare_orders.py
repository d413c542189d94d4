"""What happens once in a year: a copy that was interrupted, a disk that lies, descriptors that are short."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gantry_broker.contracts.leadership import Assignment
from gantry_broker.protocol.codes import SendStatus
from gantry_broker.protocol.message import decode_records
from gantry_broker.replication import fetching, log_repair, storelog
from gantry_broker.settings import BrokerSettings
from gantry_broker.store.errors import BadRecords
from gantry_broker.store.log import commit_log
from gantry_broker.store.types import Put

from tests.replication.group import HOST, Group, Node
from tests.support.present import present
from tests.support.running import until

SMALL = BrokerSettings(
    mappedFileSizeCommitLog=1 << 20, maxHashSlotNum=1000, maxIndexNum=4000, flushIntervalCommitLog=50
)
PATIENCE_S = 20.0


def _same(one: Node, other: Node) -> bool:
    return one.store.log.end == other.store.log.end and one.store.state.confirmed == other.store.state.confirmed


async def _one_is_away(group: Group) -> tuple[Node, Node]:
    """The first leads alone, after both have had one record in common."""
    one, other = group.nodes
    await group.promote(0, (0, 1))
    await one.put(b"common")
    await until(lambda: _same(one, other), "both have it", PATIENCE_S)
    await other.stop()
    group.leadership = group.leadership.with_set(group.ids(0))
    await group.send_assignments((0,))
    return one, other


async def _one_is_away_without_its_beginning(group: Group) -> tuple[Node, Node]:
    """Both have had 3 MB of two epochs in common; retention has removed the first of it from the one that is away."""
    one, other = group.nodes
    for _ in range(2):
        await group.promote(0, (0, 1))
        for _ in range(15):
            await one.put(b"x" * 100_000)
    await until(lambda: _same(one, other), "both have it", PATIENCE_S)
    other.store.retention.remove_before(1 << 20)
    await other.stop()
    group.leadership = group.leadership.with_set(group.ids(0))
    await group.send_assignments((0,))
    return one, other


async def _the_other_leads(group: Group) -> None:
    """The first is back afterwards, without an assignment yet."""
    old, new = group.nodes
    await old.stop()
    await new.start()
    group.leadership = group.leadership.promoted(new.service.me, group.ids(1))
    await group.send_assignments((1,))
    await new.put(b"the leader's")
    await old.start()


async def _one_has_nothing_in_common(group: Group) -> tuple[Node, Node]:
    """The second leads, and retention has removed the divergence offset from the first one's log."""
    old, new = await _one_is_away(group)
    for _ in range(25):
        await old.put(b"only here" * 10_000)
    old.store.retention.remove_before(1 << 20)
    await _the_other_leads(group)
    return old, new


class Steps:
    """The durable steps of a full copy; at the given one something happens."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, node: Node, step: int, happens: Callable[[], None]) -> None:
        self.left = step
        self._happens = happens
        self._resetting = False
        store = node.store
        steps: list[tuple[object, str]] = [
            (store.checkpointer, "lower"),
            (store.checkpointer, "save"),
            (store.epoch_cache, "set"),
            (store.log, "reset"),
            (store.queues, "clear"),
        ]
        for owner, name in steps:
            monkeypatch.setattr(owner, name, self._before(getattr(owner, name)))
        monkeypatch.setattr(store.truncator, "reset", self._during(store.truncator.reset))

    def _before(self, real: Any) -> Any:
        def step(*given: Any, **named: Any) -> Any:
            if self._resetting:
                self.left -= 1
                if self.left == 0:
                    self._happens()
            return real(*given, **named)

        return step

    def _during(self, real: Any) -> Any:
        def reset(*given: Any) -> None:
            self._resetting = True
            try:
                real(*given)
            finally:
                self._resetting = False

        return reset


@pytest.mark.parametrize("step", range(1, 7))
@pytest.mark.parametrize("crash", [True, False], ids=["crash", "error"])
@pytest.mark.parametrize("away_so", [_one_is_away, _one_is_away_without_its_beginning], ids=["whole", "shortened"])
async def test_an_interrupted_full_copy_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, crash: bool, away_so: Any
) -> None:
    async with Group(tmp_path, 2, settings=SMALL) as group:
        leader, away = await away_so(group)
        common = leader.store.log.end
        for _ in range(25):
            await leader.put(b"y" * 100_000)
        leader.store.retention.remove_before((common | (1 << 20) - 1) + 1)
        assert leader.store.log.start > common
        await away.start()
        image = tmp_path / "image"

        def happens() -> None:
            if not crash:
                raise OSError(errno.EMFILE, "Too many open files")
            shutil.copytree(away.root, image)

        steps = Steps(monkeypatch, away, step, happens)
        await group.send_assignments((1,))
        await until(lambda: _same(leader, away), "the member has everything", PATIENCE_S)
        assert steps.left <= 0
        monkeypatch.undo()
        if crash:
            await away.stop(clean=False)
            shutil.rmtree(away.root)
            shutil.copytree(image, away.root)
            await away.start()
            await group.send_assignments((1,))
            await until(lambda: _same(leader, away), "the member has everything after its crash", PATIENCE_S)


async def _slow_link(port: int, part: int) -> asyncio.Server:
    """What comes from there passes in parts of so many bytes, a hundred a second."""

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, slow: bool) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(part):
                writer.write(data)
                await writer.drain()
                await asyncio.sleep(0.01 if slow else 0)
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(pipe(reader, far, slow=False), pipe(far_reader, writer, slow=True))

    return await asyncio.start_server(serve, "127.0.0.1", 0)


async def test_a_slow_link_is_no_silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower that repeats its fetch before the answer arrives gets the same bytes again, and never stores them."""
    monkeypatch.setattr(fetching, "SILENT_S", 0.5)
    async with Group(tmp_path, 2, settings=SMALL) as group:
        leader, other = group.nodes
        await group.promote(0, (0,), (0,))
        for _ in range(2):
            await leader.put(b"x" * 900_000)
        async with await _slow_link(leader.server.port, 10_000) as link:
            address = f"127.0.0.1:{link.sockets[0].getsockname()[1]}"
            await other.service.assign(Assignment(group.leadership, address))
            await until(lambda: _same(leader, other), "it has everything", PATIENCE_S)
            assert other.service._fetching.state == "connected"
            await other.stop()


async def test_a_member_that_gives_up_its_whole_log_takes_a_full_copy(tmp_path: Path) -> None:
    """Its own retention has removed the offset where its log diverges from the leader's."""
    async with Group(tmp_path, 2, settings=SMALL) as group:
        old, new = await _one_has_nothing_in_common(group)
        assert old.store.log.start == 1 << 20
        await old.service.assign(Assignment(group.leadership, new.address, True))
        await until(lambda: _same(old, new), "it has the leader's log", PATIENCE_S)
        assert old.bodies() == [b"common", b"the leader's"]


@pytest.mark.parametrize("unclean", [True, False])
async def test_rule_03_a_change_of_unclean_reaches_a_follower_that_runs(tmp_path: Path, unclean: bool) -> None:
    async with Group(tmp_path, 2) as group:
        old, new = await _one_is_away(group)
        await old.put(b"only here")
        await old.stop()
        await new.start()
        group.leadership = group.leadership.promoted(new.service.me, group.ids(1))
        await group.send_assignments((1,))
        await new.put(b"the leader's")
        new.refuse_fetches = True
        await old.start()
        for allowed in (not unclean, unclean):
            assert (await old.service.assign(Assignment(group.leadership, new.address, allowed))).accepted
        new.refuse_fetches = False
        follower = present(old.service.core.follower)
        if unclean:
            await until(lambda: old.bodies() == [b"common", b"the leader's"], "it gave up its own", PATIENCE_S)
        else:
            await until(lambda: bool(follower.stopped), "it stops", PATIENCE_S)
            assert old.bodies() == [b"common", b"only here"]


async def test_a_follower_goes_on_indexing_without_its_leader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a restart there may be much to index, and the answers that say so are seldom."""
    async with Group(tmp_path, 2) as group:
        leader, other = group.nodes
        await group.promote(0, (0, 1))
        await leader.put(b"common")
        await until(lambda: _same(leader, other), "both have it", PATIENCE_S)
        await leader.stop()
        calls: list[int] = []
        monkeypatch.setattr(other.service.core, "confirm", calls.append)
        await until(lambda: len(calls) > 3, "it confirms", PATIENCE_S)


async def test_what_a_follower_cannot_index_is_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And its next fetches acknowledge, as before."""
    async with Group(tmp_path, 2) as group:
        leader, other = group.nodes
        await group.promote(0, (0, 1))
        await leader.put(b"common")
        await until(lambda: _same(leader, other), "both have it", PATIENCE_S)
        calls: list[int] = []

        def fails(offset: int, until: float) -> None:
            calls.append(offset)
            raise BadRecords(0, "a bad sector")

        monkeypatch.setattr(other.store.indexer, "confirm", fails)
        for _ in range(3):
            assert await leader.put(b"more") is SendStatus.SEND_OK
        await until(lambda: len(calls) > 3, "it tries again", PATIENCE_S)
        assert other.store.log.end == leader.store.log.end
        assert caplog.text.count("a bad sector") == 1


async def test_much_that_is_confirmed_at_once_is_filed_a_little_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All at once it would stop the loop for seconds, and a probe would kill the pod that has just been promoted."""
    monkeypatch.setattr(storelog, "CONFIRM_S", 0.0)
    async with Group(tmp_path, 1, replication="Async", min_in_sync=2) as group:
        node = group.nodes[0]
        await group.promote(0, (0,))
        for number in range(20):
            node.store.appender.put([Put("T", 0, 0, 0, 1, HOST, b"%d" % number, b"")], 1)
        node.service.appended(node.store.log.end)
        before = node.store.state.confirmed
        await node.stop()
        node.options["min_in_sync"] = 1
        await node.start()
        await group.promote(0, (0,))
        assert before < node.store.state.confirmed < node.store.log.end
        await until(lambda: node.store.state.confirmed == node.store.log.end, "the rest follows by itself", PATIENCE_S)
        assert await node.put(b"after") is SendStatus.SEND_OK


async def test_a_lack_of_descriptors_is_no_failed_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Group(tmp_path, 1, settings=SMALL) as group:
        node = group.nodes[0]
        await group.promote(0, (0,))
        await node.put(b"before")
        commit = present(node.service._commit)
        real, short = os.open, True
        refused: list[str] = []

        def opened(path: Any, *given: Any, **named: Any) -> int:
            if short and str(tmp_path) in str(path):
                refused.append(str(path))
                raise OSError(errno.EMFILE, "Too many open files", str(path))
            return real(path, *given, **named)

        monkeypatch.setattr(os, "open", opened)
        monkeypatch.setattr(commit, "_checkpointed_at", time.monotonic() - 61)  # The next flush brings a checkpoint.
        node.store.log._fds.close_all()
        with pytest.raises(Exception, match="Too many open files"):
            node.put(b"a" * 500)
        node.service._flush_soon()
        await asyncio.sleep(0.3)
        short = False
        assert refused
        assert node.store.state.failed is None
        assert await node.put(b"after") is SendStatus.SEND_OK
        await until(lambda: node.store.state.flushed == node.store.log.end, "it is flushed", PATIENCE_S)
        assert node.bodies() == [b"before", b"after"]


async def _leader_with(bad_sector: dict[str, Any], group: Group) -> tuple[Node, Node]:
    """Damage in the middle of its log; the second has a good copy, the third has no assignment yet."""
    leader, other, empty = group.nodes
    await group.promote(0, (0, 1), (0, 1))
    for number in range(100):
        await leader.put(b"%04d" % number * 1_000)
    await until(lambda: _same(leader, other), "another one has it", PATIENCE_S)
    bad_sector.update(path=str(leader.store.log.path(0)), at=40 * 4096)
    return leader, empty


async def test_unreadable_bytes_are_repaired_like_changed_ones(tmp_path: Path, bad_sector: dict[str, Any]) -> None:
    async with Group(tmp_path, 3) as group:
        leader, empty = await _leader_with(bad_sector, group)
        leader.log_repair.start()
        await group.send_assignments((2,))
        await until(lambda: empty.store.log.end == leader.store.log.end, "the third has everything", PATIENCE_S)
        assert not bad_sector
        assert leader.log_repair.repaired == 1


async def test_an_index_that_cannot_go_on_keeps_nothing_from_being_flushed(
    tmp_path: Path, bad_sector: dict[str, Any]
) -> None:
    async with Group(tmp_path, 1) as group:
        node = group.nodes[0]
        await group.promote(0, (0,))
        for number in range(20):
            await node.put(b"%04d" % number * 1_000)
        index = present(node.store.index)
        index.clear(0)
        index.behind = True  # As after a start that has to rebuild it.
        bad_sector.update(path=str(tmp_path / node.store.log.path(0)), at=4096)
        await node.put(b"later")
        await until(lambda: node.store.state.flushed == node.store.log.end, "it is flushed", PATIENCE_S)
        assert not node.reports
        bad_sector.clear()
        index.stalled = False
        await until(lambda: not index.behind, "the index is whole again", PATIENCE_S)


async def test_an_unconfirmed_record_where_an_epoch_has_no_room_to_begin_is_undone(tmp_path: Path) -> None:
    """The new master fills that segment up: its leader epochs name the next one as the divergence offset."""
    async with Group(tmp_path, 2, settings=SMALL) as group:
        old, new = group.nodes
        await group.promote(0, (0, 1))
        began = old.store.log.end
        await old.put(b"")
        empty, room = old.store.log.end - began, 120
        await old.put(b"x" * (SMALL.mappedFileSizeCommitLog - old.store.log.end - empty - room))
        assert old.store.log.room(old.store.log.end) == room >= empty + 8
        await until(lambda: _same(old, new), "both have it", PATIENCE_S)
        await new.stop()
        for number in range(2):
            old.put(b"%d" % number)
        await _the_other_leads(group)
        await group.send_assignments((0,))
        await until(lambda: _same(old, new), "it has the leader's log", PATIENCE_S)
        assert old.store.log.read(0, old.store.log.end) == new.store.log.read(0, new.store.log.end)
        assert _shown(old) == _shown(new)


class Shorts:
    """The steps of a truncation; the given one finds no free descriptor."""

    STEPS = ("erase", "sync", "set_epochs", "queues", "index")

    def __init__(self, monkeypatch: pytest.MonkeyPatch, node: Node, step: str) -> None:
        self.happened = 0
        store = node.store
        assert store.index is not None
        where: dict[str, tuple[object, str]] = {
            "erase": (store.log, "_erase"),
            "sync": (store.log, "sync"),
            "set_epochs": (store.epoch_cache, "set_lazily"),
            "queues": (store.queues, "truncate"),
            "index": (store.index, "truncate"),
        }
        owner, name = where[step]
        real = getattr(owner, name)

        def short(*given: Any, **named: Any) -> Any:
            if not self.happened:
                self.happened += 1
                raise OSError(errno.EMFILE, "Too many open files")
            return real(*given, **named)

        monkeypatch.setattr(owner, name, short)


def _shown(node: Node) -> list[bytes]:
    got = node.store.reader.get("T", 0, 0, 100, 1 << 22)
    return [r.body for r in decode_records(got.data)]


async def test_a_cut_waits_until_it_is_prepared(tmp_path: Path) -> None:
    asked: list[int] = []

    def prepared(to: int) -> bool:
        asked.append(to)
        return len(asked) > 2

    async with Group(tmp_path, 2) as group:
        old, new = await _one_is_away(group)
        group.leadership = group.leadership.promoted(old.service.me, group.ids(0))
        await group.send_assignments((0,))
        common = old.store.log.end
        old.put(b"only here")
        await _the_other_leads(group)
        old.service.before_truncation = prepared
        await old.service.assign(Assignment(group.leadership, new.address, True))
        await until(lambda: _same(old, new), "it has the leader's log", PATIENCE_S)
        assert asked == [asked[0]] * 3
        assert asked[0] <= common
        assert _shown(old) == _shown(new) == new.bodies()


@pytest.mark.parametrize("unclean", [True, False], ids=["of what was confirmed", "of a tail"])
@pytest.mark.parametrize("step", Shorts.STEPS)
async def test_a_cut_that_stops_half_way_is_finished_by_a_start_at_the_latest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, unclean: bool
) -> None:
    """A half-finished truncation must stop the member: readers would see records that were undone."""
    async with Group(tmp_path, 2) as group:
        old, new = await _one_is_away(group)
        group.leadership = group.leadership.promoted(old.service.me, group.ids(0) if unclean else group.ids(0, 1))
        await group.send_assignments((0,))
        for number in range(3):
            old.put(b"only here %d" % number)
        if unclean:
            await until(lambda: old.store.state.confirmed == old.store.log.end, "it is confirmed", PATIENCE_S)
        else:
            await asyncio.sleep(0.1)
            assert old.store.state.confirmed < old.store.log.end
        await old.stop()
        await new.start()
        group.leadership = group.leadership.promoted(new.service.me, group.ids(1))
        await group.send_assignments((1,))
        for number in range(5):
            await new.put(b"the leader's, and longer: %d" % number)
        await old.start()
        shorts = Shorts(monkeypatch, old, step)
        await old.service.assign(Assignment(group.leadership, new.address, unclean))
        await until(lambda: _same(old, new) or old.store.state.failed is not None, "it goes on or ends", PATIENCE_S)
        if old.store.state.failed is not None:
            await old.stop(clean=False)
            await old.start()
            group.leadership = group.leadership.with_set(group.ids(1))
            await group.send_assignments((1,))
            await old.service.assign(Assignment(group.leadership, new.address, unclean))
            await until(lambda: _same(old, new), "it has the leader's log", PATIENCE_S)
        assert shorts.happened or (not unclean and step in ("queues", "index"))
        assert _shown(old) == _shown(new) == new.bodies()


async def test_a_reset_to_the_beginning_that_stops_half_way_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Group(tmp_path, 2, settings=SMALL) as group:
        old, new = await _one_has_nothing_in_common(group)
        real, short = old.store.log._fds.get, True

        def get(path: str, *, create_size: int | None = None) -> int:
            nonlocal short
            if short and create_size is not None:
                short = False
                raise OSError(errno.EMFILE, "Too many open files")
            return real(path, create_size=create_size)

        monkeypatch.setattr(old.store.log._fds, "get", get)
        await old.service.assign(Assignment(group.leadership, new.address, True))
        await until(lambda: _same(old, new), "it has the leader's log", PATIENCE_S)
        assert not short
        assert _shown(old) == [b"common", b"the leader's"]


@pytest.mark.parametrize("found_by", ["a follower", "a reader", "a reader that chooses", "the index"])
async def test_a_sector_that_fails_after_the_scan_is_repaired_on_request(
    tmp_path: Path, bad_sector: dict[str, Any], found_by: str
) -> None:
    async with Group(tmp_path, 3) as group:
        leader, empty = await _leader_with(bad_sector, group)
        if found_by == "a follower":
            await group.send_assignments((2,))
            await until(lambda: empty.store.log.end == leader.store.log.end, "the third has everything", PATIENCE_S)
        elif found_by == "the index":
            index = present(leader.store.index)
            index.clear(0)
            index.behind = True  # As after a start that has to rebuild it.
            await until(lambda: not index.behind, "the index is whole again", PATIENCE_S)
        else:
            offset, chosen = 0, (lambda record: True) if found_by == "a reader that chooses" else None
            while offset < 100:
                got = leader.store.reader.get("T", 0, offset, 32, 1 << 20, None, chosen)
                if got.damaged >= 0:
                    await until(lambda: not bad_sector, "it is repaired", PATIENCE_S)
                offset = got.next_offset
        assert not bad_sector
        assert leader.log_repair.repaired == 1


async def test_a_read_that_fails_once_does_not_end_the_walk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_repair, "FIRST_S", 0.0)
    monkeypatch.setattr(log_repair, "AGAIN_S", 0.01)
    async with Group(tmp_path, 1) as group:
        node = group.nodes[0]
        await group.promote(0, (0,))
        await node.put(b"a" * 1_000)
        real, failed = commit_log.read_all, 0

        def read_all(fd: int, count: int, at: int) -> bytes:
            nonlocal failed
            failed += 1
            if failed == 1:
                raise OSError(errno.EIO, "Input/output error")
            return real(fd, count, at)

        monkeypatch.setattr(commit_log, "read_all", read_all)
        node.log_repair.start()
        await until(lambda: failed > 20, "it walks on", PATIENCE_S)


def _spoil_head(node: Node, at: int) -> None:
    with open(node.store.log.path(at), "r+b") as file:
        file.seek(at % node.store.log.segment_size)
        file.write(b"\xff" * 8)


async def test_a_follower_without_room_does_not_fetch_without_pause(tmp_path: Path) -> None:
    """Each question is a connection, and a line in the leader's log."""
    async with Group(tmp_path, 2, settings=SMALL) as group:
        leader, away = await _one_is_away(group)
        for number in range(30):
            await leader.put(b"%04d" % number * 25_000)
        middle = [r.phys_offset for r in leader.store.reader.walk(0) if r.topic == "T"][15]
        _spoil_head(leader, middle)
        await away.start()
        await group.send_assignments((1,))
        await until(lambda: away.store.log.end == middle, "it has what comes before", PATIENCE_S)
        asked, real = 0, leader.service.on_fetch

        def on_fetch(*given: Any) -> None:
            nonlocal asked
            asked += 1
            real(*given)

        leader.service.on_fetch = on_fetch  # type: ignore[method-assign]
        begun = time.monotonic()
        await asyncio.sleep(1.0)
        await until(lambda: asked > 0, "it asks", PATIENCE_S)
        assert asked < 20 * (time.monotonic() - begun)
