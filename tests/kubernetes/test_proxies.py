"""Proxies for gRPC: their objects, and the operator's work on them over an API server in memory."""

from __future__ import annotations

import asyncio
import base64
import itertools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from gantry_broker.access.table import read_table
from gantry_broker.proxy.config import ProxyConfig
from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.api.status import ProxyRow, ProxyStatus
from gantry_operator.cluster.status import proxy_events
from gantry_operator.plan.plan import plan
from gantry_operator.platforms.kubernetes import names
from gantry_operator.platforms.kubernetes.manifests import external, proxies
from gantry_operator.platforms.kubernetes.manifests.desired_objects import OperatorSettings, key, render
from gantry_operator.platforms.kubernetes.objects.certificates import holders

from tests.kubernetes.fake_api import FakeApi
from tests.kubernetes.test_cluster_controller import CLUSTER, change, kept
from tests.support.present import present
from tests.support.running import until

GROUPS = [{"name": "a", "members": 3}]
SETTINGS = OperatorSettings("gantry-broker:test", namespace="ops")


def cluster(**spec: Any) -> BrokerCluster:
    made = BrokerCluster.make("demo", "mq", brokerGroups=GROUPS, **spec)
    made.metadata.uid = "b7a7"
    return made


def rendered(made: BrokerCluster, **more: Any) -> dict[tuple[str, str], dict[str, Any]]:
    return {key(o): o for o in render(made, plan(made), SETTINGS, **more)}


def config(made: BrokerCluster) -> ProxyConfig:
    return ProxyConfig.model_validate_json(rendered(made)["ConfigMap", "demo-proxy"]["data"][proxies.CONFIG])


def mounts(made: BrokerCluster) -> dict[str, str]:
    """The Secret behind each folder."""
    pod = rendered(made)["Deployment", "demo-proxy"]["spec"]["template"]["spec"]
    secrets = {v["name"]: v["secret"]["secretName"] for v in pod["volumes"] if "secret" in v}
    found = {m["mountPath"]: m["name"] for m in pod["containers"][0]["volumeMounts"]}
    return {path: secrets[name] for path, name in found.items() if name in secrets}


def test_without_proxies_nothing_is_made_for_them() -> None:
    for spec in ({}, {"proxy": {"replicas": 0}}):
        made = cluster(**spec)
        assert not [k for k in rendered(made) if k[1].startswith("demo-proxy")]
        assert names.PROXY not in holders(made, plan(made), {})
        assert proxies.kept_secrets(made) == []


def test_proxies_change_nothing_of_other_pods() -> None:
    """Who adds proxies to a running cluster restarts no broker."""
    for tls in ({}, {"internal": False}, {"mode": "Required"}):
        before, after = (rendered(cluster(security={"tls": tls}, **more)) for more in ({}, {"proxy": {}}))
        assert all(after[k] == o for k, o in before.items())


@pytest.mark.parametrize(
    ("tls", "own", "mode", "certificate", "authorities", "secrets"),
    [
        ({}, {}, "Permissive", "/etc/gantry-tls", None, {"/etc/gantry-tls": "demo-proxy-tls"}),
        ({"internal": False}, {}, "Permissive", "/etc/gantry-tls", None, {"/etc/gantry-tls": "demo-proxy-tls"}),
        ({}, {"mode": "Disabled"}, None, None, None, {"/etc/gantry-tls": "demo-proxy-tls"}),
        ({"internal": False}, {"mode": "Disabled"}, None, None, None, {}),
        (
            {"mode": "Required"}, {}, "Required", "/etc/gantry-tls", "/etc/gantry-tls/ca.crt",
            {"/etc/gantry-tls": "demo-proxy-tls"},
        ),
        (
            {"mode": "Required"}, {"secretName": "public"}, "Required", "/etc/gantry-grpc-tls",
            "/etc/gantry-tls/ca.crt",
            {"/etc/gantry-tls": "demo-proxy-tls", "/etc/gantry-grpc-tls": "public"},
        ),
        (
            {"mode": "Required", "issuer": "Secret", "secretName": "theirs"}, {}, "Required", "/etc/gantry-client-tls",
            "/etc/gantry-client-tls/ca.crt",
            {"/etc/gantry-client-tls": "theirs", "/etc/gantry-tls": "demo-proxy-tls"},
        ),
        (
            {"mode": "Permissive", "internal": False, "issuer": "Secret", "secretName": "theirs"}, {"mode": "Disabled"},
            None, None, "/etc/gantry-client-tls/ca.crt", {"/etc/gantry-client-tls": "theirs"},
        ),
        (
            {"mode": "Permissive", "issuer": "Secret", "secretName": "theirs"}, {"mode": "Disabled"}, None, None,
            "/etc/gantry-client-tls/ca.crt",
            {"/etc/gantry-client-tls": "theirs", "/etc/gantry-tls": "demo-proxy-tls"},
        ),
    ],
)  # fmt: skip
def test_certificates(
    tls: dict[str, Any], own: dict[str, Any], mode: str | None, certificate: str | None, authorities: str | None,
    secrets: dict[str, str],
) -> None:  # fmt: skip
    """What clients see, what proxies verify brokers by, and the Secrets behind it."""
    made = cluster(security={"tls": tls}, proxy={"tls": own})
    found = config(made)
    assert (None if found.tls is None else found.tls.mode) == mode
    assert (None if found.tls is None else str(found.tls.cert_file.parent)) == certificate
    assert (None if found.broker_tls is None else str(found.broker_tls.ca_file)) == authorities
    common = {
        proxies.TABLE_DIR: "demo-proxy-table", proxies.USER_DIR: "demo-proxy-user", "/etc/gantry-admin": "demo-admin",
    }  # fmt: skip
    assert mounts(made) == common | secrets
    assert (names.PROXY in holders(made, plan(made), {})) == ("demo-proxy-tls" in secrets.values())


@pytest.mark.parametrize("internal", [True, False])
def test_the_http_interface_has_tls_as_that_of_members(internal: bool) -> None:
    made = cluster(security={"tls": {"internal": internal}}, proxy={"tls": {"mode": "Disabled"}})
    found = config(made).internal_tls
    assert (None if found is None else str(found.cert_file.parent)) == ("/etc/gantry-tls" if internal else None)
    objects = rendered(made)
    template = objects["Deployment", "demo-proxy"]["spec"]["template"]
    (container,) = template["spec"]["containers"]
    form = "https" if internal else "http"
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["scheme"] == form.upper()
    assert template["metadata"]["annotations"][names.HTTP_SCHEME] == form  # for the chart's PodMonitor
    written = objects["ConfigMap", "demo-proxy"]["data"]["proxy.json"]
    assert ("internal_tls" in written) == internal, "a proxy of an older image refuses what it does not know"
    assert (names.PROXY in holders(made, plan(made), {})) == internal


def test_client_certificates_are_asked_for_and_shown() -> None:
    made = cluster(security={"tls": {"mode": "Required", "clientCertificates": "Required"}}, proxy={})
    found = config(made)
    assert present(found.tls).client_certificates == "Required"
    assert str(present(found.broker_tls).cert_file) == "/etc/gantry-tls/tls.crt"


def test_a_change_of_the_authentication_restarts_no_proxy() -> None:
    """The access table brings it."""
    templates = [
        rendered(cluster(security={"authentication": mode}, proxy={}))["Deployment", "demo-proxy"]["spec"]["template"]
        for mode in ("Enabled", "Permissive", "Disabled")
    ]
    assert templates[0] == templates[1] == templates[2]
    other = rendered(cluster(proxy={"tls": {"mode": "Required"}}))["Deployment", "demo-proxy"]["spec"]["template"]
    assert other != templates[0]


def test_an_autoscaler_that_does_nothing_is_said() -> None:
    made = cluster(proxy={"autoscaling": {"maxReplicas": 3}})
    begun = datetime(2026, 1, 1, tzinfo=UTC)
    why = "the HPA was unable to compute the replica count: no metrics returned from resource metrics API"
    condition = {"type": "ScalingActive", "status": "False", "reason": "FailedGetResourceMetric", "message": why,
                 "lastTransitionTime": "2026-01-01T00:00:00Z"}  # fmt: skip
    live = {"status": {"conditions": [condition]}}
    late = begun + timedelta(seconds=200)
    assert proxies.not_scaled(made, live, late) == f"the number of proxies does not follow their load: {why}"
    assert proxies.not_scaled(made, live, begun + timedelta(seconds=60)) == "", "its first figures take a minute"
    for other in ({"status": "True"}, {"reason": "ScalingDisabled"}, {"lastTransitionTime": "x"}, {"type": "Limited"}):
        assert proxies.not_scaled(made, {"status": {"conditions": [condition | other]}}, late) == ""
    assert proxies.not_scaled(made, None, late) == proxies.not_scaled(cluster(), live, late) == ""


def test_a_proxy_keeps_within_its_memory() -> None:
    assert config(cluster(proxy={})).memory_limit_bytes == 512 << 20
    assert config(cluster(proxy={"resources": {"limits": {"memory": "1Gi"}}})).memory_limit_bytes == 1 << 30


def test_the_autoscaler_keeps_its_number() -> None:
    made = cluster(proxy={"replicas": 3, "autoscaling": {"minReplicas": 2, "maxReplicas": 6}})
    wanted = {None: 3, 5: 5, 1: 2, 9: 6}
    for running, replicas in wanted.items():
        found = rendered(made, running_proxies=running)
        assert found["Deployment", "demo-proxy"]["spec"]["replicas"] == replicas
        assert found["HorizontalPodAutoscaler", "demo-proxy"]["spec"]["maxReplicas"] == 6
    fixed = rendered(cluster(proxy={"replicas": 3}), running_proxies=5)
    assert fixed["Deployment", "demo-proxy"]["spec"]["replicas"] == 3
    assert ("HorizontalPodAutoscaler", "demo-proxy") not in fixed


def test_a_stopping_pod_has_time_to_leave_the_service_and_to_drain() -> None:
    made = cluster(proxy={})
    spec = rendered(made)["Deployment", "demo-proxy"]["spec"]
    assert spec["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    pod = spec["template"]["spec"]
    leave_s = int(pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] > leave_s + config(made).drain_s


def test_an_address_outside() -> None:
    outside = {"type": "NodePort", "host": "{name}.example.com", "unprotected": True}
    made = cluster(proxy={"external": outside})
    service = rendered(made, pinned_ports={"demo-proxy-external": 31_000})["Service", "demo-proxy-external"]
    assert service["spec"]["ports"] == [
        {"name": "grpc", "port": 8081, "targetPort": "grpc", "protocol": "TCP", "nodePort": 31_000}
    ]
    services = {"demo-proxy-external": service}
    address = external.proxy_address(made, services)
    assert address == "demo-proxy.example.com:31000"
    hosts = holders(made, plan(made), {"demo-proxy": address})[names.PROXY].hosts
    assert {"demo-proxy.example.com", "demo-proxy.mq.svc", "demo-proxy.mq.svc.cluster.local"} <= set(hosts)


def test_events_say_what_clients_notice() -> None:
    def seen(ready: int, replicas: int = 2) -> ProxyStatus:
        return ProxyStatus(replicas=replicas, readyReplicas=ready, address="demo-proxy.mq.svc:8081")

    def reasons(*states: ProxyStatus | None) -> list[str]:
        return [reason for a, b in itertools.pairwise(states) for _, reason, _ in proxy_events(a, b)]

    assert reasons(None, seen(0), seen(1), seen(2), seen(2), None) == ["ProxiesReady", "ProxiesRemoved"]
    assert reasons(seen(2), seen(1), seen(2)) == ["ProxiesReady"]
    assert reasons(seen(2), seen(1), seen(0), seen(0)) == ["NoProxyReady"]
    assert reasons(None, None) == []
    assert reasons(seen(2), seen(0, 0), seen(0, 0), seen(2)) == ["ProxiesReady"], "the cluster slept"


def test_rows_and_progress() -> None:
    made = cluster(proxy={})
    deployment = rendered(made)["Deployment", "demo-proxy"]
    deployment["metadata"]["generation"] = 3
    assert proxies.progress(made, deployment) == "proxies: 0 of 2 are as the spec says"
    deployment["status"] = {"observedGeneration": 3, "updatedReplicas": 2, "replicas": 3}
    assert proxies.progress(made, deployment) == "proxies: 2 of 2 are as the spec says"
    deployment["status"] = {"observedGeneration": 3, "updatedReplicas": 2, "replicas": 2}
    assert proxies.progress(made, deployment) == ""
    ready = {"type": "Ready", "status": "True"}
    pods: list[dict[str, Any]] = [
        {
            "metadata": {"name": "demo-proxy-b"},
            "spec": {"nodeName": "n1"},
            "status": {"podIP": "fd00::1", "conditions": [ready]},
        },
        {
            "metadata": {"name": "demo-proxy-a"},
            "spec": {},
            "status": {"containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff"}}}]},
        },
        {"metadata": {"name": "demo-proxy-c", "deletionTimestamp": "now"}, "spec": {}, "status": {}},
    ]
    status = proxies.status(made, deployment, pods, {})
    assert status is not None
    assert status.members[0].reason.startswith("ImagePullBackOff")
    status.members[0].reason = ""
    assert status == ProxyStatus(
        replicas=2,
        readyReplicas=1,
        selector=",".join(f"{k}={v}" for k, v in sorted(deployment["spec"]["selector"]["matchLabels"].items())),
        address="demo-proxy.mq.svc:8081",
        members=[
            ProxyRow(name="demo-proxy-a"),
            ProxyRow(name="demo-proxy-b", ready=True, address="[fd00::1]:8081", node="n1"),
        ],
    )


# ---- over an API server in memory


SPEC = CLUSTER.model_dump(mode="json", exclude_none=True)["spec"]
WITH_PROXIES = SPEC | {"proxy": {"replicas": 2}}


def table_in(fake: FakeApi) -> Any:
    secret = fake.get("Secret", "demo-proxy-table")
    return None if secret is None else read_table(base64.b64decode(secret["data"][proxies.TABLE_KEY]))


def proxy_objects(fake: FakeApi) -> set[tuple[str, str]]:
    return {(kind, name) for kind, _, name in fake.objects if name.startswith("demo-proxy") and kind != "Pod"}


def pod(name: str) -> dict[str, Any]:
    meta = {"name": name, "namespace": "mq", "labels": names.labels("demo", names.PROXY), "uid": name}
    spec = {"volumes": [{"name": "table", "secret": {"secretName": "demo-proxy-table"}}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec, "status": {}}


async def settle(check: Callable[[], bool]) -> None:
    await until(check, timeout_s=20)


async def test_proxies_get_a_user_and_the_table_and_go_with_the_field(fake: FakeApi) -> None:
    fake.put(pod("demo-proxy-x"))
    async with kept(fake, WITH_PROXIES) as controller:
        await settle(lambda: fake.get("Deployment", "demo-proxy") is not None)
        user = fake.get("Secret", "demo-proxy-user")
        assert user is not None, "before the pods that mount it"
        assert base64.b64decode(user["data"]["accessKey"]) == b"gantry-proxy"
        found = {u.name: u for u in table_in(fake).users}
        assert found["gantry-proxy"].super
        assert base64.b64decode(user["data"]["secretKey"]).decode() in found["gantry-proxy"].keys
        await settle(
            lambda: names.MOUNTED_FILES in fake.objects["Pod", "mq", "demo-proxy-x"]["metadata"]["annotations"]
        )
        first = fake.objects["Pod", "mq", "demo-proxy-x"]["metadata"]["annotations"][names.MOUNTED_FILES]

        fake.remove("Secret", "mq", "demo-proxy-table")
        await settle(lambda: table_in(fake) is not None)
        fake.remove("PodDisruptionBudget", "mq", "demo-proxy")
        controller.look_again()
        await settle(lambda: fake.get("PodDisruptionBudget", "demo-proxy") is not None)

        change(controller, fake, WITH_PROXIES | {"security": {"authentication": "Permissive"}})
        await settle(lambda: table_in(fake).mode == "Permissive")
        await settle(
            lambda: fake.objects["Pod", "mq", "demo-proxy-x"]["metadata"]["annotations"][names.MOUNTED_FILES] != first
        )
        everything = proxy_objects(fake)
        change(controller, fake, SPEC)
        await settle(lambda: not proxy_objects(fake))
        await asyncio.sleep(0.6)
        assert not proxy_objects(fake), "nothing comes back"
        kinds = {kind for kind, _ in everything}
        assert kinds >= {"ConfigMap", "Deployment", "NetworkPolicy", "PodDisruptionBudget", "Secret", "Service"}
