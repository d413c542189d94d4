"""A migration in the cluster's status: at each step what happens, how far it is, and what to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pytest
from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.api.status import BrokerClusterStatus, MigrationStatus
from gantry_operator.cluster.observed import ObservedMigration, ObservedState
from gantry_operator.cluster.status import significant
from gantry_operator.cluster.status import status_of as cluster_status
from gantry_operator.migration import progress
from gantry_operator.migration.cutover_steps import Group, Phase, Record
from gantry_operator.platforms.kubernetes.reconcile.migration_watch import MigrationWatch
from gantry_operator.platforms.kubernetes.requests.migration_request import MIGRATE, MIGRATION, written

from tests.kubernetes.test_migration_requests import Resource

NOW = "2026-01-01T00:00:00Z"
GIB = 1 << 30


def copy_of(**more: Any) -> dict[str, Any]:
    return {"state": "following", "problem": "", "start": GIB, "end": 4 * GIB, "lag": 5, "rate": 1 << 20} | more


def seen(copies: Mapping[str, Any], record: Record | None = None, request: str | None = None) -> MigrationStatus:
    return progress.status_of(record or Record(), copies, request)


def test_while_it_follows_it_says_how_far_it_is_and_when_a_cutover_may_begin() -> None:
    found = seen({"a": copy_of(), "b": copy_of(lag=2 * GIB)})
    assert (
        found.message
        == "the copies follow the source: 6.0 GiB are here, 2.0 GiB are missing, about 17 min at 2.0 MiB/s"
    )
    assert found.next == "wait until no group lacks more than 64.0 MiB: b"
    assert progress.condition_of(found)[:2] == ("True", "Following")
    found = seen({"a": copy_of(), "b": copy_of()})
    assert found.next == "annotate gantry.dev/migrate=cutover to let Gantry take over"
    assert [(row.copiedBytes, row.missingBytes, row.bytesPerSecond) for row in found.groups] == [
        (3 * GIB, 5, 1 << 20)
    ] * 2


def test_what_does_not_go_on_has_its_reason_and_the_way_out() -> None:
    broken = seen({"a": copy_of(state="broken", problem="it was emptied"), "b": copy_of()})
    assert broken.message == "group a stopped for good: it was emptied"
    assert "delete the volume and the pod of the first member of group a" in broken.next
    assert progress.condition_of(broken)[:2] == ("True", "Stopped")
    silent = seen({"a": None, "b": copy_of(lag=None)})
    assert silent.message == "group a: no member says that it follows the source; group b: it begins"
    assert progress.condition_of(silent)[:2] == ("True", "Waiting")


@pytest.mark.parametrize("phase", list(Phase))
def test_each_phase_says_what_happens_and_what_to_do(phase: Phase) -> None:
    record = Record(phase, 1_700_000_000.0, {"a": Group(6, 10)})
    for request in (None, "cutover #1"):
        found = progress.status_of(record, {"a": copy_of()}, request, "group a: 7 bytes are missing")
        assert (found.phase, found.since) == (phase.value, "2023-11-14T22:13:20Z")
        assert found.message
        assert found.next
        if phase not in (Phase.FOLLOWING,):
            assert found.message.endswith("7 bytes are missing")
            assert ("by itself" in found.next) is (request is not None and phase is not Phase.DONE)
    answer, reason, _ = progress.condition_of(found)
    assert (answer, reason) == (("False", "Moved") if phase is Phase.DONE else ("True", reason))
    if phase is Phase.FINISHING:
        found = progress.status_of(record, {"a": copy_of(state="broken", problem="torn")}, "cutover #1")
        assert "migrate=abort to go back" in found.next


@pytest.mark.parametrize("value", [-1, 2**63, "5", True, 1.5, [], {}])
def test_numbers_that_cannot_be_are_not_known(value: Any) -> None:
    row = progress.row_of("a", copy_of(start=value, lag=value, rate=value, state=value), leads=False)
    assert (row.state, row.copiedBytes, row.missingBytes, row.bytesPerSecond) == ("", None, None, None)
    assert row.problem == "the copy's status is not understood"
    assert len(progress.row_of("a", copy_of(problem="x" * 100_000), leads=False).problem) < 10_000


def test_a_person_hears_of_each_thing_once() -> None:
    looks = [
        {"a": copy_of(state="following", lag=None, problem="it looks at the source")},
        {"a": copy_of(lag=GIB)}, {"a": copy_of(lag=GIB // 2)}, {"a": copy_of(lag=5)}, {"a": copy_of(lag=9)},
        {"a": copy_of(lag=9, problem="10.0.0.1 does not answer")}, {"a": copy_of(problem="10.0.0.2 does not answer")},
        {"a": copy_of(state="broken", problem="it was emptied")},
    ]  # fmt: skip
    before, said = None, list[tuple[str, str]]()
    for copies in looks:
        now = seen(copies)
        said += progress.news(before, now)
        before = now
    assert said == [
        ("Warning", "group a: it looks at the source"),
        ("Normal", "group a follows the source; 1.0 GiB are missing"),
        ("Normal", "group a may be cut over: annotate gantry.dev/migrate=cutover to let Gantry take over"),
        ("Warning", "group a: 10.0.0.1 does not answer"),
        ("Warning", "group a: it was emptied"),
    ]


def test_the_status_keeps_what_is_known_and_is_not_written_for_each_byte() -> None:
    source = BrokerCluster.make(
        "shop", "x", brokerGroups=[{"name": "a", "brokerName": "a", "members": 1}],
        bootstrap={"fromRocketMQ": {"nameServers": ["192.0.2.1:9876"]}},
    )  # fmt: skip
    plain = BrokerCluster.make("shop", "x", brokerGroups=[{"name": "a", "members": 1}])

    def status(cluster: BrokerCluster, old: BrokerClusterStatus, found: MigrationStatus | None) -> BrokerClusterStatus:
        observed = None if found is None else ObservedMigration(found, *progress.condition_of(found))
        return cluster_status(cluster, old, ObservedState((), (), {}, migration=observed), NOW, 1)

    first = status(source, BrokerClusterStatus(), seen({"a": copy_of(lag=100)}))
    assert first.migration is not None
    (condition,) = (c for c in first.conditions if c.type == "Migrating")
    assert (condition.status, condition.reason) == ("True", "Following")
    assert "Next: annotate gantry.dev/migrate=cutover" in condition.message
    later = status(source, first, seen({"a": copy_of(lag=7, end=5 * GIB)}))
    assert later.to_object() != first.to_object()
    assert significant(later) == significant(first)
    assert significant(status(source, first, seen({"a": copy_of(state="broken", problem="x")}))) != significant(first)
    # A new operator has not looked yet.
    assert status(source, first, None).migration == first.migration
    # A spec without a source has no migration any more.
    ended = status(plain, first, None)
    assert ended.migration is None
    assert not [c for c in ended.conditions if c.type == "Migrating"]


async def test_the_watch_looks_at_copies_until_the_migration_is_over() -> None:
    resource, asked, said, changes = Resource(), list[bool](), list[str](), list[int]()
    copies: dict[str, Any] | None = {"a": copy_of()}

    async def ask(really: bool) -> dict[str, Any] | None:
        asked.append(really)
        return copies

    watch = MigrationWatch(
        cast(Any, resource), ask, lambda: "", lambda *event: said.append(event[2]), lambda: changes.append(1)
    )
    await watch.look()
    await watch.look()
    assert (len(said), len(changes)) == (2, 1)
    resource.annotations[MIGRATION] = written(Record(Phase.WRITES_OFF, 1, {"a": Group(6)}))
    resource.annotations[MIGRATE] = "cutover #1"
    await watch.look()
    assert watch.seen is not None
    assert watch.seen.status.next == "it goes on by itself; annotate gantry.dev/migrate=abort to go back"
    resource.annotations[MIGRATION] = written(Record(Phase.DONE, 1, {"a": Group(6, 10, True)}))
    copies = {"a": None}
    await watch.look()
    assert asked == [True, True, True, False]
    assert [row.state for row in watch.seen.status.groups] == ["leads"]
    resource.annotations[MIGRATION] = "[]"
    await watch.look()
    assert watch.seen.status.phase == "unknown"
    assert f"repair the annotation {MIGRATION}" in watch.seen.message
    copies = None
    await watch.look()
    assert watch.seen is None
