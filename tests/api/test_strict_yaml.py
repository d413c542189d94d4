"""YAML in which nothing is ignored silently: keys that are written twice, and documents of unknown kinds."""

from __future__ import annotations

from pathlib import Path

import pytest
from gantry_broker.access.plain_acl import read_plain_acl
from gantry_broker.access.strict_yaml import NotYaml, load_all
from gantry_operator.api.manifest import ManifestError, load_documents, load_manifest, load_users

CLUSTER = """apiVersion: gantry.dev/v1alpha1
kind: BrokerCluster
metadata: {name: demo}
spec:
  nameServers: {replicas: 1}
  brokerGroups: [{name: a, members: 1}]
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\nb: 2\na: 3\n", "a is written twice, in lines 1 and 3"),
        ("x:\n  - {k: 1, k: 2}\n", "k is written twice, in line 2"),
        ("a: 1\n---\nb: {c: 1,\n  'c': 2}\n", "c is written twice, in lines 3 and 4"),
        ('{"a": 1, "a": 1}', "a is written twice"),
        ("a: [", "is not YAML in line"),
        ("[" * 20_000, "is not YAML"),
        ("a: 2026-99-99", "is not YAML"),
        ("!!python/object/apply:os.system ['true']", "is not YAML"),
    ],
)
def test_what_is_ambiguous_is_refused(text: str, said: str) -> None:
    with pytest.raises(NotYaml, match=said):
        load_all(text)


def test_merges_and_equal_keys_of_different_mappings_are_fine() -> None:
    text = "base: &b {x: 1, y: 2}\none: {<<: *b, x: 3}\ntwo: {<<: [*b, *b], x: 4}\n---\nbase: 1\n1: a\n'1': b\n"
    one, two = load_all(text)
    assert one["one"] == {"x": 3, "y": 2}
    assert two == {"base": 1, 1: "a", "1": "b"}


def test_every_file_with_users_topics_and_clusters_is_read_so(tmp_path: Path) -> None:
    file = tmp_path / "twice.yaml"
    file.write_text(CLUSTER + "  mode: Raft\n  brokerGroups: [{name: b, members: 1}]\n")
    for load in (load_manifest, load_documents, lambda path: load_users(path, "demo")):
        with pytest.raises(ManifestError, match="brokerGroups is written twice, in lines 6 and 8: write it once"):
            load(file)
    with pytest.raises(ValueError, match="secretKey is written twice, in line 2") as refused:
        read_plain_acl("accounts:\n- {accessKey: a, secretKey: hidden-one, secretKey: hidden-two}\n")
    assert "hidden" not in str(refused.value)


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (
            "apiVersion: gantry.dev/v1alpha1\nkind: BrokerTopc",
            r"document 2\): kind is \"BrokerTopc\": .*mean BrokerTopic",
        ),
        (
            "apiVersion: gantry.dev/v1alpha1\nkind: Topic",
            "write one of BrokerCluster, BrokerUser, BrokerTopic, Consumer",
        ),
        ("apiVersion: v1\nkind: ConsumerGrup", "did you mean ConsumerGroup"),
        ("apiVersion: gantry.dev/v1alpha1\nmetadata: {name: x}", r"document 2\): kind: is missing"),
        ("- a list", "write a mapping"),
    ],
)
def test_a_document_of_an_unknown_kind_is_refused(tmp_path: Path, document: str, said: str) -> None:
    file = tmp_path / "two.yaml"
    file.write_text(f"{CLUSTER}---\n{document}\n")
    for load in (load_manifest, load_documents):
        with pytest.raises(ManifestError, match=said):
            load(file)


def test_documents_of_other_apis_are_for_kubernetes(tmp_path: Path) -> None:
    file = tmp_path / "two.yaml"
    file.write_text(f"{CLUSTER}---\napiVersion: v1\nkind: Secret\nmetadata: {{name: x}}\n")
    assert load_documents(file).cluster.name == "demo"
