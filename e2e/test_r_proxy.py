"""Proxies for gRPC with TLS and authentication, from outside: users, a killed proxy, a dead leader, removal."""

from __future__ import annotations

import base64
import itertools
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator

import grpc
import pytest
import yaml
from gantry_broker.client import Credentials
from gantry_broker.protocol.grpc_contract import Code
from kube import Cluster, Figure, Host, Lost, TooLate, apply, example, get, kubectl, run, unharmed, until, within

from tests.support.grpc_client import GrpcClient, Refused

PROXY = "app.kubernetes.io/component=proxy"
ATTEMPTS = 3
"""As the official clients try."""
GAP_S = 5.0
READ_S = 300.0
"""Seconds after which messages that are not read count as lost."""
TABLE_S = 15.0
"""Longest time until proxies know a change of a user, on a busy machine."""


@pytest.fixture(scope="module")
def served(namespace: str) -> Cluster:
    """examples/quickstart.yaml with TLS and two proxies, reached at the address of a node."""
    document = yaml.safe_load(example("quickstart.yaml"))
    nodes = get("default", "nodes")[0]["status"]["addresses"]
    host = next(a["address"] for a in nodes if a["type"] == "InternalIP")
    document["spec"]["security"] = {"tls": {"mode": "Required"}}
    document["spec"]["proxy"] = {"replicas": 2, "external": {"type": "NodePort", "host": host}}
    apply(namespace, yaml.safe_dump(document))
    cluster = Cluster(namespace)
    cluster.wait_running(240)
    for topic in ("begin", "shop-orders", "other", "plain", "killed-proxy", "killed-leader", "rolled"):
        # Clients of RocketMQ 5 send to topics that exist.
        run(sys.executable, "-m", "gantry_operator.cli", "topic", "create", topic, "-n", namespace)
    until("both proxies are ready", lambda: cluster.status()["proxy"]["readyReplicas"] == 2, 60)
    return cluster


@pytest.fixture(scope="module")
def ca(served: Cluster) -> bytes:
    return base64.b64decode(get(served.namespace, "secret", "demo-ca-cert")["data"]["ca.crt"])


@pytest.fixture(scope="module")
def connect(served: Cluster, ca: bytes, any_host: Host) -> Callable[..., GrpcClient]:
    """`connect(credentials)`: a client through the external address; default: the super user."""
    address = served.status()["proxy"]["external"]
    admin = served.credentials()

    def make(credentials: Credentials | None = admin) -> GrpcClient:
        return GrpcClient(address, credentials, ca)

    def reached() -> bool:
        with make() as client:
            try:
                client.send("begin", b"x")
            except grpc.RpcError as error:
                print(error)
                return False
            return True

    if not any_host.available and not reached():
        pytest.skip(
            f"this machine cannot connect to {address}, a node of the cluster that KUBECONFIG names: "
            "run it where the nodes can be reached, or without KUBECONFIG"
        )
    until(f"{address} serves gRPC", reached, 60, 1)
    return make


class GrpcLoad:
    """Sends through connections of its own, and knows what was acknowledged."""

    def __init__(self, connect: Callable[..., GrpcClient], topic: str, senders: int = 3) -> None:
        self.topic = topic
        self.promised: set[bytes] = set()
        self.errors: list[str] = []
        self.times: list[float] = []
        self._connect = connect
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._send, args=(n,), daemon=True) for n in range(senders)]
        for thread in self._threads:
            thread.start()
        until("the load begins", lambda: len(self.promised) > 20, 30, 0.1)

    def _send(self, sender: int) -> None:
        with self._connect() as client:
            for number in itertools.count():
                if self._stop.is_set():
                    return
                self._one(client, f"{sender}-{number}".encode())
                time.sleep(0.005)

    def _one(self, client: GrpcClient, body: bytes) -> None:
        said = ""
        for _ in range(ATTEMPTS):
            try:
                client.send(self.topic, body, timeout=3)
            except (grpc.RpcError, Refused) as error:
                said = str(error)
                time.sleep(0.2)
                continue
            self.promised.add(body)
            self.times.append(time.monotonic())
            return
        self.errors.append(said)

    def stop(self) -> dict[str, object]:
        """The figures. Raises Lost if an acknowledged message is missing."""
        self._stop.set()
        for thread in self._threads:
            thread.join(30)
        missing = set(self.promised)
        deadline = time.monotonic() + READ_S
        with self._connect() as client:
            while missing and time.monotonic() < deadline:
                try:
                    for message in client.receive(self.topic, f"reader-{self.topic}"):
                        missing.discard(message.body)
                        client.ack(self.topic, f"reader-{self.topic}", message, 30)
                except (grpc.RpcError, Refused) as error:
                    print(f"reading back: {error}")
                    time.sleep(1)
        if missing:
            raise Lost(f"{len(missing)} of {len(self.promised)} acknowledged messages")
        times = sorted(self.times)
        gap_s = max(b - a for a, b in itertools.pairwise(times))
        return {"sendOk": len(self.promised), "failed": len(self.errors), "maxGapMs": round(gap_s * 1000)}


@pytest.fixture
def user(served: Cluster) -> Iterator[Credentials]:
    """May publish to shop-* and read it as the group shop."""
    rules = [
        {"type": "Topic", "name": "shop-", "pattern": "Prefix", "actions": ["Pub", "Sub"]},
        {"type": "Group", "name": "shop", "actions": ["Sub"]},
    ]
    made = {
        "apiVersion": "gantry.dev/v1alpha1",
        "kind": "BrokerUser",
        "metadata": {"name": "shop"},
        "spec": {"cluster": "demo", "rules": rules},
    }
    apply(served.namespace, json.dumps(made))
    until("its key is there", lambda: served.credentials("demo-user-shop"), 30)
    yield served.credentials("demo-user-shop")
    kubectl("-n", served.namespace, "delete", "bu", "shop", "--ignore-not-found")


def test_the_status_has_the_addresses_and_the_proxies(served: Cluster) -> None:
    status = served.status()["proxy"]
    assert status["address"] == f"demo-proxy.{served.namespace}.svc:8081"
    assert {row["ready"] for row in status["members"]} == {True}
    assert {row["name"] for row in status["members"]} == {p["metadata"]["name"] for p in served.pods(PROXY)}
    assert "demo-proxy-tls" in {row["name"] for row in served.status()["certificates"]}
    assert "ProxiesReady" in {e["reason"] for e in served.events()}


def test_users_of_the_cluster_are_those_of_grpc(
    served: Cluster, connect: Callable[..., GrpcClient], user: Credentials, figure: Figure
) -> None:
    kubectl("-n", served.namespace, "wait", "--for=condition=Ready", "bu/shop", "--timeout=240s")
    began = time.monotonic()

    def known() -> bool:
        """By each proxy: a connection leads to one of them."""
        for _ in range(10):
            with connect(user) as client:
                try:
                    client.send("shop-orders", b"apples")
                except (Refused, grpc.RpcError):
                    return False
        return True

    within("the proxies know the user", known, TABLE_S, 0.2)
    known_s = time.monotonic() - began
    with connect(user) as client:
        with pytest.raises(Refused) as refused:
            client.send("other", b"x", timeout=30)
        assert refused.value.code == Code.FORBIDDEN
        found = until("it reads", lambda: client.receive("shop-orders", "shop"))
        assert {m.body for m in found} == {b"apples"}
        client.ack("shop-orders", "shop", found[0], 30)
    for stranger in (None, Credentials(user.access_key, "another-key")):
        with connect(stranger) as client:
            with pytest.raises(Refused) as refused:
                client.send("shop-orders", b"x", timeout=30)
            assert refused.value.code == Code.UNAUTHORIZED
    kubectl("-n", served.namespace, "delete", "bu", "shop")
    gone = time.monotonic()

    def refused_everywhere() -> bool:
        """By new connections, which meet either proxy."""
        codes = set()
        for _ in range(6):
            with connect(user) as client:
                try:
                    client.send("shop-orders", b"x")
                    return False
                except Refused as error:
                    codes.add(error.code)
                except grpc.RpcError:
                    return False
        return codes == {Code.UNAUTHORIZED}

    within("the user is refused", refused_everywhere, TABLE_S, 0.2)
    figure(
        "gRPC: seconds until proxies know a user, and refuse a deleted one",
        [round(known_s, 1), round(time.monotonic() - gone, 1)],
    )


def test_clear_text_is_refused(served: Cluster, connect: Callable[..., GrpcClient]) -> None:
    client = GrpcClient(served.status()["proxy"]["external"], served.credentials())
    with client, pytest.raises(grpc.RpcError) as refused:
        client.send("plain", b"x", timeout=5)
    assert refused.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


def test_a_proxy_is_killed_under_load(served: Cluster, connect: Callable[..., GrpcClient], figure: Figure) -> None:
    load = GrpcLoad(connect, "killed-proxy")
    for pod in served.pods(PROXY):
        name = pod["metadata"]["name"]
        kubectl("-n", served.namespace, "delete", "pod", name, "--grace-period=0", "--force", "--wait=false")

        def replaced(gone: str = name) -> bool:
            ready = {r["name"] for r in served.status()["proxy"]["members"] if r["ready"]}
            return gone not in ready and len(ready) == 2

        until("another proxy serves", replaced, 120)
    result = load.stop()
    figure("gRPC: both proxies killed one after the other", result)
    unharmed(result, int(GAP_S * 1000))


def test_a_leader_is_killed_under_load(
    served: Cluster, connect: Callable[..., GrpcClient], host: Host, figure: Figure
) -> None:
    load = GrpcLoad(connect, "killed-leader")
    master = served.master()
    old, epoch = master["metadata"]["name"], served.epoch()
    host.signal("KILL", master)
    served.wait_recovered_from(old, epoch)
    result = load.stop()
    figure("gRPC: leader's process killed", result)
    unharmed(result, int(GAP_S * 1000))


def test_a_changed_proxy_takes_over_without_a_failed_send(
    served: Cluster, connect: Callable[..., GrpcClient], figure: Figure
) -> None:
    before, brokers = {p["metadata"]["uid"] for p in served.pods(PROXY)}, served.uids()
    load = GrpcLoad(connect, "rolled")
    served.patch({"spec": {"proxy": {"resources": {"requests": {"cpu": "60m"}}}}})

    def rolled() -> bool:
        now = {p["metadata"]["uid"] for p in served.pods(PROXY)}
        return not now & before and len(now) == 2 and served.status()["proxy"]["readyReplicas"] == 2

    until("both proxies are new", rolled, 180)
    result = load.stop()
    figure("gRPC: both proxies replaced by a change", result)
    if load.errors:
        raise TooLate(f"failed sends: {result}, {load.errors[:3]}")
    assert served.uids() == brokers, "no broker restarts"


def test_their_number_is_set_by_the_scale_subresource(served: Cluster) -> None:
    kubectl("-n", served.namespace, "scale", "bc/demo", "--replicas=1")
    until("one proxy is left", lambda: len(served.pods(PROXY)) == served.status()["proxy"]["readyReplicas"] == 1, 60)

    def scaled() -> bool:
        found = json.loads(kubectl("-n", served.namespace, "get", "bc", "demo", "--subresource=scale", "-o", "json"))
        chosen = get(served.namespace, "pods", selector=found["status"]["selector"])
        names = [[p["metadata"]["name"] for p in pods] for pods in (chosen, served.pods(PROXY))]
        return (found["spec"]["replicas"], found["status"]["replicas"]) == (1, 1) and names[0] == names[1]

    until("the subresource shows it", scaled, 60)
    assert served.object()["spec"]["proxy"]["replicas"] == 1


def test_what_was_deleted_comes_back_and_all_goes_with_the_field(served: Cluster) -> None:
    kubectl("-n", served.namespace, "delete", "service,pdb,networkpolicy", "demo-proxy")
    for kind in ("service", "pdb", "networkpolicy"):
        until(f"the {kind} is back", lambda kind=kind: get(served.namespace, kind, "demo-proxy"), 30)
    served.patch({"spec": {"proxy": {"autoscaling": {"minReplicas": 1, "maxReplicas": 3}}}})
    until("an autoscaler", lambda: get(served.namespace, "hpa", "demo-proxy"), 30)
    served.patch({"spec": {"proxy": None}})
    kinds = "deployment,service,configmap,pdb,hpa,networkpolicy,secret"

    def left() -> list[str]:
        found = get(served.namespace, kinds, selector=f"gantry.dev/cluster=demo,{PROXY}")
        return [f"{o['kind']} {o['metadata']['name']}" for o in found]

    until("all objects of proxies are gone", lambda: not left(), 60)
    served.wait_running()
    assert "proxy" not in served.status()
    assert "ProxiesRemoved" in {e["reason"] for e in served.events()}
