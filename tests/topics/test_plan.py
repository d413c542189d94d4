"""Decisions about topics: growth, shrinking, drift, adoption, deletion, wrong names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from gantry_broker.protocol.bodies import TopicConfig
from gantry_broker.protocol.codes import Perm
from gantry_operator.topics.model import Decision, DropTopic, PutTopic, RecordedState, WantedTopic
from gantry_operator.topics.plan import decide_topics
from gantry_operator.topics.seen import BadTables, BrokerTables
from gantry_operator.topics.spread import queues_by_group

from tests.topics.model import Broker, observed

RW = Perm.READ | Perm.WRITE


class Rig:
    """Brokers, and the operator's memory."""

    def __init__(self, *groups: str) -> None:
        self.brokers = {g: Broker(g) for g in groups}
        self.now = 1_000.0
        self.settling: Any = {}
        self.ask: set[str] = set()
        self.recorded: dict[str, RecordedState] = {}
        self.notes: list[str] = []

    def look(self, *wanted: WantedTopic, silent: set[str] = frozenset(), **more: Any) -> Decision:  # type: ignore[assignment]
        asked = [replace(w, recorded=self.recorded.get(w.resource, w.recorded)) for w in wanted]
        seen = observed(self.brokers, silent, self.ask, **more)
        found = decide_topics(asked, seen, self.settling, self.now, 75.0)
        self.settling, self.ask = found.settling, found.ask
        self.recorded |= {name: r.recorded for name, r in found.results.items()}
        self.notes += [n.reason for n in found.notes]
        return found

    def settle(self, *wanted: WantedTopic, force: bool = False, rounds: int = 10) -> Decision:
        """Until there are no more steps."""
        for _ in range(rounds):
            before = self.ask
            found = self.look(*wanted)
            if not found.steps and self.ask <= before:
                return found
            for step in found.steps:
                self.brokers[step.group].do(step, force=force)
        raise AssertionError(f"there is no end of steps: {found.steps}")

    def queues(self, topic: str = "T") -> dict[str, tuple[int, int]]:
        """Write and read queues by broker group."""
        return {
            g: (b.topics[topic].write_queues, b.topics[topic].read_queues)
            for g, b in self.brokers.items()
            if topic in b.topics
        }


@pytest.fixture
def rig() -> Rig:
    return Rig("a")


@pytest.fixture
def pair() -> Rig:
    return Rig("a", "b")


def topic(**more: Any) -> WantedTopic:
    return WantedTopic(**({"resource": "t", "topic": "T", "per_group": 4} | more))


@pytest.mark.parametrize(
    ("total", "groups", "draining", "expected"),
    [
        (8, "ab", "", {"a": 4, "b": 4}),
        (9, "ab", "", {"a": 5, "b": 4}),
        (1, "abc", "", {"a": 1, "b": 0, "c": 0}),
        (8, "abc", "b", {"a": 4, "c": 4}),
        (8, "", "", {}),
        (8, "a", "a", {}),
    ],
)
def test_queues_are_spread_evenly(total: int, groups: str, draining: str, expected: dict[str, int]) -> None:
    assert queues_by_group(total, None, list(groups), set(draining)) == expected


def test_a_new_topic_is_created_on_every_group(pair: Rig) -> None:
    first = pair.look(topic(perm=Perm.READ, attributes={"message.type": "FIFO"}))
    assert [s.group for s in first.steps] == ["a", "b"]
    assert first.results["t"].recorded.origin == "Created"
    assert first.results["t"].ready.reason == "Missing"
    found = pair.settle(topic(perm=Perm.READ, attributes={"message.type": "FIFO"}))
    assert pair.queues() == {"a": (4, 4), "b": (4, 4)}
    config = pair.brokers["a"].topics["T"]
    assert (config.perm, config.attributes) == (Perm.READ, {"message.type": "FIFO"})
    result = found.results["t"]
    assert (result.ready.status, result.ready.reason, result.synced.status) == ("True", "Created", "True")
    assert pair.notes == []


def test_a_topic_that_exists_is_adopted_and_what_is_not_written_stays(pair: Rig) -> None:
    pair.brokers["a"].topics["T"] = TopicConfig("T", 16, 16, Perm.READ, sys_flag=2, attributes={"other": "x"})
    wanted = topic(per_group=None, attributes={"message.type": "DELAY"})
    found = pair.settle(wanted)
    assert pair.queues() == {"a": (16, 16), "b": (16, 16)}
    for broker in pair.brokers.values():
        config = broker.topics["T"]
        assert (config.perm, config.sys_flag) == (Perm.READ, 2)
        assert config.attributes == {"other": "x", "message.type": "DELAY"}
    assert found.results["t"].ready.reason == "Adopted"
    assert "existed before" in found.results["t"].ready.message
    assert pair.notes == ["TopicAdopted"]


def test_an_attribute_that_leaves_the_spec_is_removed_and_no_other(rig: Rig) -> None:
    rig.brokers["a"].topics["T"] = TopicConfig("T", 4, 4, attributes={"other": "x"})
    rig.settle(topic(attributes={"mine": "1", "also": "2"}))
    rig.settle(topic(attributes={"also": "2"}, generation=2))
    assert rig.brokers["a"].topics["T"].attributes == {"other": "x", "also": "2"}


def test_growth_is_one_step(rig: Rig) -> None:
    rig.settle(topic())
    found = rig.look(topic(per_group=6, generation=2))
    assert [(s.config.write_queues, s.config.read_queues) for s in found.steps if isinstance(s, PutTopic)] == [(6, 6)]


def test_shrinking_waits_for_the_readers_and_then_for_quiet_queues(rig: Rig) -> None:
    rig.settle(topic(per_group=8))
    broker = rig.brokers["a"]
    for number in range(8):
        broker.send("T", number)
    broker.read("T", "fast")
    broker.offsets["T", "slow"] = {number: 0 for number in range(8)}
    broker.groups |= {"slow": replace(broker.groups["fast"], name="slow")}
    small = topic(per_group=4, generation=2)
    found = rig.settle(small)
    assert rig.queues() == {"a": (4, 8)}
    result = found.results["t"]
    assert (result.ready.status, result.synced.status, result.synced.reason) == ("True", "False", "Shrinking")
    assert "4 messages are unread in queues 4 and above (slow has not read them)" in result.synced.message
    rig.now += 1_000
    assert rig.look(small).steps == [], "slow is still behind"
    assert broker.send("T", 7), "a producer with the former route"
    broker.read("T", "slow")
    broker.read("T", "fast")
    assert rig.look(small).steps == [], "they were not quiet"
    rig.now += 74
    assert rig.look(small).steps == []
    rig.now += 2
    found = rig.settle(small)
    assert rig.queues() == {"a": (4, 4)}
    assert found.results["t"].synced.status == "True"


def test_an_operator_that_starts_watches_the_removed_queues_anew(rig: Rig) -> None:
    rig.settle(topic(per_group=8))
    rig.settle(topic(per_group=4, generation=2))
    rig.now += 100
    rig.settling = {}
    assert rig.look(topic(per_group=4, generation=2)).steps == []
    rig.now += 76
    assert len(rig.look(topic(per_group=4, generation=2)).steps) == 1


def test_force_shrinks_at_once(rig: Rig) -> None:
    rig.settle(topic(per_group=8))
    rig.brokers["a"].send("T", 7)
    found = rig.settle(topic(per_group=4, generation=2, force=True), force=True)
    assert rig.queues() == {"a": (4, 4)}
    assert found.results["t"].synced.status == "True"


def test_messages_without_a_reader_hold_a_shrinking(rig: Rig) -> None:
    rig.settle(topic(per_group=8))
    rig.brokers["a"].send("T", 7)
    found = rig.settle(topic(per_group=4, generation=2))
    assert "no consumer group has read them" in found.results["t"].synced.message
    rig.brokers["a"].queue("T", 7)[0] = 1  # They expire.
    rig.look(topic(per_group=4, generation=2))
    rig.now += 80
    rig.settle(topic(per_group=4, generation=2))
    assert rig.queues() == {"a": (4, 4)}


@pytest.mark.parametrize("broadcasts", [True, False])
def test_a_group_without_offsets_counts_by_its_members(rig: Rig, broadcasts: bool) -> None:
    rig.settle(topic(per_group=8))
    broker = rig.brokers["a"]
    broker.send("T", 7)
    broker.members["new"] = {"T"}
    broker.broadcasting = {"new"} if broadcasts else set()
    found = rig.settle(topic(per_group=4, generation=2))
    words = "new consumes by broadcast" if broadcasts else "new has not read them"
    assert words in found.results["t"].synced.message


def test_drift_is_put_back_and_said(pair: Rig) -> None:
    pair.settle(topic(perm=RW, attributes={"k": "v"}))
    pair.brokers["b"].topics["T"] = TopicConfig("T", 2, 2, Perm.READ)
    found = pair.settle(topic(perm=RW, attributes={"k": "v"}))
    assert pair.queues() == {"a": (4, 4), "b": (4, 4)}
    assert pair.brokers["b"].topics["T"].attributes == {"k": "v"}
    assert pair.notes == ["DriftCorrected"]
    assert found.results["t"].synced.status == "True"
    del pair.brokers["a"].topics["T"]
    pair.settle(topic(perm=RW, attributes={"k": "v"}))
    assert pair.queues() == {"a": (4, 4), "b": (4, 4)}
    assert pair.notes == ["DriftCorrected"] * 2


def test_drift_is_only_reported_if_the_policy_says_so(pair: Rig) -> None:
    wanted = topic(report=True, attributes={"k": "v"})
    pair.settle(wanted)
    pair.brokers["b"].topics["T"] = TopicConfig("T", 2, 2, attributes={"k": "w"})
    found = pair.settle(wanted)
    state = found.results["t"].synced
    assert (state.status, state.reason) == ("False", "Drifted")
    assert "b: write queues 2, wanted 4" in state.message
    assert "b: +k=v" in state.message
    del pair.brokers["a"].topics["T"]
    assert "a: it is missing" in pair.settle(wanted).results["t"].synced.message
    assert pair.queues() == {"b": (2, 2)}
    pair.settle(replace(wanted, per_group=6, generation=2))
    assert pair.queues() == {"a": (6, 6), "b": (6, 6)}, "a change of the spec is applied"
    assert pair.notes == []


def test_a_new_group_gets_the_topic_also_with_report(rig: Rig) -> None:
    rig.settle(topic(report=True))
    rig.brokers["b"] = Broker("b")
    found = rig.settle(topic(report=True))
    assert rig.queues() == {"a": (4, 4), "b": (4, 4)}
    assert found.results["t"].synced.status == "True"


def test_a_total_spreads_over_a_new_group_without_a_word_of_drift(pair: Rig) -> None:
    wanted = topic(per_group=None, queues=12)
    pair.settle(wanted)
    pair.brokers["c"] = Broker("c")
    pair.settle(wanted)
    assert pair.queues() == {"a": (4, 6), "b": (4, 6), "c": (4, 4)}
    pair.now += 80
    pair.settle(wanted)
    assert pair.queues() == {"a": (4, 4), "b": (4, 4), "c": (4, 4)}
    assert pair.notes == []


def test_a_group_that_drains_gets_nothing_and_is_left_alone(pair: Rig) -> None:
    pair.settle(topic())
    pair.brokers["b"].topics["T"] = replace(pair.brokers["b"].topics["T"], perm=Perm.READ)
    draining = {"draining": frozenset({"b"})}
    assert pair.look(topic(perm=RW), **draining).steps == []


def test_a_group_that_loses_all_queues_is_emptied_first(pair: Rig) -> None:
    pair.settle(topic(per_group=None, queues=2))
    broker = pair.brokers["b"]
    broker.send("T", 0)
    one = topic(per_group=None, queues=1, generation=2)
    found = pair.settle(one)
    assert broker.topics["T"].perm == Perm.READ
    assert "b: 1 messages are unread in this broker group" in found.results["t"].synced.message
    back = pair.settle(topic(per_group=None, queues=2, generation=3))
    assert broker.topics["T"].perm == RW
    assert back.results["t"].synced.status == "True"
    pair.settle(replace(one, generation=4))
    broker.read("T", "g")
    pair.settle(replace(one, generation=4))
    assert pair.queues() == {"a": (1, 1)}


def test_a_topic_is_deleted_once_it_is_read_everywhere(pair: Rig) -> None:
    pair.settle(topic(delete=True))
    pair.brokers["b"].send("T", 0)
    gone = topic(delete=True, deleting=True)
    found = pair.settle(gone)
    assert found.results["t"].ready.reason == "Unread"
    assert found.results["t"].finalizer
    assert not pair.brokers["b"].send("T", 0), "it takes no more messages"
    assert not pair.ask, "first they are read"
    pair.brokers["b"].read("T", "g")
    found = pair.settle(gone)
    assert pair.queues() == {}
    assert not found.results["t"].finalizer
    assert found.results["t"].ready.reason == "Deleted"


@pytest.mark.parametrize("deleting", [False, True])
def test_a_topic_stays_while_messages_are_not_delivered_to_it(pair: Rig, deleting: bool) -> None:
    """They wait in topics of the system, so nobody lags."""
    wanted = topic(queues=2, per_group=None, delete=True)
    pair.settle(wanted)
    pair.brokers["b"].delay("T")
    wanted = replace(wanted, deleting=True) if deleting else replace(wanted, queues=1, generation=2)
    found = pair.settle(wanted)
    assert "b: delayed messages for it are not delivered yet" in found.results["t"].synced.message
    assert "b" in pair.queues()
    assert (found.results["t"].ready.reason == "Unread") == deleting
    pair.brokers["b"].deliver("T")
    assert "no consumer group has read them" in pair.settle(wanted).results["t"].synced.message
    pair.brokers["b"].read("T", "g")
    pair.settle(wanted)
    assert set(pair.queues()) == (set() if deleting else {"a"})


@pytest.mark.parametrize(
    ("said", "words"), [("half", "have no decision yet"), ("unknown", "it looks"), (7, "it looks")]
)
def test_what_is_not_delivered_or_not_known_holds_a_deletion(rig: Rig, said: Any, words: str) -> None:
    rig.settle(topic(delete=True))
    gone = topic(delete=True, deleting=True)
    rig.brokers["a"].undelivered = lambda name: said  # type: ignore[method-assign]
    assert words in rig.settle(gone).results["t"].ready.message
    assert rig.ask == {"T"}
    assert rig.look(replace(gone, force=True)).steps == [DropTopic("a", "T", "t")]


def test_force_deletes_at_once_and_retain_never(rig: Rig) -> None:
    rig.settle(topic(delete=True))
    rig.brokers["a"].send("T", 0)
    kept = rig.look(topic(deleting=True))
    assert (kept.steps, kept.results["t"].finalizer) == ([], False)
    assert rig.look(topic(delete=True, deleting=True, force=True)).steps == [DropTopic("a", "T", "t")]


@pytest.mark.parametrize("perm", [None, RW])
@pytest.mark.parametrize("synced", [True, False])
@pytest.mark.parametrize("report", [True, False])
def test_a_topic_that_is_written_again_while_its_deletion_waits_takes_messages_again(
    pair: Rig, perm: int | None, synced: bool, report: bool
) -> None:
    wanted = topic(delete=True, perm=perm, report=report)
    if synced:
        pair.settle(wanted)
    else:
        for step in pair.look(wanted).steps:
            pair.brokers[step.group].do(step)
    for broker in pair.brokers.values():
        broker.send("T", 0)
    assert pair.settle(replace(wanted, deleting=True)).results["t"].ready.reason == "Unread"
    assert not pair.brokers["a"].send("T", 0)
    found = pair.settle(replace(wanted, generation=2))
    assert (found.results["t"].ready.status, found.results["t"].synced.reason) == ("True", "AsWanted")
    assert all(b.topics["T"].perm == RW and b.send("T", 0) for b in pair.brokers.values())


def test_a_deletion_that_is_taken_back_by_its_policy_lets_the_topic_take_messages_first(pair: Rig) -> None:
    """Kubernetes takes back no deletion of an object, but the topic can stay."""
    pair.settle(topic(delete=True))
    pair.brokers["b"].send("T", 0)
    waiting = pair.settle(topic(delete=True, deleting=True, held=True, generation=2)).results["t"]
    assert "write spec.deletionPolicy: Retain" in waiting.ready.message
    kept = topic(deleting=True, held=True, generation=3)
    assert pair.look(kept, held="the cluster hibernates").results["t"].finalizer
    found = pair.look(kept, silent={"b"})
    assert (found.results["t"].finalizer, [s.group for s in found.steps]) == (True, ["a"])
    found = pair.settle(kept)
    assert not found.results["t"].finalizer
    assert all(b.topics["T"].perm == RW for b in pair.brokers.values())
    pair.brokers["a"].topics["T"] = replace(pair.brokers["a"].topics["T"], perm=Perm.READ)
    assert pair.look(topic(deleting=True, generation=3)).steps == [], (
        "without a deletion at the brokers nothing changes"
    )


def test_a_deletion_waits_for_a_group_without_a_master(pair: Rig) -> None:
    pair.settle(topic(delete=True))
    pair.brokers["a"].topics.clear()
    found = pair.look(topic(delete=True, deleting=True), silent={"b"})
    assert found.results["t"].finalizer
    assert found.results["t"].ready.reason == "BrokersNotReached"


def test_the_second_resource_for_a_topic_is_refused_with_the_first_ones_name(rig: Rig) -> None:
    old, young = topic(resource="z", created="2026-01-01"), topic(resource="a", created="2026-01-02", per_group=9)
    found = rig.settle(young, old)
    refused = found.results["a"]
    assert (refused.ready.status, refused.ready.reason) == ("False", "NameTaken")
    assert "belongs to BrokerTopic z" in refused.ready.message
    assert not refused.finalizer
    assert rig.queues() == {"a": (4, 4)}
    # The one that has it keeps it, whatever its age.
    older = topic(resource="older", created="2025-01-01", per_group=9)
    assert rig.settle(older, old).results["older"].ready.reason == "NameTaken"
    assert rig.settle(replace(young, generation=2)).results["a"].ready.status == "True"
    assert rig.queues() == {"a": (9, 9)}


@pytest.mark.parametrize("name", ["demo", "a", "demo_REPLY_TOPIC", "TBW102", "rmq_sys_X", "%RETRY%g", "%DLQ%g"])
def test_topics_of_the_system_are_left_alone(rig: Rig, name: str) -> None:
    found = rig.look(topic(topic=name))
    assert found.steps == []
    assert found.results["t"].ready.reason == "SystemTopic"


def test_a_silent_group_hinders_no_other_one(pair: Rig) -> None:
    found = pair.look(topic(), silent={"b"})
    assert [s.group for s in found.steps] == ["a"]
    assert found.results["t"].recorded.origin == "Created"
    pair.brokers["a"].do(found.steps[0])
    found = pair.look(topic(), silent={"b"})
    assert (found.results["t"].ready.status, found.results["t"].blind) == ("Unknown", True)


def test_nobody_knows_the_origin_while_no_group_answers(pair: Rig) -> None:
    assert pair.look(topic(), silent={"a", "b"}).results["t"].recorded.origin == ""
    assert pair.settle(topic()).results["t"].ready.reason == "Created"


@pytest.mark.parametrize("report", [True, False])
def test_a_group_that_comes_and_goes_while_a_topic_shrinks_is_no_drift(pair: Rig, report: bool) -> None:
    wanted = topic(per_group=None, queues=6, report=report)
    pair.settle(wanted)
    pair.brokers["c"] = Broker("c")
    pair.settle(wanted)
    assert pair.queues() == {"a": (2, 3), "b": (2, 3), "c": (2, 2)}
    del pair.brokers["c"]
    found = pair.settle(wanted)
    assert pair.queues() == {"a": (3, 3), "b": (3, 3)}
    assert (found.results["t"].synced.status, pair.notes) == ("True", [])


def test_a_paused_cluster_is_left_alone(rig: Rig) -> None:
    found = rig.look(topic(), held="the cluster hibernates")
    assert (found.steps, found.results["t"].synced.reason) == ([], "Paused")
    assert rig.look(topic(delete=True, deleting=True), held="the cluster hibernates").steps == []


@pytest.mark.parametrize(
    "change",
    [
        {"topics": 1},
        {"lags": [{"topic": "T"}]},
        {"lags": [{"topic": "T", "group": "g", "queues": [[0, 1, "x"]]}]},
        {"topics": {"T": {"config": {}, "queues": [[0, 1], ["x", 2]]}}},
        {"topics": {"T": {"config": {"readQueueNums": "many"}, "queues": []}}},
        {"consumers": None},
    ],
)
def test_tables_of_another_form_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(BadTables):
        BrokerTables("a", Broker("a").json() | change).topic("T")
    with pytest.raises(BadTables):
        BrokerTables("a", None)


@pytest.mark.parametrize("deleting", [False, True])
def test_messages_wait_for_a_consumer_group_that_was_away_since_the_broker_group_is_there(
    pair: Rig, deleting: bool
) -> None:
    wanted = WantedTopic("t", "T", queues=4, delete=True)
    pair.settle(wanted)
    pair.brokers["a"].read("T", "away")
    for number in range(2):
        pair.brokers["b"].send("T", number)
    pair.brokers["b"].read("T", "present")
    wanted = replace(wanted, deleting=True) if deleting else replace(wanted, queues=2, generation=2)
    for _ in range(3):
        found = pair.settle(wanted)
        pair.now += 100
    assert "away has not read them" in found.results["t"].synced.message
    pair.brokers["b"].read("T", "away")
    for _ in range(3):
        found = pair.settle(wanted)
        pair.now += 100
    assert found.results["t"].synced.reason == ("Deleted" if deleting else "AsWanted")


@pytest.mark.parametrize("mark", ["+", "_"])
def test_a_topic_stays_while_pop_consumers_retry_its_messages(rig: Rig, mark: str) -> None:
    wanted = WantedTopic("t", "T", queues=1, delete=True, deleting=True)
    broker = rig.brokers["a"]
    broker.topics["T"] = broker.topics[f"%RETRY%g{mark}T"] = TopicConfig("T", 1, 1)
    broker.send("T", 0)
    broker.read("T", "g")
    broker.send(f"%RETRY%g{mark}T", 0)
    found = rig.settle(wanted)
    assert "T" in broker.topics
    assert "1 messages are unread" in found.results["t"].synced.message
    broker.read(f"%RETRY%g{mark}T", "g")
    rig.settle(wanted)
    assert "T" not in broker.topics
