"""The plan and the configs derived from it."""

from __future__ import annotations

from pathlib import Path

import pytest
from gantry_broker.config import BrokerConfig, NameServerConfig
from gantry_operator.api.cluster import BrokerCluster, with_fence
from gantry_operator.plan.plan import plan
from gantry_operator.plan.process_config import (
    ArchiveFiles,
    BrokerAddresses,
    broker_config,
    name_server_config,
    restarts,
    text_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st

CLUSTER = BrokerCluster.make(
    "demo", "mq", brokerGroups=[{"name": "a", "members": 3}, {"name": "b", "members": 1}], broker={"deleteWhen": "05"}
)


def test_names_and_numbers() -> None:
    p = plan(CLUSTER)
    assert [s.name for s in p.name_servers] == ["demo-namesrv-0", "demo-namesrv-1"]
    assert [m.name for m in p.members] == ["demo-a-0", "demo-a-1", "demo-a-2", "demo-b-0"]
    assert [m.number for m in p.group("a").members] == [0, 1, 2]
    assert p.member("a-1") == p.member("demo-a-1") == p.group("a").members[1]


def test_unknown_names_are_answered_with_the_known_ones() -> None:
    with pytest.raises(KeyError, match="but a, b"):
        plan(CLUSTER).group("c")
    with pytest.raises(KeyError, match="demo-b-0"):
        plan(CLUSTER).member("demo-b-1")


def test_members_are_named_by_themselves_and_by_their_group() -> None:
    p = plan(CLUSTER)
    assert p.members_named([]) == list(p.members)
    assert [m.name for m in p.members_named(["demo-a-1", "b", "a-1"])] == ["demo-a-1", "demo-b-0"]
    with pytest.raises(KeyError, match="demo-b-0"):
        p.members_named(["a", "c"])


def test_broker_config_says_what_the_spec_says(tmp_path: Path) -> None:
    member = plan(CLUSTER).member("demo-a-1")
    addresses = BrokerAddresses(
        10911, 10921, 10912, "demo-a-1:10912", "demo-a-1:10911", "demo-a-master:10911", None,
        {"external": {"group": "h:1", "member": "h:2"}},
    )  # fmt: skip
    config = broker_config(
        CLUSTER, member, addresses, listen_host="0.0.0.0", data_dir=tmp_path, name_servers=["ns:9876"],
        registration_addresses=["ns:9878"], token_file=tmp_path / "token",
        archives=ArchiveFiles("uid-1", lambda use, secret: tmp_path / use / secret),
    )  # fmt: skip
    assert (config.group, config.member, config.name, config.min_in_sync) == ("a", 1, "demo-a-1", 1)
    assert (config.replication, config.flush, config.settings.deleteWhen) == ("Sync", "Async", "05")
    assert (config.replication_port, config.replication_address) == (10912, "demo-a-1:10912")
    assert (config.name_servers, config.registration_addresses) == (["ns:9876"], ["ns:9878"])
    assert config.listener_addresses["external"]["member"] == "h:2"
    file = tmp_path / "broker.json"
    file.write_text(config.model_dump_json())
    assert BrokerConfig.load(file) == config


def test_a_process_of_an_older_image_reads_an_archive_with_defaults(tmp_path: Path) -> None:
    """It refuses fields that it does not know."""
    member = plan(CLUSTER).member("demo-a-1")
    addresses = BrokerAddresses(10911, 10921, 10912, "a:10912", "a:10911", "m:10911", None, {})
    files = ArchiveFiles("uid", lambda use, name: tmp_path / name)
    for cache, written in (("1Gi", False), ("2Gi", True)):
        cluster = BrokerCluster.make(
            "demo", "mq", brokerGroups=[{"name": "a", "members": 3}],
            archive={"url": "s3://b/p", "readCache": cache},
        )  # fmt: skip
        config = broker_config(
            cluster, member, addresses, listen_host="0.0.0.0", data_dir=tmp_path, name_servers=["n:9876"],
            registration_addresses=["n:9878"], token_file=tmp_path / "t", archives=files,
        )  # fmt: skip
        for text in (text_of(config), restarts(config)):
            assert ("read_cache_bytes" in text) == written
            assert "read_rate_bytes" not in text
            assert "max_local_lag_bytes" in text


def test_a_fence_changes_the_file_of_one_member_and_restarts_none(tmp_path: Path) -> None:
    """A process follows the field. A process of an older image reads a file without it."""
    files = ArchiveFiles("uid", lambda use, name: tmp_path / name)
    addresses = BrokerAddresses(10911, 10921, 10912, "a:10912", "a:10911", "m:10911", None, {})
    fenced = with_fence(with_fence(CLUSTER, "demo-a-1", True), "demo-b-0", True)
    assert with_fence(fenced, "demo-b-0", False).fenced == {"demo-a-1"}
    for name, written in (("demo-a-0", False), ("demo-a-1", True)):
        before, after = (
            broker_config(
                cluster, plan(cluster).member(name), addresses, listen_host="0.0.0.0", data_dir=tmp_path,
                name_servers=["n:9876"], registration_addresses=["n:9878"], token_file=tmp_path / "t", archives=files,
            )
            for cluster in (CLUSTER, fenced)
        )  # fmt: skip
        assert "fenced" not in text_of(before)
        assert ("fenced" in text_of(after)) is after.fenced is written
        assert restarts(before) == restarts(after)


def test_name_server_config(tmp_path: Path) -> None:
    config = name_server_config(
        CLUSTER, plan(CLUSTER).name_servers[1], listen_host="127.0.0.1", port=9876, listeners={"external": 9877},
        registration_port=9878, token_file=tmp_path / "token",
    )  # fmt: skip
    file = tmp_path / "namesrv.json"
    file.write_text(config.model_dump_json())
    assert NameServerConfig.load(file) == config
    assert (config.name, config.listeners[0].port) == ("demo-namesrv-1", 9877)
    assert (config.cluster, config.registration_port) == ("demo", 9878)


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 8), st.integers(1, 9), st.integers(1, 9))
def test_growing_renames_nothing(groups: int, members: int, more: int) -> None:
    def names(count: int, size: int) -> list[tuple[str, int]]:
        spec = [{"name": f"g{i}", "members": size} for i in range(count)]
        return [(m.name, m.number) for m in plan(BrokerCluster.make("demo", brokerGroups=spec)).members]

    small, large = names(groups, members), names(groups + 1, max(members, more))
    assert set(small) <= set(large)
    assert len(set(large)) == len(large)
