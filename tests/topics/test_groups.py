"""Decisions about consumer groups."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from gantry_broker.protocol.bodies import SubscriptionGroup, TopicConfig
from gantry_operator.topics.groups import decide_groups
from gantry_operator.topics.model import Decision, RecordedState, WantedGroup

from tests.topics.model import Broker, observed


class Rig:
    def __init__(self, *groups: str) -> None:
        self.brokers = {g: Broker(g) for g in groups}
        self.recorded: dict[str, RecordedState] = {}
        self.notes: list[str] = []

    def look(self, *wanted: WantedGroup, silent: set[str] = frozenset(), **more: Any) -> Decision:  # type: ignore[assignment]
        asked = [replace(w, recorded=self.recorded.get(w.resource, w.recorded)) for w in wanted]
        found = decide_groups(asked, observed(self.brokers, silent, **more))
        self.recorded |= {name: r.recorded for name, r in found.results.items()}
        self.notes += [n.reason for n in found.notes]
        return found

    def settle(self, *wanted: WantedGroup) -> Decision:
        for _ in range(10):
            found = self.look(*wanted)
            if not found.steps:
                return found
            for step in found.steps:
                self.brokers[step.group].do(step, force=True)
        raise AssertionError("there is no end of steps")


def group(**more: Any) -> WantedGroup:
    return WantedGroup(**({"resource": "g", "group": "G", "settings": {"retry_max_times": 3}} | more))


def test_a_group_is_made_on_every_broker_group_with_what_the_spec_names() -> None:
    rig = Rig("a", "b")
    rig.brokers["a"].groups["G"] = SubscriptionGroup("G", retry_queues=7, consume_timeout_minutes=99)
    found = rig.settle(group())
    for broker in rig.brokers.values():
        config = broker.groups["G"]
        assert (config.retry_max_times, config.retry_queues, config.consume_timeout_minutes) == (3, 7, 99)
    assert found.results["g"].ready.reason == "Adopted"
    assert rig.notes == ["GroupAdopted"]
    assert rig.settle(group(settings={}, generation=2)).steps == []


def test_drift_is_put_back_or_reported() -> None:
    rig = Rig("a")
    rig.settle(group())
    changed = replace(rig.brokers["a"].groups["G"], retry_max_times=9)
    rig.brokers["a"].groups["G"] = changed
    found = rig.settle(group(report=True))
    assert (found.results["g"].synced.reason, rig.brokers["a"].groups["G"]) == ("Drifted", changed)
    assert "retryMax 9, wanted 3" in found.results["g"].synced.message
    rig.settle(group())
    assert rig.brokers["a"].groups["G"].retry_max_times == 3
    assert rig.notes == ["DriftCorrected"]


def test_the_second_one_and_groups_of_the_system_are_refused() -> None:
    rig = Rig("a")
    found = rig.settle(group(created="1"), group(resource="h", created="2"))
    assert "belongs to ConsumerGroup g" in found.results["h"].ready.message
    for name in ("CID_RMQ_SYS_X", "TOOLS_CONSUMER", "%RETRY%G"):
        assert rig.look(group(resource="s", group=name)).results["s"].ready.reason == "SystemGroup"


def test_a_group_in_use_or_with_unread_messages_is_not_deleted() -> None:
    rig = Rig("a", "b")
    rig.settle(group(delete=True))
    broker = rig.brokers["b"]
    broker.topics["T"] = TopicConfig("T", 1, 1)
    broker.send("T", 0)
    broker.offsets["T", "G"] = {0: 0}
    broker.members["G"] = {"T"}
    gone = group(delete=True, deleting=True)
    found = rig.look(gone)
    assert (found.steps, found.results["g"].ready.reason) == ([], "InUse")
    assert (found.results["g"].members, found.results["g"].lag, found.results["g"].topics) == (1, 1, ("T",))
    broker.members.clear()
    found = rig.look(gone)
    assert (found.steps, found.results["g"].ready.reason) == ([], "Unread")
    broker.read("T", "G")
    broker.topics["%RETRY%G"] = TopicConfig("%RETRY%G", 1, 1)
    broker.topics["%DLQ%G"] = TopicConfig("%DLQ%G", 1, 1)
    broker.send("%DLQ%G", 0)
    assert rig.look(gone, silent={"a"}).steps == []
    found = rig.settle(gone)
    assert not found.results["g"].finalizer
    assert [sorted(b.groups) for b in rig.brokers.values()] == [[], []]
    assert sorted(broker.topics) == ["%DLQ%G", "T"], "dead letters stay"
    assert "DeadLettersKept" in rig.notes


@pytest.mark.parametrize("delete", [True, False])
def test_force_deletes_and_retain_does_not(delete: bool) -> None:
    rig = Rig("a")
    rig.settle(group(delete=delete))
    rig.brokers["a"].members["G"] = {"T"}
    found = rig.settle(group(delete=delete, deleting=True, force=True))
    assert ("G" in rig.brokers["a"].groups) is not delete
    assert not found.results["g"].finalizer


def test_a_silent_group_and_a_paused_cluster() -> None:
    rig = Rig("a", "b")
    found = rig.look(group(), silent={"b"})
    assert [s.group for s in found.steps] == ["a"]
    assert found.results["g"].ready.status == "Unknown"
    assert rig.look(group(), held="the cluster hibernates").steps == []
    assert [s.group for s in rig.look(group(), draining=frozenset({"a"})).steps] == ["b"]
