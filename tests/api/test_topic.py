"""BrokerTopic and ConsumerGroup: what is refused, with the field and the value to write, and the definitions.

e2e/test_r_topics.py gives the same wrong resources to a real API server.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gantry_operator.api.consumer_group import ConsumerGroup
from gantry_operator.api.manifest import ManifestError, load_documents, parse_group, parse_topic
from gantry_operator.api.topic import BrokerTopic

ROOT = Path(__file__).parents[2]
WRONG = json.loads((ROOT / "tests/data/wrong_topics.json").read_text())


@pytest.mark.parametrize("wrong", WRONG, ids=[f"{w['path']}-{n}" for n, w in enumerate(WRONG)])
def test_wrong_resources_are_explained(wrong: dict[str, Any]) -> None:
    parse = parse_topic if wrong["document"]["kind"] == "BrokerTopic" else parse_group
    with pytest.raises(ManifestError) as caught:
        parse(wrong["document"])
    assert any(p.path == wrong["path"] and wrong["words"] in p.message for p in caught.value.problems), caught.value


def test_thirty_wrong_resources() -> None:
    assert len(WRONG) >= 30


def test_names_and_attributes() -> None:
    plain = BrokerTopic.make("orders", "demo")
    named = BrokerTopic.make("orders", "demo", topicName="Orders_1", messageType="Delay", config={"a.b": "X"})
    assert BrokerTopic.make("orders", "demo", retention="2h").attributes == {"retention.ms": "7200000"}
    compacted = BrokerTopic.make("orders", "demo", cleanupPolicy="Compact", tombstoneRetention="1h")
    assert compacted.attributes == {"cleanup.policy": "COMPACTION", "delete.retention.ms": "3600000"}
    assert BrokerTopic.make("orders", "demo", cleanupPolicy="Delete").attributes == {"cleanup.policy": "DELETE"}
    assert (plain.topic, plain.attributes) == ("orders", {})
    assert (named.topic, named.attributes) == ("Orders_1", {"a.b": "X", "message.type": "DELAY"})
    assert ConsumerGroup.make("billing", "demo").group == "billing"
    assert ConsumerGroup.make("billing", "demo", groupName="Bill").group == "Bill"


def test_they_are_in_the_file_of_their_cluster(tmp_path: Path) -> None:
    text = (ROOT / "examples/topics.yaml").read_text()
    found = load_documents(ROOT / "examples/topics.yaml")
    assert [t.topic for t in found.topics] == ["Orders"]
    assert [g.name for g in found.groups] == ["billing"]
    file = tmp_path / "x.yaml"
    file.write_text(text.replace("cluster: shop\n  retryMax", "cluster: other\n  retryMax"))
    with pytest.raises(ManifestError, match="the file is about shop"):
        load_documents(file)
    file.write_text(f"{text}---\n" + text.split("---\n")[1])
    with pytest.raises(ManifestError, match="two documents of kind BrokerTopic have it"):
        load_documents(file)
