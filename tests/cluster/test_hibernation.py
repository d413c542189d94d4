"""Hibernation: the leader of a group stops last, whatever happens on the way. Maintenance windows and upgrades."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.api.maintenance import MaintenanceWindow
from gantry_operator.api.status import BrokerClusterStatus, MemberRow
from gantry_operator.cluster.hibernation import GroupState, next_step
from gantry_operator.cluster.maintenance import UpgradeQueue, is_open, wait_for
from gantry_operator.cluster.observed import ObservedMember, ObservedState
from gantry_operator.cluster.status import status_of


def ended(groups: list[GroupState]) -> bool:
    return not any(g.running for g in groups)


@pytest.mark.parametrize("seed", range(200))
def test_the_leader_stops_last(seed: int) -> None:
    """Processes stop at any moment after the request, a handover may fail or another member may take over."""
    chance = random.Random(seed)
    groups = []
    for number in range(chance.randint(1, 4)):
        members = chance.randint(1, 5)
        leader = chance.choice([None, *range(members)])
        running = frozenset(m for m in range(members) if chance.random() < 0.9 or m == leader)
        groups.append(GroupState(f"g{number}", members, running, leader, 0, chance.random() < 0.8))
    servers, failures = chance.randint(1, 3), 0
    for _ in range(200):
        step = next_step(groups, servers, patient=failures < 3)
        if step.kind == "done":
            break
        if step.kind == "end":
            assert ended(groups), "NameServers stop after all brokers"
            servers = 0
        for i, g in enumerate(groups):
            if step.group == g.name and step.kind == "handover":
                assert g.last_in_sync, "only a member with every record may lead"
                done = chance.random() < 0.6
                failures += not done
                g = replace(g, leader=0 if done else g.leader)
            elif step.group == g.name and step.kind == "shrink":
                if step.keep == 0:
                    assert not g.running - {0}, "the followers have ended by now"
                g = replace(g, wanted=step.keep)
            kept = frozenset(m for m in g.running if m < g.wanted or chance.random() < 0.5)
            groups[i] = replace(g, running=kept, leader=g.leader if g.leader in kept else None)
    else:
        pytest.fail(f"it does not end: {groups}")
    assert ended(groups)
    assert servers == 0


WINDOW = MaintenanceWindow(schedule="0 2 * * 6", duration="2h", timeZone="Europe/Berlin")
SATURDAY = datetime(2026, 11, 28, 1, 0, tzinfo=UTC)  # 2 in the morning in Berlin


def test_a_window_is_open_from_its_beginning_to_its_end() -> None:
    minute = timedelta(minutes=1)
    assert not is_open(WINDOW, SATURDAY - minute)
    assert is_open(WINDOW, SATURDAY)
    assert is_open(WINDOW, SATURDAY + timedelta(hours=2) - minute)
    assert not is_open(WINDOW, SATURDAY + timedelta(hours=2))
    assert wait_for(WINDOW, SATURDAY - minute) == "waits for the maintenance window at 2026-11-28T01:00:00Z"
    assert wait_for(WINDOW, SATURDAY) == wait_for(None, SATURDAY) == ""


def test_upgrades_take_turns() -> None:
    queue = UpgradeQueue()
    assert queue.wait("mq/a") == ""
    assert queue.wait("mq/b") == "waits until mq/a is upgraded"
    assert queue.wait("shop/a") == "waits until a cluster of another namespace is upgraded"
    queue.done("mq/b")
    assert queue.wait("mq/a") == ""
    queue.done("mq/a")
    assert queue.wait("mq/b") == ""
    assert "Paused" in UpgradeQueue(paused=True).wait("mq/a")


def test_the_status_of_a_cluster_that_hibernates_says_so_everywhere() -> None:
    cluster = BrokerCluster.make("demo", brokerGroups=[{"name": "a", "members": 1}], hibernate=True)
    old = BrokerClusterStatus(members=[MemberRow(name="demo-a-0", group="a", epoch=7, maxOffset=4711)])
    seen = ObservedState(
        members=[ObservedMember("demo-a-0", "a", 0, None, False, problem="there is no pod")],
        name_servers=[], available={"a": None}, hibernated=True,
    )  # fmt: skip
    status = status_of(cluster, old, seen, "t1", 1)
    assert status.phase == "Hibernated"
    assert {c.reason for c in status.conditions if c.type != "Secured"} == {"Hibernated"}
    row = status.members[0]
    assert (row.epoch, row.maxOffset, row.lag, row.reason) == (7, 4711, None, "hibernated")
