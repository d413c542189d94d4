"""The route tables: pure, with time as an argument."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

import pytest
from gantry_broker.namesrv.routes import EXPIRE_MS, GRACE_MS, Fenced, NotHeld, Registration, RouteTable, WrongGroup
from gantry_broker.protocol.bodies import DataVersion, TopicConfig, TopicConfigs
from gantry_broker.protocol.codes import TopicFlag
from gantry_broker.protocol.plausible import MAX_EPOCH_JUMP, Implausible

from tests.support.present import present

GROUP_ADDRESS = "demo-a-master:10911"


def configs(*topics: str, version: int = 1, **options: int) -> TopicConfigs:
    return TopicConfigs({topic: TopicConfig(topic, 4, 4, **options) for topic in topics}, DataVersion(version, version))


def apache(
    broker_id: int = 0, address: str = "b:1", source: int = 1, cluster: str = "c", group: str = "a"
) -> Registration:
    return Registration(cluster, group, broker_id, address, source)


def ours(member: int, broker_id: int, epoch: int, source: int = -1) -> Registration:
    """A member of a group: as master with the group's address, otherwise with its own."""
    address = GROUP_ADDRESS if broker_id == 0 else f"demo-a-{member}:10911"
    return Registration("c", "a", broker_id, address, member if source < 0 else source, member=member, epoch=epoch)


def seen(table: RouteTable, topic: str = "T") -> dict[int, str] | None:
    route = table.route(topic)
    return route.brokers[0].addresses if route is not None else None


@pytest.fixture
def table() -> RouteTable:
    return RouteTable()


@pytest.fixture
def three(table: RouteTable) -> RouteTable:
    """A group of three members, of which the first leads."""
    table.register(ours(0, 0, 1), configs("T"), 0)
    table.register(ours(1, 2, 1), configs("T"), 0)
    table.register(ours(2, 3, 1), configs("T"), 0)
    return table


def test_a_route_has_queues_and_addresses_of_all_groups(table: RouteTable) -> None:
    table.register(apache(), configs("T", "U"), 0)
    table.register(apache(1, "b:2"), None, 0)
    table.register(apache(0, "d:1", group="d"), configs("T"), 0)
    route = present(table.route("T"))
    assert [(broker.name, broker.addresses) for broker in route.brokers] == [
        ("a", {0: "b:1", 1: "b:2"}),
        ("d", {0: "d:1"}),
    ]
    assert [(queue.broker, queue.read_queues) for queue in route.queues] == [("a", 4), ("d", 4)]
    assert table.route("nowhere") is None
    assert table.cluster_info().clusters == {"c": ["a", "d"]}
    assert sorted(table.topics()) == ["T", "U"]


def test_only_a_master_brings_topics(table: RouteTable) -> None:
    table.register(apache(1, "b:2"), configs("T"), 0)
    assert table.route("T") is None


def test_single_topics_of_a_foreign_broker_add_to_its_topics(table: RouteTable) -> None:
    table.register(apache(), configs("T"), 0)
    table.register(apache(), configs("U", version=2), 0)
    assert sorted(table.topics()) == ["T", "U"]


def test_gantry_brokers_register_all_topics(three: RouteTable) -> None:
    three.register(ours(0, 0, 1), configs("U", version=2), 5)
    assert three.topics() == ["U"]


def test_an_unchanged_version_changes_nothing(table: RouteTable) -> None:
    table.register(apache(), configs("T"), 0)
    table.register(apache(), configs("U"), 1)
    assert table.topics() == ["T"]
    table.register(apache(), configs("U", version=2), 2)
    assert table.topics() == ["T", "U"]


def perms(table: RouteTable, topic: str) -> list[int]:
    route = table.route(topic)
    return [] if route is None else [data.perm for data in route.queues]


@pytest.mark.parametrize("make", [apache, lambda: ours(0, 0, 1)], ids=["foreign", "ours"])
def test_a_permission_that_was_taken_stays_away_over_registrations(
    table: RouteTable, make: Callable[[], Registration]
) -> None:
    table.register(make(), configs("T"), 0)
    table.unwritable = {"a"}
    assert perms(table, "T") == [4]
    table.register(make(), configs("T", "New", version=2), 1)
    assert (perms(table, "T"), perms(table, "New")) == ([4], [4])
    table.unregister("a", 0, make().address, make().source, 2)
    table.register(make(), configs("T", version=3), 3)
    assert perms(table, "T") == [4]
    table.unwritable = {"b"}
    assert perms(table, "T") == [6]


def test_a_silent_broker_expires(table: RouteTable) -> None:
    table.register(apache(), configs("T"), 0)
    assert table.expire(EXPIRE_MS) == []
    assert table.expire(EXPIRE_MS + 1) == ["b:1"]
    assert table.route("T") is None


def test_a_broken_connection_ends_a_foreign_master_at_once(table: RouteTable) -> None:
    table.register(apache(source=7), configs("T"), 0)
    table.register(apache(1, "b:2", source=8), None, 0)
    assert table.connection_lost(7, 1) == ["b:1"]
    assert seen(table) == {1: "b:2"}


def test_the_end_of_an_old_connection_removes_no_broker(table: RouteTable) -> None:
    table.register(apache(source=7), configs("T"), 0)
    table.register(apache(source=9), configs("T"), 1)
    assert table.connection_lost(7, 2) == []
    assert seen(table) == {0: "b:1"}


def test_the_route_keeps_the_master_while_a_failover_runs(three: RouteTable) -> None:
    three.connection_lost(0, 1000)
    assert seen(three) == {0: GROUP_ADDRESS, 2: "demo-a-1:10911", 3: "demo-a-2:10911"}
    three.register(ours(1, 0, 2), configs("T"), 1400)
    assert seen(three) == {0: GROUP_ADDRESS, 3: "demo-a-2:10911"}, "its slave entry is gone"
    three.expire(1400 + GRACE_MS)
    assert seen(three) == {0: GROUP_ADDRESS, 3: "demo-a-2:10911"}


def test_a_master_without_a_successor_goes_after_the_grace(three: RouteTable) -> None:
    three.connection_lost(0, 1000)
    assert three.expire(1000 + GRACE_MS - 1) == []
    assert three.expire(1000 + GRACE_MS) == [GROUP_ADDRESS]
    assert seen(three) == {2: "demo-a-1:10911", 3: "demo-a-2:10911"}


def test_nothing_stays_when_the_whole_group_has_gone(three: RouteTable) -> None:
    for member in range(3):
        three.connection_lost(member, 1000)
    assert three.groups == {}


def test_a_farewell_of_the_master_keeps_the_address_too(three: RouteTable) -> None:
    assert three.unregister("a", 0, GROUP_ADDRESS, 0, 1000)
    assert seen(three) == {0: GROUP_ADDRESS, 2: "demo-a-1:10911", 3: "demo-a-2:10911"}
    assert three.unregister("a", 2, "demo-a-1:10911", 1, 1001)
    assert three.unregister("a", 3, "demo-a-2:10911", 2, 1002)
    assert three.groups == {}


def test_a_farewell_of_somebody_else_is_not_heard(three: RouteTable) -> None:
    assert not three.unregister("a", 2, "demo-a-2:10911", 2, 5)
    assert not three.unregister("b", 0, "x:1", 1, 5)


def test_the_farewell_of_a_former_master_does_not_end_its_successors_registration(table: RouteTable) -> None:
    """Both had the group's address as broker id 0; in a group of two nobody else would keep the route."""
    table.register(ours(0, 0, 1), configs("T"), 0)
    table.register(ours(1, 2, 1), configs("T"), 0)
    table.register(ours(1, 0, 2), configs("T"), 1000)
    assert not table.unregister("a", 0, GROUP_ADDRESS, 0, 1001)
    assert seen(table) == {0: GROUP_ADDRESS}
    assert table.groups["a"].entries[0].left_ms is None
    assert table.unregister("a", 0, GROUP_ADDRESS, 1, 1002)
    assert table.groups == {}


def test_a_foreign_broker_may_say_farewell_over_another_connection(table: RouteTable) -> None:
    """RocketMQ knows its brokers by their addresses alone."""
    table.register(apache(), configs("T"), 0)
    assert table.unregister("a", 0, "b:1", 99, 5)
    assert table.groups == {}


def test_a_demoted_master_leaves_its_address_to_its_successor(three: RouteTable) -> None:
    three.register(ours(0, 1, 2), configs("T"), 1000)
    assert seen(three) == {0: GROUP_ADDRESS, 1: "demo-a-0:10911", 2: "demo-a-1:10911", 3: "demo-a-2:10911"}
    three.register(ours(1, 0, 2), configs("T"), 1100)
    assert seen(three) == {0: GROUP_ADDRESS, 1: "demo-a-0:10911", 3: "demo-a-2:10911"}


def test_an_old_master_cannot_take_the_route_back(three: RouteTable) -> None:
    three.connection_lost(0, 1000)
    three.register(ours(1, 0, 2), configs("T"), 1400)
    with pytest.raises(Fenced, match="epoch 1 is over: group a has reached epoch 2"):
        three.register(ours(0, 0, 1, source=44), configs("Old", version=9), 1500)
    assert three.topics() == ["T"]
    three.register(ours(1, 0, 2), configs("T"), 2000)
    three.register(ours(0, 1, 2), configs("T"), 2001)


def test_epochs_from_a_slave_fence_no_master(three: RouteTable) -> None:
    three.register(ours(2, 3, 5), configs("T"), 10)
    three.register(ours(0, 0, 1), configs("U", version=2), 11)
    assert three.topics() == ["U"]


def test_the_fence_ends_with_the_connection_of_the_master_that_set_it(three: RouteTable) -> None:
    forged = ours(1, 0, 9, source=66)
    three.register(forged, configs("T"), 10)
    with pytest.raises(Fenced):
        three.register(ours(0, 0, 1), configs("T"), 11)
    three.connection_lost(66, 12)
    three.register(ours(0, 0, 1), configs("U", version=2), 13)
    assert three.topics() == ["U"]


@pytest.mark.parametrize(
    ("member", "broker_id", "epoch"),
    [(1, 0, 2**53 + 1), (1, 0, 2**63 - 1), (1, 0, -1), (1, 2, 2**63 - 1), (64, 0, 2), (-1, 0, 2)],
)
def test_a_registration_with_an_impossible_number_changes_nothing(
    three: RouteTable, member: int, broker_id: int, epoch: int
) -> None:
    registration = Registration("c", "a", broker_id, "x:1", 66, member=member, epoch=epoch)
    before = repr(three.groups)
    with pytest.raises(Implausible):
        three.register(registration, configs("Evil", version=9), 10)
    assert repr(three.groups) == before
    empty = RouteTable()
    with pytest.raises(Implausible):
        empty.register(registration, configs("Evil"), 10)
    assert empty.groups == {}


def test_an_epoch_that_cannot_follow_the_masters_is_refused(three: RouteTable) -> None:
    with pytest.raises(Implausible, match="cannot follow 1"):
        three.register(ours(1, 0, 2 + MAX_EPOCH_JUMP), configs("T"), 10)
    three.register(ours(1, 0, 1 + MAX_EPOCH_JUMP), configs("T"), 11)


def test_the_loss_of_a_replaced_masters_connection_changes_nothing(three: RouteTable) -> None:
    three.register(ours(1, 0, 2), configs("T"), 1400)
    assert three.connection_lost(0, 1500) == []
    assert seen(three) == {0: GROUP_ADDRESS, 3: "demo-a-2:10911"}


def test_a_foreign_slave_that_becomes_master_has_one_entry(table: RouteTable) -> None:
    table.register(apache(1, "b:2"), None, 0)
    table.register(apache(0, "b:2"), configs("T"), 1)
    assert seen(table) == {0: "b:2"}


def test_two_clusters_cannot_share_a_group_name(table: RouteTable) -> None:
    table.register(apache(), configs("T"), 0)
    with pytest.raises(WrongGroup, match="belongs to cluster c"):
        table.register(apache(address="x:1", cluster="other"), configs("T"), 1)


def test_listeners_give_their_own_addresses(table: RouteTable) -> None:
    registration = ours(0, 0, 1)
    registration.listeners = {"external": "203.0.113.7:30911"}
    table.register(registration, configs("T"), 0)
    table.register(ours(1, 2, 1), None, 0)
    route = present(table.route("T", "external"))
    assert route.brokers[0].addresses == {0: "203.0.113.7:30911"}, "the other member cannot be reached from there"
    assert table.cluster_info("external").brokers["a"].addresses == {0: "203.0.113.7:30911"}
    assert table.route("T", "elsewhere") is None


def test_topics_by_cluster_unit_and_system(table: RouteTable) -> None:
    table.register(apache(), configs("T", "U"), 0)
    table.register(apache(0, "d:1", cluster="e", group="d"), configs("V", sys_flag=TopicFlag.UNIT), 0)
    assert table.topics("e") == ["V"]
    assert [*chain(*table.unit_topics_in_parts(unit=True, subscribed=None))] == ["V"]
    assert sorted(chain(*table.unit_topics_in_parts(unit=False, subscribed=None))) == ["T", "U"]
    assert table.system_topics() == (["c", "a", "e", "d"], "b:1")
    assert table.delete_topic("V", "c") is False
    assert table.delete_topic("V", "e") is True
    assert table.route("V") is None


def test_a_broker_asks_whether_its_topics_are_known(table: RouteTable) -> None:
    assert table.touch("a", 0, "b:1", 0) is None
    table.register(apache(), configs("T", version=3), 0)
    assert table.touch("a", 0, "b:1", EXPIRE_MS) == DataVersion(3, 3)
    assert table.expire(EXPIRE_MS + 1) == []
    assert table.touch("a", 0, "other:1", EXPIRE_MS) is None


def test_changes_of_topics_are_taken_over_without_all_topics(table: RouteTable) -> None:
    table.register(ours(0, 0, 1), configs("T", "U", version=1), 0)
    since = DataVersion(1, 1)
    table.register_changes(ours(0, 0, 1), since, configs("V", version=2), ["U"], 5)
    assert sorted(table.topics()) == ["T", "V"]
    table.register_changes(ours(0, 0, 1), DataVersion(2, 2), configs(version=2), [], 6)
    assert sorted(table.topics()) == ["T", "V"], "a heartbeat without changes"
    assert table.touch("a", 0, GROUP_ADDRESS, 7) == DataVersion(2, 2)


@pytest.mark.parametrize("case", ["version", "source", "epoch", "left", "unknown", "deleted"])
def test_changes_count_only_on_what_this_connection_registered(table: RouteTable, case: str) -> None:
    if case != "unknown":
        table.register(ours(0, 0, 1), configs("T", version=1), 0)
        table.register(ours(1, 2, 1), configs("T", version=1), 0)
    if case == "left":
        table.connection_lost(0, 1)
    if case == "deleted":
        table.delete_topic("T")
    again = ours(0, 0, 2 if case == "epoch" else 1, source=9 if case == "source" else -1)
    since = DataVersion(7, 7) if case == "version" else DataVersion(1, 1)
    before = table.topics()
    with pytest.raises(NotHeld):
        table.register_changes(again, since, configs("V", version=2), [], 5)
    assert table.topics() == before
    table.register(again, configs("T", "V", version=2), 6)
    assert sorted(table.topics()) == ["T", "V"], "the whole registration that follows is taken over"
