"""The changes of members that a log holds are known without reading the log."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from gantry_broker.contracts.leadership import MemberId
from gantry_broker.protocol.message import pack_host
from gantry_broker.replication import raftlog
from gantry_broker.replication.identity import StateError
from gantry_broker.replication.members import Voter
from gantry_broker.replication.raftlog import RaftStoreLog
from gantry_broker.replication.storelog import StoreLogHooks
from gantry_broker.settings import BrokerSettings
from gantry_broker.store.errors import StoreFull
from gantry_broker.store.store import MessageStore
from gantry_broker.store.types import Put, StoreConfig

HOST = pack_host("127.0.0.1", 1)
SETTINGS = BrokerSettings(mappedFileSizeCommitLog=1 << 20, maxHashSlotNum=1000, maxIndexNum=4000)
HOOKS = StoreLogHooks(lambda epoch: b"", lambda confirmed: None, lambda to: None, lambda: 1)
MEMBERS = [tuple(Voter(MemberId(n, "x"), f"127.0.0.1:{n + 1}") for n in range(count)) for count in (3, 4, 5)]


def opened(path: Path) -> tuple[MessageStore, RaftStoreLog]:
    store = MessageStore.open(StoreConfig(path / "store", SETTINGS))
    return store, RaftStoreLog(store, path / "members.json", HOOKS)


def send(store: MessageStore) -> None:
    store.appender.put([Put("Orders", 0, 0, 0, 1, HOST, b"x" * 1000, b"") for _ in range(500)], 1)


def test_a_change_of_members_walks_through_no_more_of_the_log_than_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, log = opened(tmp_path)
    walked: list[int] = []
    walk = store.reader.walk
    monkeypatch.setattr(store.reader, "walk", lambda start, stop: (walked.append(stop - start), walk(start, stop))[1])
    for members in MEMBERS:
        send(store)
        log.append_members(members, 1)
        send(store)
    assert [c.members for c in log.member_changes] == MEMBERS
    assert len(walked) == len(MEMBERS)
    assert max(walked) < 2000
    known = log.member_changes
    store.close(clean=False)

    store, answer_fetch = opened(tmp_path)
    assert answer_fetch.member_changes == known
    answer_fetch.truncate(known[1].at)
    assert answer_fetch.member_changes == known[:1]
    store.close()


def test_a_change_that_was_appended_but_not_listed_is_found_at_the_next_start(tmp_path: Path) -> None:
    store, log = opened(tmp_path)
    for members in MEMBERS[:2]:
        send(store)
        log.append_members(members, 1)
    store.flush()
    store.close(clean=False)
    file = tmp_path / "members.json"
    file.write_bytes(orjson.dumps(orjson.loads(file.read_bytes())[:1]))  # As if it had ended before it wrote the list.

    store, answer_fetch = opened(tmp_path)
    assert [c.members for c in answer_fetch.member_changes] == MEMBERS[:2]
    send(store)
    answer_fetch.append_members(MEMBERS[2], 1)
    assert [c.members for c in answer_fetch.member_changes] == MEMBERS
    store.close()


@pytest.mark.parametrize("text", ["{", "{}", '[{"at": 1}]', '[{"at": "x", "end": 1, "members": []}]', "[[]]", "3"])
def test_a_list_that_cannot_be_read_is_named_with_what_to_do(tmp_path: Path, text: str) -> None:
    (tmp_path / "members.json").write_text(text)
    with pytest.raises(StateError, match=r"members\.json: .*; restore the file, or empty the member's disk"):
        opened(tmp_path)


class PowerOff(Exception):
    """The process ends here."""


def raising(error: BaseException) -> Callable[..., Any]:
    def fail(*args: object, **options: object) -> None:
        raise error

    return fail


def members_of(log: RaftStoreLog) -> list[int]:
    return [len(c.members) for c in log.member_changes]


def with_changes(path: Path, *, confirmed: int = 1) -> tuple[MessageStore, RaftStoreLog]:
    """A log with two changes, to three members and to four, of which so many are confirmed."""
    store, log = opened(path)
    log.begin_epoch(1, 1)
    for members in MEMBERS[:2]:
        log.append_members(members, 1)
    store.indexer.confirm(log.member_changes[confirmed - 1].end)
    return store, log


def crashed(path: Path, store: MessageStore) -> tuple[MessageStore, RaftStoreLog]:
    store.close(clean=False)
    return opened(path)


def others_take_the_place(path: Path, store: MessageStore) -> tuple[MessageStore, RaftStoreLog]:
    """Another leader's records come where the change was, and are confirmed."""
    send(store)
    store.indexer.confirm(store.log.end)
    store.flush()
    store.close()
    return opened(path)


@pytest.mark.parametrize("cut", ["by the power failure", "before the list was written"])
def test_a_change_that_a_power_failure_took_does_not_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: str
) -> None:
    store, log = with_changes(tmp_path)
    at = log.member_changes[1].at
    if cut == "by the power failure":
        store.truncator.truncate(at)  # The unflushed end is lost; the list is not.
    else:
        with monkeypatch.context() as patched:
            patched.setattr(raftlog, "atomic_write", raising(PowerOff()))
            with pytest.raises(PowerOff):
                log.truncate(at)

    store, log = crashed(tmp_path, store)
    assert members_of(log) == [3]
    store, log = others_take_the_place(tmp_path, store)
    assert members_of(log) == [3]
    store.close()


def test_a_full_disk_does_not_prevent_a_truncation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, log = with_changes(tmp_path)
    start = log.member_changes[1].at
    data = bytes(log.read_raw(start, 1 << 20))
    with monkeypatch.context() as full:
        full.setattr(raftlog, "atomic_write", raising(OSError(errno.ENOSPC, "full")))
        log.truncate(start)
        assert (log.end, members_of(log)) == (start, [3])
        for append in (
            lambda: log.append_raw(start, data),
            lambda: log.append_members(MEMBERS[1], 1),
            lambda: log.begin_epoch(2, 1),
        ):
            with pytest.raises(StoreFull):
                append()
        assert log.end == start
        store, log = crashed(tmp_path, store)  # It starts on a full disk too.
        assert members_of(log) == [3]
        with pytest.raises(StoreFull):
            log.begin_epoch(2, 1)
    log.begin_epoch(2, 1)
    store, log = others_take_the_place(tmp_path, store)
    assert members_of(log) == [3]
    store.close()


@pytest.mark.parametrize("reset_done", [False, True])
@pytest.mark.parametrize("confirmed", [1, 2])
def test_after_a_crash_in_a_reset_the_members_are_those_of_the_log_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reset_done: bool, confirmed: int
) -> None:
    leader_store, leader = with_changes(tmp_path / "leader")
    for _ in range(2):
        send(leader_store)
    leader.append_members(MEMBERS[2], 1)
    for _ in range(2):
        send(leader_store)
    to = 2 << 20
    monkeypatch.setattr(leader_store.log, "start", to)  # As if all before had expired.
    state = leader.reset_state()
    last = leader.member_changes[-1]
    assert last.end < to < leader.end

    store, log = with_changes(tmp_path, confirmed=confirmed)
    if reset_done:
        reset = store.truncator.reset
        monkeypatch.setattr(store.truncator, "reset", lambda *given: (reset(*given), raising(PowerOff())()))
    else:
        monkeypatch.setattr(store.truncator, "reset", raising(PowerOff()))
    with pytest.raises(PowerOff):
        log.reset(to, leader.leader_epochs, state)
    monkeypatch.undo()

    store, log = crashed(tmp_path, store)
    if reset_done:
        assert (log.start, log.end) == (to, to)
        assert log.member_changes[-1] == last
    else:
        assert members_of(log) == [3, 4]
        log.reset(to, leader.leader_epochs, state)
        assert log.member_changes == (last,)
    store.close()
    leader_store.close()


@pytest.mark.parametrize("leads", [True, False])
def test_a_change_that_cannot_be_listed_is_not_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leads: bool
) -> None:
    source, other = with_changes(tmp_path / "leader")
    data = bytes(other.read_raw(0, 1 << 20))
    store, log = opened(tmp_path)
    if leads:
        log.begin_epoch(1, 1)

    def append() -> None:
        if leads:
            log.append_members(MEMBERS[0], 1)
        else:
            log.append_raw(0, data)

    before = log.end, log.leader_epochs
    with monkeypatch.context() as full:
        full.setattr(raftlog, "atomic_write", raising(OSError(errno.ENOSPC, "full")))
        with pytest.raises(StoreFull):
            append()
        assert (log.end, log.leader_epochs, log.member_changes) == (*before, ())
    append()
    assert members_of(log) == ([3] if leads else [3, 4])
    store.indexer.confirm(store.log.end)
    known = log.member_changes
    store, log = crashed(tmp_path, store)
    assert log.member_changes == known
    store.close()
    source.close()


def test_a_list_that_a_failing_disk_may_hold_is_followed_by_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was put in place, and only then did the disk fail: it names a change that was taken back."""
    store, log = with_changes(tmp_path)
    write = raftlog.atomic_write

    def fail_late(path: Path, data: bytes) -> None:
        write(path, data)
        raise OSError(errno.EIO, "broken")

    with monkeypatch.context() as broken:
        broken.setattr(raftlog, "atomic_write", fail_late)
        with pytest.raises(OSError, match="broken"):
            log.append_members(MEMBERS[2], 1)
    assert members_of(log) == [3, 4]
    assert store.state.failed is not None
    store, log = crashed(tmp_path, store)
    assert members_of(log) == [3, 4]
    store, log = others_take_the_place(tmp_path, store)
    assert members_of(log) == [3, 4]
    store.close()
