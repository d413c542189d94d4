"""A member in words."""

from __future__ import annotations

from pathlib import Path

import pytest
from gantry_broker.contracts.leadership import LeadershipRecord, MemberId
from gantry_broker.protocol.codes import CONTROL_TOPIC
from gantry_broker.replication.describe import describe_control, describe_member_changes, describe_replica, read_state
from gantry_broker.replication.identity import ReplicaFile, StateError
from gantry_broker.replication.members import Voter
from gantry_broker.replication.state import HardState

ME, OTHER = MemberId(0, "aaa"), MemberId(1, "bbb")


def described(path: Path) -> dict[str, str]:
    return dict(describe_replica(read_state(path), path))


def test_a_follower_in_words(tmp_path: Path) -> None:
    path = tmp_path / "replica.json"
    assert described(path) == {"replica.json": "none: the disk belongs to no member yet"}
    file = ReplicaFile(path)
    file.start(0, sync_flush=False, log_is_empty=False)
    file.save(HardState(ME, LeadershipRecord(4, 9, OTHER, frozenset({ME, OTHER})), "127.0.0.1:1", unclean=True))
    said = described(path)
    assert said["member"] == "number 0, incarnation aaa"
    assert said["leader"] == "epoch 4: member 1/bbb at 127.0.0.1:1"
    assert said["in-sync set"] == "0/aaa, 1/bbb (version 9)"
    assert "below its confirmed offset" in said["unclean"]
    assert said["last stop"].startswith("running, or killed; the machine has not booted")
    assert said["next start"].startswith("keeps the incarnation")
    file.invalidate_boot_id()
    said = described(path)
    assert said["next start"].startswith("takes a new incarnation")
    started = ReplicaFile(path).start(0, sync_flush=False, log_is_empty=False)
    assert not started.log_trusted, "the prediction holds"


def test_a_voter_in_words(tmp_path: Path) -> None:
    path = tmp_path / "replica.json"
    file = ReplicaFile(path, "Raft")
    file.start(0, sync_flush=False, log_is_empty=True)
    voters = (Voter(ME, "127.0.0.1:1"), Voter(OTHER, "127.0.0.1:2"))
    file.save(HardState(ME, LeadershipRecord(2, 0, ME), vote=ME, first_members=voters))
    file.mark_clean()
    said = described(path)
    assert (said["mode"], said["vote"]) == ("Raft", "for member 0/aaa")
    assert said["leader"] == "epoch 2: member 0/aaa, this one"
    assert said["first members"] == "0/aaa at 127.0.0.1:1, 1/bbb at 127.0.0.1:2"
    assert said["last stop"] == "the last stop was clean"
    changes = [{"at": 7, "end": 9, "members": [[0, "aaa", "127.0.0.1:1"]]}]
    assert describe_member_changes(changes, path) == [("members at 7", "0/aaa at 127.0.0.1:1")]


@pytest.mark.parametrize(
    "data", [[], 7, {"member": [0, "a"]}, {"member": "x", "leadership": {}, "leaderAddress": None}]
)
def test_an_invalid_file_is_named(data: object, tmp_path: Path) -> None:
    with pytest.raises(StateError, match=r"replica\.json"):
        describe_replica(data, tmp_path / "replica.json")
    with pytest.raises(StateError, match=r"members\.json"):
        describe_member_changes([data], tmp_path / "members.json")
    (tmp_path / "replica.json").write_text("{")
    with pytest.raises(StateError, match=r"replica\.json"):
        read_state(tmp_path / "replica.json")


def test_control_records_in_words() -> None:
    epoch = b'{"kind":"epoch","epoch":3,"group":"a","member":1}'
    assert describe_control(CONTROL_TOPIC, epoch) == "epoch 3 begins: member 1 of group a leads"
    assert describe_control("T", epoch) is None
    members = b'{"kind":"members","members":[[0,"aaa","127.0.0.1:1"]]}'
    assert describe_control(CONTROL_TOPIC, members) == "the members are 0/aaa at 127.0.0.1:1"
    for body in (b"", b"[]", b"\xff", b'{"kind":"epoch"}', b'{"kind":"members","members":[7]}', b'{"kind":"meta"}'):
        assert describe_control(CONTROL_TOPIC, body) is None
