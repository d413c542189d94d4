"""helm install, kubectl apply, Available; a client sends and reads, inside and from the developer's machine."""

from __future__ import annotations

import time

from gantry_broker.client import Producer
from gantry_operator.platforms.kubernetes.targets.target import KubeTarget
from kube import SYSTEM, Cluster, Figure, Load, apply, calm, example, get, kubectl, run, until


def test_from_apply_to_available(namespace: str, figure: Figure) -> None:
    apply(namespace, example("quickstart.yaml"))
    begun = time.monotonic()
    cluster = Cluster(namespace)
    until("available", lambda: cluster.condition("Available")["status"] == "True", 120, 0.2)
    figure("quickstart: apply to Available, s", round(time.monotonic() - begun, 1))
    status = cluster.wait_running()
    assert status["readyMembers"] == "3/3"
    assert [m["role"] for m in status["members"]].count("Master") == 1
    assert all(m.get("inSync") and m["node"] for m in status["members"])
    cluster.first_epoch()
    assert len({m["node"] for m in status["members"]}) > 1, "members lie on different nodes"
    assert "finalizers" not in cluster.object()["metadata"]


def test_what_kubectl_shows(demo: Cluster) -> None:
    def line() -> bool:
        shown = kubectl("-n", demo.namespace, "get", "bc", "demo", "--no-headers").split()
        return shown[:5] == ["demo", "Running", "3/3", demo.master_name(), "MasterSlave"]

    until("one line has the state and the master", line)
    wanted = (
        "a message was sent to every group and read back",
        "GroupBootstrapped",
        "Max Offset",
        "Last Transition Time",
    )

    def lacks() -> list[str]:
        described = kubectl("-n", demo.namespace, "describe", "bc", "demo")
        return [words for words in wanted if words not in described]

    until("the description has more", lambda: not lacks())


def test_a_client_in_a_pod_sends_and_reads(demo: Cluster, figure: Figure) -> None:
    result = Load(demo, "calm", 20).result()
    figure("quickstart: calm load in a pod", result)
    calm(result, 300)


async def test_a_client_outside_goes_through_the_api_server(demo: Cluster) -> None:
    """As `gantry produce --context ...` does, without a Service of its own."""
    async with KubeTarget(namespace=demo.namespace) as target:
        assert target.name == "demo"
        credentials = await target.super_user()
        async with Producer(await target.name_servers(), credentials=credentials) as producer:
            results = [await producer.send("Outside", f"message {i}".encode(), timeout=60) for i in range(20)]
        assert {r.status.name for r in results} == {"SEND_OK"}
        assert len(await target.members_http()) == 3
        assert any(e["reason"] == "GroupBootstrapped" for e in await target.events())


def test_pods_keep_the_restricted_standard(demo: Cluster) -> None:
    """The namespace accepts them under the strictest Pod Security Standard, and they may not use the API."""
    kubectl("label", "namespace", demo.namespace, "pod-security.kubernetes.io/enforce=restricted", "--overwrite")
    victim = next(p for p in demo.pods() if p["metadata"]["labels"].get("gantry.dev/role") == "slave")
    uid = victim["metadata"]["uid"]
    try:
        kubectl("-n", demo.namespace, "delete", "pod", victim["metadata"]["name"], "--wait=false")
        until("it is back", lambda: uid not in str(demo.uids()) and len(demo.pods()) == 3)
        demo.wait_running()
    finally:
        kubectl("label", "namespace", demo.namespace, "pod-security.kubernetes.io/enforce-")
    for pod in demo.pods():
        assert pod["spec"]["automountServiceAccountToken"] is False
        assert not [v for v in pod["spec"]["volumes"] if "projected" in v]


def test_explain_and_helm_test(operator: None) -> None:
    explained = kubectl("explain", "bc.spec.failover")
    assert "detectionTimeout" in explained
    assert "Allowed silence of a master" in explained
    assert "Succeeded" in run("helm", "test", "gantry", "-n", SYSTEM, "--timeout", "8m", timeout=540)


def test_metrics_of_operator_and_brokers(demo: Cluster) -> None:
    script = "import urllib.request,sys; print(urllib.request.urlopen(sys.argv[1]).read().decode())"

    def leaders() -> list[str]:
        pods = get(SYSTEM, "pods", selector="app.kubernetes.io/name=gantry-operator")
        url = "http://127.0.0.1:8080/metrics"
        texts = [
            kubectl("-n", SYSTEM, "exec", pod["metadata"]["name"], "--", "python", "-c", script, url) for pod in pods
        ]
        return [text for text in texts if "gantry_operator_leader 1.0" in text]

    # On a busy machine the Lease can pass on between two questions.
    until("exactly one leads", lambda: len(leaders()) == 1)
    done = 'gantry_operator_reconciles_total{outcome="done"}'
    until("it has looked at a cluster", lambda: any(done in text for text in leaders()))
    broker = demo.master_name()
    verified = (
        "import ssl,urllib.request,sys; context=ssl.create_default_context(cafile='/etc/gantry-tls/ca.crt'); "
        "print(urllib.request.urlopen(sys.argv[1], context=context).read().decode())"
    )
    url = "https://127.0.0.1:10921/metrics"
    text = kubectl("-n", demo.namespace, "exec", broker, "--", "python", "-c", verified, url)
    assert "gantry_" in text
