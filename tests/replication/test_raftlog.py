"""The changes of members that a log holds are known without reading the log."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from gantry_broker.protocol.message import pack_host
from gantry_broker.replication.members import Voter
from gantry_broker.replication.raftlog import RaftStoreLog
from gantry_broker.replication.storelog import StoreLogHooks
from gantry_broker.replication.types import MemberId
from gantry_broker.settings import BrokerSettings
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
    store.put([Put("Orders", 0, 0, 0, 1, HOST, b"x" * 1000, b"") for _ in range(500)], 1)


def test_a_change_of_members_walks_through_no_more_of_the_log_than_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, log = opened(tmp_path)
    walked: list[int] = []
    walk = store.walk
    monkeypatch.setattr(store, "walk", lambda start, stop: (walked.append(stop - start), walk(start, stop))[1])
    for members in MEMBERS:
        send(store)
        log.append_members(members, 1)
        send(store)
    assert [c.members for c in log.member_changes] == MEMBERS
    assert len(walked) == len(MEMBERS)
    assert max(walked) < 2000
    known = log.member_changes
    store.close(clean=False)

    store, again = opened(tmp_path)
    assert again.member_changes == known
    again.cut(known[1].at)
    assert again.member_changes == known[:1]
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

    store, again = opened(tmp_path)
    assert [c.members for c in again.member_changes] == MEMBERS[:2]
    send(store)
    again.append_members(MEMBERS[2], 1)
    assert [c.members for c in again.member_changes] == MEMBERS
    store.close()
