"""The files with the topics and consumer groups of a local cluster: a newer write holds, a former status does not."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gantry_operator.actions.errors import ActionError
from gantry_operator.actions.local_resources import LocalResources, keep_local
from gantry_operator.actions.target import LoggedRemarks
from gantry_operator.api.consumer_group import ConsumerGroup
from gantry_operator.api.topic import BrokerTopic
from gantry_operator.platforms.local import topics
from gantry_operator.platforms.local.folder import ClusterFolder
from gantry_operator.platforms.local.topic_store import LocalTopicStore
from gantry_operator.topics.model import RecordedState, Result, State

from tests.support.present import present

KINDS: list[Any] = [BrokerTopic, ConsumerGroup]


@pytest.fixture
def folder(tmp_path: Path) -> ClusterFolder:
    return ClusterFolder(tmp_path)


def kept(folder: ClusterFolder, kind: str) -> Any:
    return topics.load_resources(folder).of(kind)["x"]  # type: ignore[arg-type]


@pytest.mark.parametrize("make", KINDS)
async def test_what_is_written_after_a_deletion_holds_and_is_said(folder: ClusterFolder, make: Any) -> None:
    wanted = make.make("x", "t", deletionPolicy="Delete")
    documents = ([wanted], []) if make is BrokerTopic else ([], [wanted])
    assert keep_local(folder, *documents) == []
    said: list[str] = []
    remarks: Any = SimpleNamespace(note=said.append)
    commands = LocalResources(folder, "t", remarks)
    await commands.delete(wanted.kind, "x")
    assert kept(folder, wanted.kind).metadata.deletionTimestamp is not None
    before = kept(folder, wanted.kind).metadata
    (back,) = keep_local(folder, *documents)
    assert f"{wanted.kind} x was being deleted; it is written again, so it stays" in back
    after = kept(folder, wanted.kind).metadata
    assert after.deletionTimestamp is None
    assert (after.generation, after.uid) == (before.generation + 1, before.uid)
    with pytest.raises(ActionError, match="exists already"):
        await commands.create(make.make("x", "t"))
    await commands.delete(wanted.kind, "x")
    await commands.create(make.make("x", "t"))
    assert kept(folder, wanted.kind).metadata.deletionTimestamp is None
    assert [text for text in said if "so it stays" in text] == said != []


async def test_a_resource_that_is_created_again_has_nothing_of_the_former_ones_status(folder: ClusterFolder) -> None:
    store = LocalTopicStore(folder, lambda *_: None)
    keep_local(folder, [BrokerTopic.make("x", "t", queuesPerGroup=8)], [])
    found = present(store.observe())
    good = State("True", "Created")
    await store.report(found, {"x": Result(good, good, RecordedState("Created", 1, {"a": (8, 8, "ReadWrite")}))}, {})
    assert present(LocalTopicStore(folder, lambda *_: None).observe()).topics[0].recorded.generation == 1
    await LocalResources(folder, "t", LoggedRemarks()).delete("BrokerTopic", "x")
    keep_local(folder, [BrokerTopic.make("x", "t", queuesPerGroup=2)], [])
    assert topics.described(folder, "BrokerTopic")[0]["status"] == {}
    for one in (store, LocalTopicStore(folder, lambda *_: None)):
        found = present(one.observe())
        assert found.topics[0].recorded == RecordedState()


async def test_a_topic_whose_table_is_to_be_dropped_waits_for_that(folder: ClusterFolder) -> None:
    keep_local(folder, [BrokerTopic.make("x", "t", table={"deletionPolicy": "Delete"})], [])
    await LocalResources(folder, "t", LoggedRemarks()).delete("BrokerTopic", "x")
    assert kept(folder, "BrokerTopic").metadata.deletionTimestamp is not None
    keep_local(folder, [BrokerTopic.make("x", "t", table={})], [])
    await LocalResources(folder, "t", LoggedRemarks()).delete("BrokerTopic", "x")
    assert not topics.load_resources(folder).of("BrokerTopic")


async def test_a_deletion_that_is_done_removes_no_resource_that_was_written_again(folder: ClusterFolder) -> None:
    store = LocalTopicStore(folder, lambda *_: None)
    keep_local(folder, [BrokerTopic.make("x", "t", deletionPolicy="Delete")], [])
    await LocalResources(folder, "t", LoggedRemarks()).delete("BrokerTopic", "x")
    found = present(store.observe())
    assert found.topics[0].deleting
    keep_local(folder, [BrokerTopic.make("x", "t", deletionPolicy="Delete")], [])
    gone = State("False", "Deleted")
    await store.report(found, {"x": Result(gone, gone)}, {})
    assert kept(folder, "BrokerTopic").metadata.deletionTimestamp is None
