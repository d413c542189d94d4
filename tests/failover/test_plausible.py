"""A value that no correct member reports and no registry holds is refused by name, and never written."""

from __future__ import annotations

import json
import random
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from gantry_broker.contracts.leadership import InSyncSetProposal, LeadershipRecord, MemberId
from gantry_broker.contracts.models import FollowerStatus, LeaderLink, MemberRef, MemberStatus, ProposalModel
from gantry_broker.protocol.plausible import MAX_EPOCH, MAX_EPOCH_JUMP, MAX_MEMBER, MAX_OFFSET
from gantry_operator.cluster.member_messages import BadStatus, impossible_epoch, report_from
from gantry_operator.failover.bootstrap import recover
from gantry_operator.failover.model import FailoverSettings, MemberView, Observation, Recover, Report, Wait
from gantry_operator.platforms.kubernetes.api.lease_registry import LEADERSHIP, entry_of
from gantry_operator.registry.base import RegistryUnavailable
from gantry_operator.registry.file import FileRegistry

A, B = MemberId(0, "x"), MemberId(1, "y")
RIGHT = MemberStatus(
    cluster="demo", group="a", name="demo-a-0", member=MemberRef.of(A), broker_id=0, role="Master", epoch=3,
    version=7, highest_seen_epoch=4, last_epoch=3, end=900, confirmed=800, in_sync=[MemberRef.of(A)],
    proposal=ProposalModel.of(InSyncSetProposal(7, frozenset({A, B}))),
    followers=[FollowerStatus(member=MemberRef.of(B), acked=850, last_fetch_ms=12, in_sync=False)],
    leader_link=LeaderLink(member=MemberRef.of(B), state="silent", last_answer_ms=1_500),
).model_dump(mode="json")  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, -1, -2, 0, 1, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, 2**128, 1.5, 1e300, "", "3", "x" * 5_000,
    "a\nb", [], [1], {}, {"member": 2**70, "incarnation": "x"}, {"member": 0, "incarnation": ""}, [{}] * 500,
)  # fmt: skip


def mutated(data: Any, rng: random.Random) -> Any:
    if isinstance(data, dict) and data and rng.random() < 0.95:
        key = rng.choice(list(data))
        return {**data, key: mutated(data[key], rng)}
    if isinstance(data, list) and data and rng.random() < 0.8:
        index = rng.randrange(len(data))
        return [*data[:index], mutated(data[index], rng), *data[index + 1 :]]
    return rng.choice(VALUES)


def numbers(value: Any) -> list[int]:
    if isinstance(value, dict):
        return [n for v in value.values() for n in numbers(v)]
    if isinstance(value, list | tuple | frozenset | set):
        return [n for v in value for n in numbers(v)]
    return [value] if isinstance(value, int) and not isinstance(value, bool) else []


def test_mutated_status_lines_give_reports_with_possible_numbers_or_are_refused() -> None:
    rng = random.Random(1)
    passed, refused = 0, []
    for _ in range(10_000):
        status = RIGHT
        for _ in range(rng.choice((1, 1, 2))):
            status = mutated(status, rng)
            if not isinstance(status, dict):
                break
        try:
            report = report_from(status)
        except BadStatus as error:
            refused.append(str(error))
            continue
        passed += 1
        assert all(
            0 <= e <= MAX_EPOCH for e in (report.epoch, report.version, report.highest_seen_epoch, report.last_epoch)
        )
        found = numbers(asdict(report))
        assert all(-1 <= n <= MAX_OFFSET for n in found)
        orjson.dumps(found)
        assert 0 <= report.id.member <= MAX_MEMBER
    assert passed > 1_000
    assert len(refused) > 1_000
    assert max(map(len, refused)) < 6_000


@pytest.mark.parametrize("field", ["epoch", "version", "highest_seen_epoch", "last_epoch", "end", "confirmed"])
@pytest.mark.parametrize("value", [-1, 2**64 - 1, 2**128, 1.5, "3", True])
def test_an_impossible_number_is_named(field: str, value: Any) -> None:
    with pytest.raises(BadStatus, match=f"its report cannot be used: {field} = "):
        report_from({**RIGHT, field: value})


@pytest.mark.parametrize("field", ["epoch", "highest_seen_epoch", "last_epoch"])
def test_an_epoch_that_cannot_follow_the_recorded_one_is_named(field: str) -> None:
    report = replace(report_from(RIGHT), **{field: 4 + MAX_EPOCH_JUMP})
    assert f"{field}: epoch {4 + MAX_EPOCH_JUMP} cannot follow 3" in impossible_epoch(report, 3)
    assert impossible_epoch(report, 4) == ""


@pytest.mark.parametrize("epoch", [-1, 2**53 + 1, 2**64 - 1, 2**128, "3", None, 1.5])
def test_a_registry_with_an_impossible_epoch_is_not_read(tmp_path: Path, epoch: Any) -> None:
    content = json.dumps({**LeadershipRecord(3, 7, A, frozenset({A})).to_json(), "epoch": epoch})
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(RegistryUnavailable, match=r"a\.json holds no leadership record \(epoch = "):
        FileRegistry(tmp_path).read_now("a")
    with pytest.raises(RegistryUnavailable, match="epoch = "):
        entry_of({"metadata": {"name": "l", "annotations": {LEADERSHIP: content}, "resourceVersion": "1"}})


def heard(*epochs: int) -> Observation:
    ids = [MemberId(n, "x") for n in range(len(epochs))]
    members = tuple(
        MemberView(
            id.member, f"m{id.member}", "h:1",
            Report(id, "Waiting", 3, 7, epoch, last_epoch=3, end=9, in_sync=frozenset(ids)), reach="ok",
        )
        for id, epoch in zip(ids, epochs, strict=True)
    )  # fmt: skip
    return Observation("a", members, None, FailoverSettings())


def test_a_lost_record_is_not_recovered_from_epochs_of_different_groups() -> None:
    good = recover(heard(3, 4, 5), "lost")
    assert isinstance(good, Recover)
    assert good.leadership.epoch == 15
    for far in (5 + MAX_EPOCH_JUMP, MAX_EPOCH):
        bad = recover(heard(3, 4, far), "lost")
        assert isinstance(bad, Wait)
        assert "cannot belong to one group" in bad.reason
    assert isinstance(recover(heard(MAX_EPOCH, MAX_EPOCH, MAX_EPOCH), "lost"), Wait)
