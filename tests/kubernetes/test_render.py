"""The objects of thousands of generated clusters: Kubernetes' requirements, and invariants for every spec."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from gantry_broker.config import BrokerConfig, NameServerConfig
from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.api.manifest import load_manifest
from gantry_operator.plan.plan import plan
from gantry_operator.platforms.kubernetes import names
from gantry_operator.platforms.kubernetes.manifests.desired_objects import OperatorSettings, key, render
from gantry_operator.platforms.kubernetes.manifests.external import endpoints
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.present import present

SETTINGS = OperatorSettings(broker_image="gantry-broker:test", namespace="gantry-system")
ROOT = Path(__file__).parents[2]
DNS = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")

group_names = st.from_regex(r"[a-z][a-z0-9]{0,14}", fullmatch=True).filter(
    lambda n: n not in ("namesrv", "master", "external", "config", "admin", "analytics", "broker", "proxy")
)
cluster_names = st.from_regex(r"[a-z]([-a-z0-9]{0,30}[a-z0-9])?", fullmatch=True)


PROXIES = [
    None,
    {},
    {"replicas": 0},
    {"tls": {"mode": "Disabled"}},
    {"tls": {"secretName": "own"}, "external": {"type": "NodePort", "host": "{name}.x", "unprotected": True}},
    {"autoscaling": {"maxReplicas": 5}},
]


@st.composite
def clusters(draw: st.DrawFn) -> BrokerCluster:
    groups = draw(st.lists(group_names, min_size=1, max_size=4, unique=True))
    members = {g: draw(st.integers(1, 5)) for g in groups}
    spec: dict[str, Any] = {
        "brokerGroups": [{"name": g, "members": members[g]} for g in groups],
        "nameServers": {"replicas": draw(st.integers(1, 5))},
        "replication": draw(st.sampled_from(["Sync", "Async"])),
        "flush": draw(st.sampled_from(["Sync", "Async"])),
        "minInSyncReplicas": draw(st.integers(1, min(members.values()))),
        "placement": {
            "spread": draw(st.sampled_from(["Preferred", "Required", "None"])),
            "topologySpread": draw(st.sampled_from([[], [{"topologyKey": "rack"}]])),
            "tolerations": draw(st.sampled_from([[], [{"key": "mq", "operator": "Exists"}]])),
            "nodeSelector": draw(st.sampled_from([{}, {"disk": "ssd"}])),
        },
        "storage": draw(st.sampled_from([{"size": "1Gi"}, {"size": "20Gi", "className": "fast"}])),
        "imagePullSecrets": draw(st.sampled_from([[], ["registry"]])),
        "mode": draw(st.sampled_from(["MasterSlave", "Raft"])) if min(members.values()) >= 3 else "MasterSlave",
        "external": draw(st.sampled_from([None, {"type": "NodePort", "host": "{name}.x"}, {"type": "LoadBalancer"}])),
    }
    spec["security"] = {"tls": {"mode": draw(st.sampled_from(["Disabled", "Permissive", "Required"]))}}
    spec["proxy"] = draw(st.sampled_from(PROXIES))
    if spec["external"] is not None:
        spec["external"] |= {"unprotected": True}
    cluster = BrokerCluster.make(draw(cluster_names), draw(st.sampled_from(["default", "mq"])), **spec)
    cluster.metadata.uid = "b7a7"
    return cluster


def test_the_durable_example_is_spread_over_nodes_and_zones() -> None:
    objects = rendered(load_manifest(ROOT / "examples" / "durable.yaml"))
    pod = by_key(objects)["StatefulSet", names.group_set("orders", "b")]["spec"]["template"]["spec"]
    labels = {"matchLabels": names.selector("orders", names.BROKER, "b")}
    assert pod["topologySpreadConstraints"] == [
        {
            "topologyKey": "topology.kubernetes.io/zone",
            "maxSkew": 1,
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": labels,
        }
    ]
    apart = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert apart == [{"topologyKey": "kubernetes.io/hostname", "labelSelector": labels}]


def rendered(cluster: BrokerCluster, **more: Any) -> list[dict[str, Any]]:
    p = plan(cluster)
    outside = {e.name: f"{e.name}.x:30000" for e in endpoints(cluster, p)} if cluster.spec.external else None
    return render(cluster, p, SETTINGS, external_addresses=outside, **more)


def by_key(objects: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    return {key(o): o for o in objects}


@settings(max_examples=400, deadline=None)
@given(clusters())
def test_invariants_of_every_cluster(cluster: BrokerCluster) -> None:
    objects = rendered(cluster)
    assert max(Counter(key(o) for o in objects).values()) == 1, "two objects of one name"
    assert objects == rendered(cluster), "rendering twice gives the same"
    json.dumps(objects)
    found = by_key(objects)
    for o in objects:
        meta = o["metadata"]
        assert len(meta["name"]) <= 63
        assert DNS.fullmatch(meta["name"]), meta["name"]
        assert meta["namespace"] == cluster.namespace
        assert [r["uid"] for r in meta["ownerReferences"]] == ["b7a7"]
        assert "finalizers" not in meta, "nolar/kopf 664: two operators that fight over one"
        assert all(len(v) <= 63 for v in meta["labels"].values())
        if o["kind"] in ("StatefulSet", "Deployment"):
            check_set(cluster, o, found)
        if o["kind"] == "Service":
            check_service(o, objects)
    p = plan(cluster)
    for m in p.members:
        config = BrokerConfig.model_validate_json(
            found["ConfigMap", names.group_set(cluster.name, m.group)]["data"][f"{m.name}.json"]
        )
        assert (config.cluster, config.group, config.member, config.name) == (cluster.name, m.group, m.number, m.name)
        assert config.group_address.startswith(f"{cluster.name}-{m.group}-master.{cluster.namespace}.svc:")
        assert set(config.members) == ({g.number for g in p.group(m.group).members} if config.mode == "Raft" else set())
        assert len(config.name_servers) == cluster.spec.nameServers.replicas
        assert bool(config.listener_addresses) == (cluster.spec.external is not None)
    for s in p.name_servers:
        text = found["ConfigMap", names.name_servers(cluster.name)]["data"][f"{s.name}.json"]
        assert NameServerConfig.model_validate_json(text).name == s.name


def check_set(cluster: BrokerCluster, o: dict[str, Any], found: dict[tuple[str, str], dict[str, Any]]) -> None:
    spec, template = o["spec"], o["spec"]["template"]
    # The pod label that the StatefulSet controller adds is "<name>-<ten characters>".
    assert len(o["metadata"]["name"]) <= 52
    selector = spec["selector"]["matchLabels"].items()
    assert selector <= template["metadata"]["labels"].items()
    assert ("Service", spec.get("serviceName", o["metadata"]["name"])) in found
    pod = template["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    volumes = {v["name"] for v in pod["volumes"]} | {
        c["metadata"]["name"] for c in spec.get("volumeClaimTemplates", [])
    }
    for c in pod["containers"]:
        assert c["securityContext"]["readOnlyRootFilesystem"] is True
        assert c["securityContext"]["allowPrivilegeEscalation"] is False
        assert c["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert {m["name"] for m in c["volumeMounts"]} == volumes
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert c[probe]["httpGet"]["port"] in {p["name"] for p in c["ports"]}
        live = c["livenessProbe"]
        assert live["periodSeconds"] * live["failureThreshold"] >= 60, "load must not look like death"
    for v in pod["volumes"]:
        if "configMap" in v:
            assert ("ConfigMap", v["configMap"]["name"]) in found
    affinity = pod.get("affinity", {}).get("podAntiAffinity", {})
    assert bool(affinity) == (cluster.spec.placement.spread != "None")
    # A changed proxy starts beside the former one, which needs a place.
    assert ("requiredDuringSchedulingIgnoredDuringExecution" in affinity) == (
        cluster.spec.placement.spread == "Required" and o["kind"] == "StatefulSet"
    )
    # Each group is spread by itself: the peers are the pods of this StatefulSet and no others.
    spread = pod.get("topologySpreadConstraints", [])
    assert [c["topologyKey"] for c in spread] == [t.topologyKey for t in cluster.spec.placement.topologySpread]
    assert all(c["labelSelector"]["matchLabels"].items() == selector for c in spread)
    if "volumeClaimTemplates" in spec:
        assert spec["updateStrategy"] == {"type": "OnDelete"}
        assert spec["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Retain", "whenScaled": "Retain"}


def check_service(o: dict[str, Any], objects: list[dict[str, Any]]) -> None:
    """A Service leads to existing pods, by their ports."""
    pod_name = "statefulset.kubernetes.io/pod-name"
    wanted = {k: v for k, v in o["spec"]["selector"].items() if k not in (names.ROLE_LABEL, pod_name)}
    pods = [
        s["spec"]["template"]
        for s in objects
        if s["kind"] in ("StatefulSet", "Deployment")
        and wanted.items() <= s["spec"]["template"]["metadata"]["labels"].items()
    ]
    assert pods, o["metadata"]["name"]
    ports = {p["name"] for t in pods for c in t["spec"]["containers"] for p in c["ports"]}
    assert {p["targetPort"] for p in o["spec"]["ports"]} <= ports


@settings(max_examples=100, deadline=None)
@given(clusters(), st.integers(1, 4))
def test_growing_restarts_no_member(cluster: BrokerCluster, more: int) -> None:
    """More members and more groups do not change existing pods."""
    grown = cluster.model_copy(deep=True)
    for g in grown.spec.brokerGroups:
        g.members += more
    before, after = by_key(rendered(cluster)), by_key(rendered(grown))
    for k, o in before.items():
        if k[0] == "StatefulSet":
            assert after[k]["spec"]["template"] == o["spec"]["template"]
            assert (
                after[k]["spec"]["volumeClaimTemplates"] == o["spec"]["volumeClaimTemplates"]
                if k[1] != names.name_servers(cluster.name)
                else True
            )
    assert set(before) <= set(after)


def test_a_changed_setting_makes_other_pods() -> None:
    def template(**broker: Any) -> dict[str, Any]:
        cluster = BrokerCluster.make("demo", brokerGroups=[{"name": "a"}], broker=broker)
        template: dict[str, Any] = by_key(rendered(cluster))["StatefulSet", "demo-a"]["spec"]["template"]
        return template

    assert template() == template(deleteWhen="04")
    assert template() != template(deleteWhen="05")


def test_a_master_whose_probes_fail_keeps_its_clients() -> None:
    """ionfury/homelab 1591: under load a readiness probe may fail; that must not cut clients off from the master."""
    outside = {"type": "NodePort", "host": "node.example.com", "unprotected": True}
    found = by_key(rendered(BrokerCluster.make("demo", brokerGroups=[{"name": "a"}], external=outside)))
    for name in ("demo-a-master", "demo-a", names.external_service("demo-a")):
        assert found["Service", name]["spec"]["publishNotReadyAddresses"] is True, name


def test_members_that_are_leaving_keep_their_config() -> None:
    cluster = BrokerCluster.make("demo", brokerGroups=[{"name": "a", "members": 1}])
    found = by_key(rendered(cluster, replicas={"a": 3}))
    assert found["StatefulSet", "demo-a"]["spec"]["replicas"] == 3
    assert set(found["ConfigMap", "demo-a"]["data"]) == {"demo-a-0.json", "demo-a-1.json", "demo-a-2.json"}


def test_without_external_addresses_only_services_are_made() -> None:
    cluster = BrokerCluster.make(
        "demo", brokerGroups=[{"name": "a"}], external={"type": "LoadBalancer", "unprotected": True}
    )
    assert {o["kind"] for o in render(cluster, plan(cluster), SETTINGS)} == {
        "ServiceAccount",
        "NetworkPolicy",
        "Service",
    }


OUTSIDE = {"type": "NodePort", "host": "h", "unprotected": True}


@pytest.mark.parametrize(("first", "second"), [(("demo", "a"), ("demo-a", "b")), (("x", "y"), ("x-y", "x"))])
def test_two_clusters_never_make_the_same_object(first: tuple[str, str], second: tuple[str, str]) -> None:
    """The master of one and the groups of the other have look-alike names."""
    one, two = (BrokerCluster.make(n, brokerGroups=[{"name": g}], external=OUTSIDE) for n, g in (first, second))
    assert not set(by_key(rendered(one))) & set(by_key(rendered(two)))


@settings(max_examples=100, deadline=None)
@given(clusters(), clusters())
def test_no_two_clusters_of_a_namespace_share_an_object(one: BrokerCluster, two: BrokerCluster) -> None:
    if one.name != two.name:
        assert not set(by_key(rendered(one))) & set(by_key(rendered(two)))


def admitted(objects: list[dict[str, Any]]) -> dict[tuple[str, int], list[dict[str, Any]] | None]:
    """By policy and port: who may connect; None: everybody."""
    return {
        (o["metadata"]["name"], port["port"]): rule.get("from")
        for o in objects
        if o["kind"] == "NetworkPolicy"
        for rule in o["spec"]["ingress"]
        for port in rule["ports"]
    }


CLIENT_PORTS = (names.NAME_SERVER_PORT, names.NAME_SERVER_EXTERNAL_PORT, names.BROKER_PORT)


def test_every_pod_has_policies_for_all_of_its_ports() -> None:
    """A pod that no policy selects would be open, and a port that no policy names is closed."""
    cluster = BrokerCluster.make("demo", "mq", brokerGroups=[{"name": "a"}, {"name": "b"}], proxy={})
    objects = rendered(cluster)
    policies = [o["spec"] for o in objects if o["kind"] == "NetworkPolicy"]
    assert all(p["policyTypes"] == ["Ingress"] for p in policies)
    for obj in objects:
        if obj["kind"] not in ("StatefulSet", "Deployment"):
            continue
        template = obj["spec"]["template"]
        labels = template["metadata"]["labels"].items()
        chosen = [p for p in policies if p["podSelector"]["matchLabels"].items() <= labels]
        named = {port["port"] for p in chosen for rule in p["ingress"] for port in rule["ports"]}
        listening = {p["containerPort"] for c in template["spec"]["containers"] for p in c["ports"]}
        assert listening <= named, obj["metadata"]["name"]


def test_everybody_reaches_the_ports_for_clients_unless_the_spec_names_some() -> None:
    closed = {"allowedClients": [{"namespaceSelector": {"matchLabels": {"team": "shop"}}, "podSelector": {}}]}
    everybody = admitted(rendered(BrokerCluster.make("demo", "mq", brokerGroups=[{"name": "a"}])))
    assert [everybody["demo-broker", port] for port in CLIENT_PORTS] == [None] * 3
    some = admitted(rendered(BrokerCluster.make("demo", "mq", brokerGroups=[{"name": "a"}], security=closed)))
    system = {"matchLabels": {"kubernetes.io/metadata.name": "gantry-system"}}
    operator = {"namespaceSelector": system, "podSelector": {"matchLabels": {names.NAME_LABEL: names.OPERATOR_NAME}}}
    console = {"namespaceSelector": system, "podSelector": {"matchLabels": {names.NAME_LABEL: names.CONSOLE_NAME}}}
    members = {"podSelector": {"matchLabels": {names.CLUSTER_LABEL: "demo"}}}
    tables = {"podSelector": {"matchLabels": {names.TABLES_LABEL: "demo"}}}
    for port in CLIENT_PORTS:
        assert some["demo-broker", port] == [*closed["allowedClients"], members, operator, console, tables]


def test_the_proxies_port_for_clients_is_for_the_same_ones() -> None:
    closed = {"allowedClients": [{"namespaceSelector": {"matchLabels": {"team": "shop"}}, "podSelector": {}}]}
    marked = {"matchLabels": {names.MONITORING_LABEL: "true"}}
    system = {"matchLabels": {"kubernetes.io/metadata.name": "gantry-system"}}
    operator = {"namespaceSelector": system, "podSelector": {"matchLabels": {names.NAME_LABEL: names.OPERATOR_NAME}}}
    for security, clients in (({}, None), (closed, closed["allowedClients"])):
        cluster = BrokerCluster.make("demo", "mq", brokerGroups=[{"name": "a"}], security=security, proxy={})
        found = admitted(rendered(cluster))
        assert found["demo-proxy", names.PROXY_PORT] == clients
        assert found["demo-proxy", names.PROXY_HTTP_PORT] == [
            operator, {"namespaceSelector": marked}, {"podSelector": marked},
        ]  # fmt: skip


def test_clients_may_be_a_network_without_a_part_of_it() -> None:
    block = {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}
    cluster = BrokerCluster.make("demo", "mq", brokerGroups=[{"name": "a"}], security={"allowedClients": [block]})
    assert present(admitted(rendered(cluster))["demo-broker", names.BROKER_PORT])[0] == block


def test_http_is_for_operator_console_members_reports_and_monitoring() -> None:
    found = admitted(rendered(BrokerCluster.make("demo", "mq", brokerGroups=[{"name": "a"}])))
    marked = {"matchLabels": {names.MONITORING_LABEL: "true"}}
    system = {"matchLabels": {"kubernetes.io/metadata.name": "gantry-system"}}
    for port in (names.BROKER_HTTP_PORT, names.NAME_SERVER_HTTP_PORT):
        assert found["demo-broker", port] == [
            {"podSelector": {"matchLabels": {names.CLUSTER_LABEL: "demo"}}},
            {"namespaceSelector": system, "podSelector": {"matchLabels": {names.NAME_LABEL: names.OPERATOR_NAME}}},
            {"namespaceSelector": system, "podSelector": {"matchLabels": {names.NAME_LABEL: names.CONSOLE_NAME}}},
            {"podSelector": {"matchLabels": {names.REPORT_LABEL: "demo"}}},
            {"namespaceSelector": marked},
            {"podSelector": marked},
        ]


INTERNAL = {names.BROKER_REPLICATION_PORT, names.NAME_SERVER_REGISTRATION_PORT}


@settings(max_examples=100, deadline=None)
@given(clusters())
def test_the_ports_between_members_are_for_members(cluster: BrokerCluster) -> None:
    objects = rendered(cluster)
    open_to = admitted(objects)
    brokers = {"podSelector": {"matchLabels": names.selector(cluster.name, names.BROKER)}}
    assert open_to[names.name_servers(cluster.name), names.NAME_SERVER_REGISTRATION_PORT] == [brokers]
    for group in cluster.spec.brokerGroups:
        members = {"podSelector": {"matchLabels": names.selector(cluster.name, names.BROKER, group.name)}}
        policy = names.group_set(cluster.name, group.name)
        assert open_to[policy, names.BROKER_REPLICATION_PORT] == [members]
    assert len([1 for _, port in open_to if port in INTERNAL]) == 1 + len(cluster.spec.brokerGroups)
    for obj in objects:
        if obj["kind"] == "Service":
            ports = {p["port"] for p in obj["spec"]["ports"]} & INTERNAL
            one_server = "statefulset.kubernetes.io/pod-name" in obj["spec"].get("selector", {})
            headless = obj["spec"].get("clusterIP") == "None"
            public = obj["metadata"]["name"].endswith("-external")
            assert bool(ports) == (not public and (one_server or headless)), obj["metadata"]["name"]
        if obj["kind"] == "StatefulSet":
            pod = obj["spec"]["template"]["spec"]
            assert {"name": "admin", "secret": {"secretName": names.admin_secret(cluster.name)}} in pod["volumes"]


def test_configs_name_the_ports_between_members_and_the_token() -> None:
    cluster = BrokerCluster.make("demo", "mq", brokerGroups=[{"name": "a", "members": 3}], mode="Raft")
    maps = [o["data"] for o in rendered(cluster) if o["kind"] == "ConfigMap"]
    texts = {name: text for data in maps for name, text in data.items()}
    broker = BrokerConfig.model_validate_json(texts["demo-a-1.json"])
    server = NameServerConfig.model_validate_json(texts["demo-namesrv-0.json"])
    assert broker.replication_address == "demo-a-1.demo-a.mq.svc:10912"
    assert broker.members[2] == "demo-a-2.demo-a.mq.svc:10912"
    assert (broker.member_address, broker.replication_port) == ("demo-a-1.demo-a.mq.svc:10911", 10912)
    assert broker.name_servers[0] == "demo-namesrv-0.mq.svc:9876"
    assert broker.registration_addresses[0] == "demo-namesrv-0.mq.svc:9878"
    assert (server.cluster, server.registration_port) == ("demo", 9878)
    assert str(broker.token_file) == str(server.token_file) == "/etc/gantry-admin/token"
