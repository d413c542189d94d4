"""The drawn manifests break every rule of the CRDs, so the comparison with an API server (in `e2e/`) compares each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.api.consumer_group import ConsumerGroup
from pydantic import BaseModel, ValidationError

from tests.api import drawn_manifests, test_manifest, test_user

WRONG = json.loads((Path(__file__).parents[1] / "data" / "wrong_topics.json").read_text())
BY_FIELDS = {"requests has a value that is no amount", "limits has a value that is no amount"}
"""The models find these by the fields' types, and say so in other words."""


def test_every_rule_is_broken_by_a_manifest() -> None:
    tables = [b[0] for b in (*test_manifest.BAD, *test_user.BAD)] + [w["document"] for w in WRONG]
    known = [d for d in tables if isinstance(d, dict) and d.get("kind") in drawn_manifests.PARSERS]
    left = {m for m in drawn_manifests.messages() if m.split(":")[0] not in BY_FIELDS}
    assert len(left) > 60
    accepted = 0
    for document in (*known, *drawn_manifests.documents(3_000)):
        said = drawn_manifests.verdict(document)
        left = {message for message in left if message not in said}
        accepted += not said
    assert not left, "add a manifest that breaks the rule to `written` in drawn_manifests.py"
    assert accepted > 200, "right ones are drawn, too"


@pytest.mark.parametrize(
    ("model", "document"),
    [
        (BrokerCluster, test_manifest.manifest(minInSyncReplicas=True)),
        (BrokerCluster, test_manifest.manifest(minInSyncReplicas="1")),
        (BrokerCluster, test_manifest.manifest(broker={"enableMixedMessageType": 1})),
        (BrokerCluster, test_manifest.manifest(broker={"enableMixedMessageType": "yes"})),
        (BrokerCluster, test_manifest.manifest(resources={"requests": {"cpu": "-1"}})),
        (BrokerCluster, test_manifest.manifest(resources={"requests": {"cpu": "1e3"}})),
        (ConsumerGroup, {"spec": {"cluster": "demo", "broadcast": "true"}}),
    ],
)
def test_values_of_another_type_are_refused_as_the_api_server_refuses_them(
    model: type[BaseModel], document: dict[str, object]
) -> None:
    whole = {"apiVersion": "gantry.dev/v1beta1", "kind": model.__name__, "metadata": {"name": "demo"}} | document
    with pytest.raises(ValidationError):
        model.model_validate(whole)


@pytest.mark.parametrize("name", ["a\n", "a\nb", "\na"])
def test_a_name_of_an_attribute_is_one_line(name: str) -> None:
    meta = {"apiVersion": "gantry.dev/v1beta1", "kind": "BrokerTopic", "metadata": {"name": "orders"}}
    for config in ({name: "x"}, {"x": name}):
        assert drawn_manifests.verdict(meta | {"spec": {"cluster": "demo", "config": config}})
