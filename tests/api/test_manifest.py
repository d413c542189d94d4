"""Refused manifests and their messages: the path of the field, its value, and the value to write."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gantry_operator.api.cluster import SERVED, BrokerCluster
from gantry_operator.api.manifest import (
    ManifestError,
    load_manifest,
    parse_group,
    parse_manifest,
    parse_topic,
    parse_user,
)
from pydantic import BaseModel

ROOT = Path(__file__).parents[2]


def manifest(name: str = "demo", **spec: Any) -> dict[str, Any]:
    spec = {"brokerGroups": [{"name": "a", "members": 3}]} | spec
    return {"apiVersion": "gantry.dev/v1alpha1", "kind": "BrokerCluster", "metadata": {"name": name}, "spec": spec}


@pytest.mark.parametrize("path", sorted(ROOT.glob("examples/*.yaml")), ids=lambda p: p.name)
def test_every_example_is_valid(path: Path) -> None:
    assert load_manifest(path).spec.brokerGroups


def test_quickstart_is_two_name_servers_and_one_group_of_three() -> None:
    cluster = load_manifest(ROOT / "examples/quickstart.yaml")
    assert (cluster.name, cluster.spec.nameServers.replicas) == ("demo", 2)
    assert [(g.name, g.members) for g in cluster.spec.brokerGroups] == [("a", 3)]


KINDS = (("BrokerCluster", parse_manifest), ("BrokerTopic", parse_topic), ("ConsumerGroup", parse_group),
         ("BrokerUser", parse_user))  # fmt: skip


@pytest.mark.parametrize(("kind", "parse"), KINDS)
def test_both_versions_are_read_and_no_other(kind: str, parse: Callable[[Any], BaseModel]) -> None:
    document = {"kind": kind, "metadata": {"name": "demo"}, "spec": {"cluster": "demo"}}
    if kind == "BrokerCluster":
        document = manifest()
    alpha, beta = (parse(document | {"apiVersion": f"gantry.dev/{version}"}) for version in SERVED)
    assert alpha.model_dump(exclude={"apiVersion"}) == beta.model_dump(exclude={"apiVersion"})
    words = r"^apiVersion is \"gantry.dev/v1beta2\": write 'gantry.dev/v1alpha1' or 'gantry.dev/v1beta1'$"
    with pytest.raises(ManifestError, match=words):
        parse(document | {"apiVersion": "gantry.dev/v1beta2"})


BAD: list[tuple[dict[str, Any], str, str]] = [
    (manifest(replicaton="Sync"), "spec.replicaton", "did you mean replication?"),
    (manifest(replication="sync"), "spec.replication", "'Sync' or 'Async'"),
    (manifest(mode="Raft", brokerGroups=[{"name": "a", "members": 2}]), "spec.brokerGroups", "members: 3 or more"),
    (manifest(brokerGroups=[]), "spec.brokerGroups", "at least 1"),
    (manifest(brokerGroups=[{"name": "A"}]), "spec.brokerGroups[0].name", "lower-case letters"),
    (manifest(brokerGroups=[{"name": "master"}]), "spec.brokerGroups[0].name", "reserved"),
    (manifest(brokerGroups=[{"name": "a"}, {"name": "a"}]), "spec.brokerGroups", "its own name"),
    (manifest(brokerGroups=[{"name": "a", "members": 0}]), "spec.brokerGroups[0].members", "1 or more"),
    (manifest(brokerGroups=[{"members": 3}]), "spec.brokerGroups[0].name", "is missing"),
    (manifest(brokerGroups=[{"name": "a", "member": 3}]), "spec.brokerGroups[0].member", "did you mean members?"),
    (manifest(minInSyncReplicas=4), "spec.minInSyncReplicas", "at most the smallest brokerGroups[].members"),
    (manifest(broker={"deletewhen": "04"}), "spec.broker.deletewhen", "did you mean deleteWhen?"),
    (manifest(broker={"deleteWhen": 4}), "spec.broker.deleteWhen", "quote it"),
    (manifest(broker={"maxMessageSize": 1}), "spec.broker.maxMessageSize", "1024 or more"),
    (manifest(storage={"size": "10 GB"}), "spec.storage.size", "10Gi"),
    (manifest(storage={"size": "0Gi"}), "spec.storage.size", "above 0"),
    (manifest(resources={"limits": {"memroy": "1Gi"}}), "spec.resources.limits", "write cpu, memory"),
    *(
        (
            manifest(**{kind: {"resources": {part: {name: value}}}} if kind else {"resources": {part: {name: value}}}),
            f"spec.{kind + '.' if kind else ''}resources.{part}",
            words,
        )
        for kind, least in (("", "128Mi"), ("nameServers", "64Mi"), ("proxy", "128Mi"))
        for part, name, value, words in (
            ("limits", "memory", "4Ki", f"write at least {least}"),
            ("limits", "memory", "48Mi", f"write at least {least}"),
            ("limits", "memory", "512", f"write at least {least}"),
            ("limits", "memory", "512m", f"write at least {least}"),
            ("requests", "memory", "4Ki", "write at least 16Mi"),
            ("limits", "cpu", "1m", "write at least 50m"),
            ("requests", "cpu", "5000", "write at most 1024"),
            ("requests", "memory", "512Pi", "write at most 64Ti"),
        )
    ),
    *(
        (
            manifest(analytics={"resources": {pod: {"limits": {"memory": "48Mi"}}}}),
            f"spec.analytics.resources.{pod}.limits",
            "write at least 1Gi",
        )
        for pod in ("driver", "executor")
    ),
    (
        manifest(brokerGroups=[{"name": "a", "resources": {"limits": {"memory": "48Mi"}}}]),
        "spec.brokerGroups[0].resources.limits",
        "write at least 128Mi",
    ),
    (
        manifest(proxy={"resources": {"requests": {"cpu": "0"}}, "autoscaling": {"maxReplicas": 3}}),
        "spec.proxy.autoscaling",
        "needs resources.requests.cpu",
    ),
    (
        manifest(
            proxy={
                "autoscaling": {"maxReplicas": 3},
                "podTemplate": {"spec": {"containers": [{"name": "agent", "image": "x"}]}},
            }
        ),
        "spec.proxy.autoscaling",
        "agent of podTemplate requests no CPU",
    ),
    (manifest(resources={"limits": {"memory": "1 G"}}), "spec.resources.limits.memory", "512Mi"),
    (
        manifest(resources={"requests": {"memory": "2Gi"}, "limits": {"memory": "1Gi"}}),
        "spec.resources.requests",
        "lower requests or raise limits",
    ),
    (manifest(failover={"detectionTimeout": "1ms"}), "spec.failover.detectionTimeout", "from 1500ms to 5m"),
    (manifest(failover={"detectionTimeout": "1s"}), "spec.failover.detectionTimeout", "once a second"),
    (manifest(failover={"detectionTimeout": "fast"}), "spec.failover.detectionTimeout", "time span"),
    (manifest(external={"type": "NodePort"}), "spec.external", "host is missing"),
    (manifest(external={"type": "Ingress"}), "spec.external.type", "'NodePort' or 'LoadBalancer'"),
    (manifest(external={"type": "LoadBalancer", "host": "{pod}.x"}), "spec.external", "unknown field in braces"),
    (manifest(external={"type": "LoadBalancer"}), "spec.external", "external.unprotected: true"),
    (manifest(external={"type": "LoadBalancer"}, security={"tls": {"mode": "Permissive"}}), "spec.external", "TLS"),
    (
        manifest(
            external={"type": "LoadBalancer"}, security={"authentication": "Permissive", "tls": {"mode": "Required"}}
        ),
        "spec.external",
        "leave security.authentication at Enabled",
    ),
    (manifest(security={"tls": {"issuer": "Secret"}}), "spec.security.tls.secretName", "write secretName with issuer"),
    (manifest(security={"tls": {"secretName": "s"}}), "spec.security.tls.secretName", "write secretName with issuer"),
    (manifest(security={"tls": {"clientCertificates": "Optional"}}), "spec.security.tls.clientCertificates", "mode:"),
    (
        manifest(security={"tls": {"clientCertificates": "Required", "mode": "Permissive"}}),
        "spec.security.tls.clientCertificates",
        "write mode: Required",
    ),
    (manifest(security={"allowedClients": [{}]}), "spec.security.allowedClients[0]", "write either ipBlock"),
    (
        manifest(security={"allowedClients": [{"podSelector": {}, "ipBlock": {"cidr": "10.0.0.0/8"}}]}),
        "spec.security.allowedClients[0]",
        "write either ipBlock",
    ),
    (
        manifest(security={"allowedClients": [{"ipBlock": {"cidr": "everywhere"}}]}),
        "spec.security.allowedClients[0].ipBlock.cidr",
        "a network like",
    ),
    (manifest(proxy={"replicas": 65}), "spec.proxy.replicas", "64 or less"),
    (manifest(proxy={"replica": 2}), "spec.proxy.replica", "did you mean replicas?"),
    (manifest(brokerGroups=[{"name": "proxy"}]), "spec.brokerGroups[0].name", "reserved"),
    (
        manifest(proxy={"autoscaling": {"minReplicas": 3, "maxReplicas": 2}}),
        "spec.proxy.autoscaling.minReplicas",
        "higher maxReplicas",
    ),
    (manifest(proxy={"autoscaling": {}}), "spec.proxy.autoscaling.maxReplicas", "is missing"),
    (
        manifest(proxy={"autoscaling": {"maxReplicas": 2}, "resources": {"limits": {"cpu": "1"}}}),
        "spec.proxy.autoscaling",
        "cpu: 500m",
    ),
    (manifest(proxy={"autoscaling": {"maxReplicas": 2}, "replicas": 0}), "spec.proxy.replicas", "at least 1"),
    (manifest(proxy={"tls": {"mode": "Disabled", "secretName": "s"}}), "spec.proxy.tls.secretName", "write mode:"),
    (manifest(proxy={"external": {"type": "LoadBalancer"}}), "spec.proxy", "proxy.external.unprotected: true"),
    (
        manifest(
            proxy={"external": {"type": "LoadBalancer"}, "tls": {"mode": "Permissive"}},
            security={"tls": {"mode": "Required"}},
        ),
        "spec.proxy",
        "proxy.tls.mode: Required",
    ),
    (
        manifest(
            proxy={"tls": {"mode": "Permissive"}},
            security={"tls": {"mode": "Required", "clientCertificates": "Required"}},
        ),
        "spec.proxy",
        "write proxy.tls.mode: Required, or leave it out",
    ),
    (manifest(analytics={"schedule": "tomorrow"}), "spec.analytics.schedule", "minute, hour"),
    (manifest(analytics={"sparkConf": {"shuffle": "8"}}), "spec.analytics.sparkConf", "spark."),
    (manifest(analytics={"topics": ["a b"]}), "spec.analytics.topics", "wildcards"),
    (manifest(nameServers={"replicas": "two"}), "spec.nameServers.replicas", "whole number"),
    (manifest(name="Demo"), "(document)", "metadata.name is not usable"),
    (manifest(name="d" * 33), "(document)", "at most 32"),
    (manifest() | {"kind": "Broker"}, "kind", "'BrokerCluster'"),
    (manifest() | {"apiVersion": "v1"}, "apiVersion", "write 'gantry.dev/v1alpha1' or 'gantry.dev/v1beta1'"),
    (manifest() | {"apiVersion": "gantry.dev/v1"}, "apiVersion", "'gantry.dev/v1beta1'"),
    ({"kind": "BrokerCluster"}, "apiVersion", "is missing: write 'gantry.dev/v1alpha1' or 'gantry.dev/v1beta1'"),
]


@pytest.mark.parametrize(("document", "path", "words"), BAD, ids=[f"{p}-{i}" for i, (_, p, _) in enumerate(BAD)])
def test_bad_input_is_explained(document: dict[str, Any], path: str, words: str) -> None:
    with pytest.raises(ManifestError) as caught:
        parse_manifest(document, "demo.yaml")
    assert any(p.path == path and words in p.message for p in caught.value.problems), str(caught.value)
    assert str(caught.value).startswith("demo.yaml: ")


@pytest.mark.parametrize(
    ("unprotected", "security"),
    [
        (True, {}),
        (True, {"authentication": "Disabled"}),
        (False, {"tls": {"mode": "Required"}}),
        (False, {"authentication": "Enabled", "tls": {"mode": "Required", "clientCertificates": "Required"}}),
    ],
)
def test_addresses_outside_are_protected_or_twice_unprotected(unprotected: bool, security: dict[str, Any]) -> None:
    outside = {"type": "LoadBalancer", "unprotected": unprotected}
    assert parse_manifest(manifest(external=outside, security=security)).spec.external is not None


@pytest.mark.parametrize(
    ("proxy", "security"),
    [
        ({"tls": {"mode": "Required"}}, {}),
        ({}, {"tls": {"mode": "Required"}}),
        ({"tls": {"secretName": "public"}}, {"tls": {"mode": "Required", "clientCertificates": "Required"}}),
    ],
)
def test_an_address_outside_of_proxies_is_protected(proxy: dict[str, Any], security: dict[str, Any]) -> None:
    outside = proxy | {"external": {"type": "LoadBalancer"}}
    assert parse_manifest(manifest(proxy=outside, security=security)).spec.proxy is not None


def test_all_problems_are_reported_at_once() -> None:
    with pytest.raises(ManifestError) as caught:
        parse_manifest(manifest(replicaton="Sync", flush="Never", minInSyncReplicas=0))
    assert {p.path for p in caught.value.problems} == {"spec.replicaton", "spec.flush", "spec.minInSyncReplicas"}


def test_a_value_is_shown_beside_its_path() -> None:
    with pytest.raises(ManifestError, match=r'^spec\.flush is "Never": write .Async. or .Sync.'):
        parse_manifest(manifest(flush="Never"))


@pytest.mark.parametrize(
    ("text", "words"),
    [("", "holds nothing"), ("a: [", "is not YAML"), ("- 1", "write a mapping"), ("a: 1\n---\nb: 2", "is missing")],
)
def test_files_that_hold_no_cluster(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(text)
    with pytest.raises(ManifestError, match=words):
        load_manifest(file)


def test_other_documents_are_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("kind: Namespace\n---\n" + (ROOT / "examples/quickstart.yaml").read_text())
    assert load_manifest(file).name == "demo"


def test_additions_of_the_api_server_are_accepted(tmp_path: Path) -> None:
    """A stored object has defaults, managed fields and a status."""
    cluster = parse_manifest(manifest())
    stored = cluster.model_dump(mode="json", by_alias=True, exclude_none=True)
    stored["metadata"] |= {
        "uid": "u",
        "generation": 3,
        "managedFields": [{}],
        "annotations": {"gantry.dev/paused": "true"},
    }
    again = BrokerCluster.model_validate(stored)
    assert again.spec == cluster.spec
    assert again.paused
