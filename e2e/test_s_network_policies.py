"""Who may connect to which port, where NetworkPolicies are enforced: the table in docs/security.md, row by row.

A refused connection proves something only if another connection of the same pod is accepted (`open`, which no policy
selects, or more), and if the refused one is accepted as soon as a further policy allows everything.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import enforcement
import pytest
import yaml
from gantry_operator.platforms.kubernetes import names
from gantry_operator.platforms.kubernetes.analytics import manifests
from gantry_operator.platforms.kubernetes.manifests import spark
from gantry_operator.platforms.kubernetes.manifests.pod_parts import scheme_of
from kube import (
    BROKER_IMAGE,
    SYSTEM,
    Cluster,
    Figure,
    Host,
    Load,
    apply,
    example,
    get,
    helm_install,
    kubectl,
    unharmed,
    until,
    workers,
)

pytestmark = pytest.mark.alone

SHOP = "e2e-s-shop"
"""A namespace with a client, and with pods that are none."""
MONITORING = "e2e-s-monitoring"
"""A namespace with the label for monitoring."""
CLIENT = {"e2e": "client"}
OPEN = {"e2e": "open"}
MONITORS = {names.MONITORING_LABEL: "true"}
IN_SHOP = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": SHOP}}}
ALLOWED = [{"podSelector": {"matchLabels": CLIENT}}, IN_SHOP | {"podSelector": {"matchLabels": CLIENT}}]
"""`security.allowedClients`: such pods of the cluster's namespace, and of the shop's."""
EFFECT_S = 30.0
"""Longest time until a change of policies or pods holds on every node."""
MADE_HERE = "e2e-made-here"
"""Label of the pods that the test makes, and the operator does not."""
OPEN_PORT = 8000
DRIVER_PORT = spark.DRIVER_PORT

CONNECT = """
import concurrent.futures, json, socket, sys
def attempt(target):
    try:
        socket.create_connection(target, 1.5).close()
    except (ConnectionRefusedError, TimeoutError):
        return "refused"
    except OSError as error:
        return repr(error)
    return "accepted"
targets = json.loads(sys.argv[1])
with concurrent.futures.ThreadPoolExecutor(32) as pool:
    print(json.dumps(dict(zip(targets, pool.map(attempt, map(tuple, targets.values()))))))
"""
METRICS = """
import ssl, sys, urllib.request
unchecked = ssl._create_unverified_context()
for url in sys.argv[1:]:
    with urllib.request.urlopen(url, timeout=60, context=unchecked) as answer:
        print(sum(line.startswith(b"gantry_") for line in answer))
"""


@dataclass(frozen=True)
class Pod:
    """Where a connection begins or ends."""

    namespace: str
    name: str

    def object(self) -> dict[str, Any]:
        found: dict[str, Any] = get(self.namespace, "pod", self.name)
        return found

    @property
    def address(self) -> str:
        return str(self.object()["status"]["podIP"])

    def python(self, script: str, *arguments: str) -> str:
        return kubectl("-n", self.namespace, "exec", self.name, "--", "python", "-c", script, *arguments)


def manifest(name: str, labels: dict[str, str] | None = None, node: str = "", port: int = 0) -> dict[str, Any]:
    """A pod that waits, or listens on a port."""
    command = ["python", "-m", "http.server", str(port)] if port else ["sleep", "86400"]
    container = {"name": "c", "image": BROKER_IMAGE, "imagePullPolicy": "IfNotPresent", "command": command}
    spec = {"terminationGracePeriodSeconds": 0, "containers": [container]} | ({"nodeName": node} if node else {})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {MADE_HERE: "true"} | (labels or {})},
        "spec": spec,
    }


def apply_pods(namespace: str, pods: list[dict[str, Any]]) -> None:
    apply(namespace, yaml.safe_dump_all(pods))


def ready(namespace: str) -> None:
    kubectl("-n", namespace, "wait", "--for=condition=Ready", "pod", "-l", MADE_HERE, "--timeout=290s")


def policy(name: str, selector: dict[str, Any], ingress: list[dict[str, Any]]) -> str:
    spec = {"podSelector": selector, "policyTypes": ["Ingress"], "ingress": ingress}
    made = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": name}, "spec": spec}
    return json.dumps(made)


def attempts(source: Pod, targets: dict[str, tuple[Pod, int]]) -> dict[str, str]:
    """By target of another pod: what became of a connection."""
    others = {name: (pod.address, port) for name, (pod, port) in targets.items() if pod != source}
    found: dict[str, str] = json.loads(source.python(CONNECT, json.dumps(others)))
    return found


def check_enforcement(namespace: str, host: Host) -> None:
    """Our own policies aside: a policy refuses connections on one node and across nodes, then admits them again.

    Skips the module where the cluster is not of e2e/run and enforces nothing.
    """
    target = {"open": (Pod(namespace, "open"), OPEN_PORT)}
    strangers = [Pod(namespace, "stranger-near"), Pod(namespace, "stranger-far")]

    def all_are(what: str) -> None:
        until(f"strangers are {what}", lambda: all(attempts(p, target) == {"open": what} for p in strangers), EFFECT_S)

    all_are("accepted")
    apply(namespace, policy("nothing", {"matchLabels": OPEN}, []))
    try:
        all_are("refused")
    except AssertionError:
        if host.kind == "scripts":
            raise
        pytest.skip(
            "this Kubernetes enforces no NetworkPolicies: use one with a network plug-in that does, such as Calico, "
            "Cilium, or that of kind 0.24 or later"
        )
    finally:
        kubectl("-n", namespace, "delete", "networkpolicy", "nothing")
    all_are("accepted")


@contextlib.contextmanager
def all_allowed(*namespaces: str) -> Iterator[None]:
    """Policies add up: with this one each pod of the namespaces accepts everything."""
    for namespace in namespaces:
        apply(namespace, policy("everything", {}, [{}]))
    try:
        yield
    finally:
        for namespace in namespaces:
            kubectl("-n", namespace, "delete", "networkpolicy", "everything")


@pytest.fixture(scope="module")
def enforced(any_host: Host, operator: None) -> Iterator[None]:
    """The nodes enforce policies: kube-router on those that e2e/run made by scripts, the network plug-in elsewhere."""
    with contextlib.ExitStack() as stack:
        if any_host.kind == "scripts":
            try:
                stack.enter_context(enforcement.kube_router(workers()))
            except enforcement.CannotEnforce as error:
                pytest.skip(str(error))
        yield


@pytest.fixture(scope="module")
def other_namespaces(enforced: None) -> Iterator[None]:
    labels = {SHOP: {}, MONITORING: MONITORS}
    kubectl("delete", "namespace", *labels, "--ignore-not-found", timeout=480)
    for name, marked in labels.items():
        kubectl("create", "-f", "-", stdin=yaml.safe_dump(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": marked}}
        ))  # fmt: skip
    yield
    kubectl("delete", "namespace", *labels, "--wait=false")


@pytest.fixture(scope="module")
def pods(other_namespaces: None, namespace: str) -> None:
    """Pods of the test, on both sides of each rule; strangers and clients on each node."""
    near, far = workers()[0], workers()[-1]
    reports = manifests.pod_labels("demo")
    apply_pods(
        namespace,
        [
            manifest("open", OPEN, near, OPEN_PORT),
            manifest("stranger-near", node=near),
            manifest("stranger-far", node=far),
            manifest("client-near", CLIENT, near),
            manifest("client-far", CLIENT, far),
            manifest("monitor", MONITORS),
            manifest("driver", reports, near, DRIVER_PORT),
            manifest("executor", reports, far),
        ],
    )
    apply_pods(
        SHOP,
        [
            manifest("stranger"),
            manifest("client", CLIENT),
            manifest("impostor", names.labels("demo", names.BROKER, "a") | MONITORS | {names.REPORT_LABEL: "demo"}),
        ],
    )
    apply_pods(MONITORING, [manifest("monitor")])


@pytest.fixture(scope="module")
def guarded(pods: None, namespace: str, any_host: Host) -> Iterator[Cluster]:
    """examples/quickstart.yaml with a second group, a proxy, a report that is never due, and a list of clients. It
    starts under enforced policies. With it comes the console, for pods of the shop's namespace.
    """
    document = yaml.safe_load(example("quickstart.yaml"))
    document["spec"] |= {
        "security": {"allowedClients": ALLOWED},
        "proxy": {"replicas": 1},
        "analytics": {"schedule": "0 0 29 2 *"},
    }
    document["spec"]["brokerGroups"].append({"name": "b", "members": 1})
    apply(namespace, yaml.safe_dump(document))
    cluster = Cluster(namespace)
    try:
        helm_install("--set", "console.enabled=true", "--set-json", f"console.from={json.dumps([IN_SHOP])}")
        for where in (namespace, SHOP, MONITORING):
            ready(where)
        check_enforcement(namespace, any_host)
        cluster.wait_running()
        until("the proxy is ready", lambda: cluster.status()["proxy"]["readyReplicas"] == 1, 60)
        yield cluster
    finally:
        helm_install()


def one_of(namespace: str, selector: str, index: int = 0) -> Pod:
    found = sorted(p["metadata"]["name"] for p in get(namespace, "pods", selector=selector))
    return Pod(namespace, found[index])


@pytest.fixture(scope="module")
def sources(guarded: Cluster) -> dict[str, Pod]:
    here = guarded.namespace
    own = ["stranger-near", "stranger-far", "client-near", "client-far", "monitor", "driver", "executor"]
    proxy = f"{names.CLUSTER_LABEL}=demo,{names.COMPONENT_LABEL}={names.PROXY}"
    return {name: Pod(here, name) for name in own} | {
        "shop's stranger": Pod(SHOP, "stranger"),
        "shop's client": Pod(SHOP, "client"),
        "shop's impostor": Pod(SHOP, "impostor"),
        "monitoring's monitor": Pod(MONITORING, "monitor"),
        "broker of a": Pod(here, "demo-a-0"),
        "broker of b": Pod(here, "demo-b-0"),
        "name server": Pod(here, "demo-namesrv-0"),
        "proxy": one_of(here, proxy),
        "operator": one_of(SYSTEM, f"{names.NAME_LABEL}={names.OPERATOR_NAME}"),
        "console": one_of(SYSTEM, f"{names.NAME_LABEL}={names.CONSOLE_NAME}"),
    }


@pytest.fixture(scope="module")
def targets(guarded: Cluster, sources: dict[str, Pod]) -> dict[str, tuple[Pod, int]]:
    here = guarded.namespace
    server, a, b = Pod(here, "demo-namesrv-1"), Pod(here, "demo-a-1"), Pod(here, "demo-b-0")
    return {
        "open": (Pod(here, "open"), OPEN_PORT),
        "name server": (server, names.NAME_SERVER_PORT),
        "name server registration": (server, names.NAME_SERVER_REGISTRATION_PORT),
        "name server HTTP": (server, names.NAME_SERVER_HTTP_PORT),
        "a": (a, names.BROKER_PORT),
        "a replication": (a, names.BROKER_REPLICATION_PORT),
        "a HTTP": (a, names.BROKER_HTTP_PORT),
        "b": (b, names.BROKER_PORT),
        "b replication": (b, names.BROKER_REPLICATION_PORT),
        "b HTTP": (b, names.BROKER_HTTP_PORT),
        "proxy": (sources["proxy"], names.PROXY_PORT),
        "proxy HTTP": (sources["proxy"], names.PROXY_HTTP_PORT),
        "driver": (Pod(here, "driver"), DRIVER_PORT),
        "operator": (one_of(SYSTEM, f"{names.NAME_LABEL}={names.OPERATOR_NAME}", -1), 8080),
        "console": (sources["console"], 8080),
    }


CLIENTS = {"name server", "a", "b"}
HTTP = {"name server HTTP", "a HTTP", "b HTTP"}
REACHED: dict[str, set[str]] = {
    "stranger-near": set(),
    "stranger-far": set(),
    "client-near": CLIENTS | {"proxy"},
    "client-far": CLIENTS | {"proxy"},
    "monitor": HTTP | {"proxy HTTP"},
    "driver": HTTP,
    "executor": HTTP | {"driver"},
    "shop's stranger": {"console"},
    "shop's client": CLIENTS | {"proxy", "console"},
    "shop's impostor": {"console"},
    "monitoring's monitor": HTTP | {"proxy HTTP", "operator"},
    "broker of a": CLIENTS | HTTP | {"name server registration", "a replication"},
    "broker of b": CLIENTS | HTTP | {"name server registration"},
    "name server": CLIENTS | HTTP,
    "proxy": CLIENTS | HTTP,
    "operator": CLIENTS | HTTP | {"proxy HTTP", "operator"},
    "console": CLIENTS | HTTP,
}
"""By source: the targets that accept its connections, besides `open`."""


def becomes(source: Pod, targets: dict[str, tuple[Pod, int]], reached: set[str]) -> None:
    """Waits until exactly these targets, and `open`, accept connections, and all others refuse."""
    expected = {
        name: "accepted" if name in reached | {"open"} else "refused"
        for name, (pod, _) in targets.items()
        if pod != source
    }

    def different() -> dict[str, str]:
        found = attempts(source, targets)
        return {name: what for name, what in found.items() if what != expected[name]}

    found: dict[str, str] = {}

    def same() -> bool:
        found.clear()
        found.update(different())
        return not found

    try:
        until(f"{source.name} reaches {sorted(reached)}", same, EFFECT_S)
    except AssertionError as error:
        raise type(error)(f"{error}; different: {found}") from None


def all_become(sources: dict[str, Pod], targets: dict[str, tuple[Pod, int]], reached: Mapping[str, set[str]]) -> None:
    """As `becomes`, for all sources. Refused connections mostly wait, so eight pods try at a time."""
    wrong = []

    def one(name: str) -> None:
        try:
            becomes(sources[name], targets, reached[name])
        except AssertionError as error:
            wrong.append(f"{name}: {error}")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, sources))
    assert not wrong, "\n".join(wrong)


def test_each_pod_reaches_what_the_table_says(sources: dict[str, Pod], targets: dict[str, tuple[Pod, int]]) -> None:
    all_become(sources, targets, REACHED)


def test_all_of_it_is_reached_once_a_policy_allows_it(
    guarded: Cluster, sources: dict[str, Pod], targets: dict[str, tuple[Pod, int]]
) -> None:
    """So each refusal above was a policy's."""
    with all_allowed(guarded.namespace, SYSTEM):
        all_become(sources, targets, {name: set(targets) for name in sources})
    becomes(sources["stranger-far"], targets, set())


def test_without_a_list_everybody_is_a_client(
    guarded: Cluster, sources: dict[str, Pod], targets: dict[str, tuple[Pod, int]]
) -> None:
    before = guarded.uids()
    guarded.patch({"spec": {"security": {"allowedClients": []}}})
    becomes(sources["stranger-far"], targets, CLIENTS | {"proxy"})
    guarded.patch({"spec": {"security": {"allowedClients": ALLOWED}}})
    becomes(sources["stranger-far"], targets, set())
    assert guarded.uids() == before


@pytest.mark.parametrize("source", ["monitor", "monitoring's monitor"])
def test_the_label_for_monitoring_leads_to_the_metrics(
    sources: dict[str, Pod], targets: dict[str, tuple[Pod, int]], source: str
) -> None:
    reached = REACHED[source] & (HTTP | {"proxy HTTP", "operator"})
    places = [targets[name] for name in sorted(reached)]
    urls = [f"{scheme_of(pod.object())}://{pod.address}:{port}/metrics" for pod, port in places]
    counts = sources[source].python(METRICS, *urls).split()
    assert len(counts) == len(urls)
    assert all(int(count) > 0 for count in counts), dict(zip(urls, counts, strict=True))


def test_a_killed_master_is_replaced_and_nothing_is_lost(
    guarded: Cluster, sources: dict[str, Pod], targets: dict[str, tuple[Pod, int]], figure: Figure
) -> None:
    """By an allowed client. The new pod has another address, which the other members have to admit."""
    load = Load(guarded, "allowed", labels=CLIENT)
    old, epoch = guarded.master_name(), guarded.epoch()
    address = Pod(guarded.namespace, old).address
    kubectl("-n", guarded.namespace, "delete", "pod", old, "--grace-period=0", "--force", "--wait=false")
    guarded.wait_recovered_from(old, epoch)
    result = load.stop()
    figure("enforced policies: master's pod killed", result)
    unharmed(result | {"errors": 0})
    assert Pod(guarded.namespace, old).address != address
    becomes(sources["stranger-near"], targets, set())
