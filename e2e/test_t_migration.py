"""A running Apache RocketMQ outside of Kubernetes moves to a cluster and back, by its resource alone.

The source asks for signatures and takes TLS only. With E2E_MIGRATION=full the same moves without both.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kube import SYSTEM, Cluster, CommandFailed, apply, get, kubectl, run, until
from rig import java, rocketmq
from rig.driver import Driver, Running
from rig.processes import NamespaceUnavailable
from rig.target import Target

from tests.support import samples
from tests.support.certificates import Authority, Files

pytestmark = pytest.mark.alone

ADDRESS = "10.250.0.200"
"""Of the source, on the bridge of the nodes."""
BRIDGE = "kubehost"
FIRST_NODE = 11
"""The last number of the first node's address. The pods of node N are in 10.244.N.0/24."""
SERVICES, NODE = "10.96.0.0/16", f"10.250.0.{FIRST_NODE}"
HOST = "moved-a-master.{}.svc"
MESSAGES = 300
POLL_MS = 5_000
"""How often clients look for routes."""
SETTINGS = {
    "brokerIP1": ADDRESS, "mappedFileSizeCommitLog": "1048576", "waitTimeMillsInSendQueue": "10000",
    "osPageCacheBusyTimeOutMills": "10000",
}  # fmt: skip
MANIFEST = {
    "apiVersion": "gantry.dev/v1alpha1",
    "kind": "BrokerCluster",
    "metadata": {"name": "moved"},
    "spec": {
        "brokerClusterName": "demo",
        "nameServers": {"replicas": 1},
        "brokerGroups": [{"name": "a", "brokerName": "demo-a", "members": 1}],
        "proxy": {"replicas": 0},
        "reclaim": "Delete",
        "storage": {"size": "1Gi"},
        "broker": {"mappedFileSizeCommitLog": 1 << 20},
    },
}
ROOT = {"access_key": "rootuser", "secret_key": "root-secret-key"}
CLIENT = {"access_key": "orderuser", "secret_key": "orders-secret-key"}
ACCOUNTS = {
    "accounts": [
        {"accessKey": ROOT["access_key"], "secretKey": ROOT["secret_key"], "admin": True},
        {
            "accessKey": CLIENT["access_key"],
            "secretKey": CLIENT["secret_key"],
            "topicPerms": ["Orders=PUB|SUB"],
            "groupPerms": ["billing=SUB"],
        },
    ]
}
KEYS, AUTHORITY = "source-keys", "source-ca"
"""Secrets with what the source asks for."""


@dataclass(frozen=True)
class Former:
    """The source, and what it asks of clients."""

    target: Target
    authority: Path | None = None
    """Of its certificates; None: it takes clients without TLS and without keys."""

    @property
    def keys(self) -> Mapping[str, str]:
        return {} if self.authority is None else CLIENT

    @property
    def flags(self) -> Sequence[str]:
        """Of the clients' JVMs."""
        return [] if self.authority is None else ["-Dtls.enable=true"]

    def admin(self, clients: Driver, *words: str) -> str:
        keys = ["--access-key", ROOT["access_key"], "--secret-key", ROOT["secret_key"]]
        return clients.mqadmin(words[0], *([] if self.authority is None else keys), *words[1:])

    def manifest(self) -> dict[str, Any]:
        there: dict[str, Any] = {"nameServers": [f"{ADDRESS}:9876"]}
        security: dict[str, Any] = {"authentication": "Disabled"}  # As the source: its clients have no keys.
        if self.authority is not None:
            there |= {"accessKeySecret": KEYS, "tls": {"caSecret": AUTHORITY}}
            security = {"authentication": "Enabled", "tls": {"mode": "Required"}}
        more = {"bootstrap": {"fromRocketMQ": there}, "security": security}
        return {**MANIFEST, "spec": {**MANIFEST["spec"], **more}}


@contextlib.contextmanager
def on_the_bridge(source: Target) -> Iterator[None]:
    """Give the source's network namespace an address that pods reach."""
    name, inside, outside = source.prefix[-1], f"ge{os.getpid()}", f"gx{os.getpid()}"
    run("ip", "link", "add", outside, "type", "veth", "peer", "name", inside, "netns", name)
    try:
        run("ip", "link", "set", outside, "master", BRIDGE, "up")
        run(*source.prefix, "ip", "address", "add", f"{ADDRESS}/24", "dev", inside)
        run(*source.prefix, "ip", "link", "set", inside, "up")
        for node in get("default", "nodes"):
            address = next(a["address"] for a in node["status"]["addresses"] if a["type"] == "InternalIP")
            number = int(address.rpartition(".")[2]) - FIRST_NODE + 1
            run(*source.prefix, "ip", "route", "add", f"10.244.{number}.0/24", "via", address)
        yield
    finally:
        run("ip", "link", "delete", outside, check=False)


def guard(folder: Path) -> tuple[Files, list[str]]:
    """Write accounts and certificates of a source that asks for both; return the certificates and flags of its JVMs."""
    conf = folder / "home" / "conf"
    conf.mkdir(parents=True)
    (conf / "plain_acl.yml").write_text(json.dumps(ACCOUNTS))  # JSON is YAML.
    files = Authority().issue(folder / "certificates", "127.0.0.1", "localhost", ADDRESS)
    config = folder / "tls.properties"
    config.write_text(
        "tls.test.mode.enable=false\ntls.server.need.client.auth=none\ntls.server.authClient=false\n"
        f"tls.server.certPath={files.cert}\ntls.server.keyPath={files.key}\n"
        f"tls.client.authServer=true\ntls.client.trustCertPath={files.ca}\n"
    )
    return files, ["-Dtls.server.mode=enforcing", "-Dtls.enable=true", f"-Dtls.config.file={config}"]


@pytest.fixture(
    scope="module", params=["guarded", "plain"] if os.environ.get("E2E_MIGRATION") == "full" else ["guarded"]
)
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Former]:
    if os.environ.get("E2E_HOST") != "scripts":
        pytest.skip(
            "a source beside the nodes needs their bridge: run it with the scripts for a local Kubernetes "
            "(E2E_KUBE_SCRIPTS)"
        )
    folder = tmp_path_factory.mktemp("rocketmq")
    settings, flags, authority = dict(SETTINGS), list[str](), None
    if request.param == "guarded":
        files, flags = guard(folder)
        settings, authority = settings | {"aclEnable": "true"}, files.ca
    try:
        java.build()
        with (
            rocketmq.rocketmq(folder, settings, heap="256m", direct="256m", flags=flags) as found,
            on_the_bridge(found),
        ):
            yield Former(found, authority)
    except (java.JavaMissing, NamespaceUnavailable) as error:
        pytest.skip(f"there is no Apache RocketMQ here: {error}")


def give_secrets(namespace: str, source: Former, config: Path) -> None:
    """Give the cluster and the commands of this machine what the source asks for."""
    if source.authority is None:
        return
    wanted = {
        KEYS: {"accessKey": ROOT["access_key"], "secretKey": ROOT["secret_key"]},
        AUTHORITY: {"ca.crt": source.authority.read_text()},
    }
    for name, content in wanted.items():
        data = {key: base64.b64encode(text.encode()).decode() for key, text in content.items()}
        apply(namespace, json.dumps({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": data}))
        folder = config / "gantry" / "secrets" / name
        folder.mkdir(parents=True)
        for key, text in content.items():
            (folder / key).write_text(text)
            (folder / key).chmod(0o600)


def gantry(namespace: str, *words: str) -> str:
    program = Path(sys.executable).parent / "gantry"
    done = subprocess.run([program, *words, "-n", namespace], capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != 0:
        described = kubectl("-n", namespace, "describe", "bc")
        raise CommandFailed(f"{words}: {done.stdout}{done.stderr}{described}")
    return done.stdout


def status(namespace: str) -> dict[str, Any]:
    return dict(json.loads(gantry(namespace, "migrate", "status", "-o", "json")))


def shown(namespace: str) -> dict[str, Any]:
    """Return what the status of the resource says."""
    return dict((get(namespace, "bc", "moved").get("status") or {}).get("migration") or {})


def annotations(namespace: str) -> dict[str, str]:
    return dict(get(namespace, "bc", "moved")["metadata"].get("annotations") or {})


def recorded(namespace: str, record: str = "migration") -> str:
    """The phase in the record, which needs no operator and no pod."""
    return str(json.loads(annotations(namespace).get(f"gantry.dev/{record}", "{}")).get("phase", ""))


def kill_operators() -> None:
    kubectl(
        "-n", SYSTEM, "delete", "pods", "-l", "app.kubernetes.io/name=gantry-operator", "--grace-period=0", "--force",
        "--wait=false",
    )  # fmt: skip


@contextlib.contextmanager
def knows_services(source: Target, namespace: str) -> Iterator[None]:
    """Let the source's clients reach the group's Service, as the DNS and the routes of an organisation would."""
    service = until("the Service exists", lambda: service_address(namespace), 60)
    folder = Path("/etc/netns") / source.prefix[-1]
    folder.mkdir(parents=True)
    try:
        # Commands in the network namespace have this file as /etc/hosts.
        host = HOST.format(namespace)
        names = f"{service} {host} {host}.cluster.local\n"
        (folder / "hosts").write_text(f"127.0.0.1 localhost {socket.gethostname()}\n{names}")
        run(*source.prefix, "ip", "route", "replace", SERVICES, "via", NODE)
        yield
    finally:
        shutil.rmtree(folder)


def service_address(namespace: str) -> str:
    return kubectl("-n", namespace, "get", "service", "moved-a-master", "-o", "jsonpath={.spec.clusterIP}", check=False)


def go_on(writer: Running) -> None:
    """Wait until a message is acknowledged that is sent from now on."""
    began = time.time() * 1000 + 1_000
    while (line := writer.next(120)) is not None:
        if line["event"] == "ok" and line["ms"] > began:
            return
    raise AssertionError("the writer ended")


def test_a_source_outside_is_followed_left_and_returned_to(
    operator: None, namespace: str, source: Former, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    give_secrets(namespace, source, tmp_path / "config")
    manifest = tmp_path / "moved.json"
    manifest.write_text(json.dumps(source.manifest()))
    apply(namespace, manifest.read_text())
    with knows_services(source.target, namespace):
        clients = Driver(source.target, "49", "JSON", tmp_path / "driver.log", source.flags)
        try:
            goes_and_returns(clients, namespace, source, manifest)
        finally:
            clients.close()
    until("the cluster is gone", lambda: not kubectl("-n", namespace, "get", "bc", "-o", "name"), 120, 1.0)


def goes_and_returns(clients: Driver, namespace: str, source: Former, manifest: Path) -> None:
    source.admin(clients, "updateTopic", "-c", "demo", "-t", "Orders", "-r", "4", "-w", "4")
    clients.run("produce", topic="Orders", count=MESSAGES, size=100, run="run", **source.keys)
    reader = clients.start(
        "consume",
        topic="Orders",
        group="billing",
        run="run",
        count=1_000_000,
        timeout_s=900,
        each=True,
        poll_ms=POLL_MS,
        **source.keys,
    )
    writer = clients.start(
        "failover",
        topic="Orders",
        run="run",
        first=MESSAGES,
        size=100,
        threads=2,
        pause_ms=20,
        poll_ms=POLL_MS,
        **source.keys,
    )
    writer.wait_for("ok")
    if source.keys:
        assert "created: orderuser, rootuser" in gantry(namespace, "migrate", "users", str(manifest))
    until("the copy follows", lambda: (status(namespace)["groups"]["a"]["lag"] or 0) < 1 << 20, 120, 1.0)
    until("the resource says what to do", lambda: "migrate=cutover" in shown(namespace).get("next", ""), 60, 1.0)
    for field in ("message", "next"):
        command = f"kubectl get brokercluster moved -n queues -o jsonpath='{{.status.migration.{field}}}'"
        assert samples.shape(shown(namespace)[field]) == samples.shown("migration.md", command)
    cutover_by_the_resource(namespace)
    # A leader gives its own address for a moment where the Service does not lead to its new pod yet.
    until(
        "the source's NameServer knows it",
        lambda: HOST.format(namespace) in source.admin(clients, "clusterList"), 30, 1.0,
    )  # fmt: skip
    go_on(writer)
    gantry(namespace, "produce", "Orders", "--count", "10")
    rollback_by_the_resource(namespace)
    listed = source.admin(clients, "clusterList")
    assert ADDRESS in listed
    assert HOST.format(namespace) not in listed
    go_on(writer)
    kubectl("-n", namespace, "delete", "bc", "moved")
    go_on(writer)
    clients.run("stop")
    missing = {line["n"] for line in writer.finish().of("ok")} | set(range(MESSAGES))
    while missing and (line := reader.next(60)) is not None:
        if line["event"] == "message":
            missing.discard(line["n"])
    assert not missing
    until("what was copied goes with the cluster", lambda: not maps(namespace), 60, 1.0)


def maps(namespace: str) -> str:
    return kubectl("-n", namespace, "get", "configmap", "moved-rollback", "--ignore-not-found", "-o", "name")


def answered(namespace: str, said: str) -> None:
    result = until("the request is answered", lambda: annotations(namespace).get("gantry.dev/migrate-result"))
    assert said in result, result


def cutover_by_the_resource(namespace: str) -> None:
    """By the resource alone. Its operators and its pod die in the middle, while the source's readers have no right."""
    kubectl("-n", namespace, "annotate", "bc", "moved", "gantry.dev/migrate=cutover settle=15 routes=15 timeout=300")
    until("consumers get nothing", lambda: recorded(namespace) == "readers-off", 90, 0.3)
    kill_operators()
    kubectl("-n", namespace, "delete", "pods", "moved-a-0", "--grace-period=0", "--force", "--wait=false")
    until("the cutover is done", lambda: recorded(namespace) == "done", 240, 1.0)
    cluster = Cluster(namespace, "moved")
    cluster.wait_running()
    until("the resource says that it is done", lambda: shown(namespace)["phase"] == "done", 60, 1.0)
    until("the condition ends", lambda: cluster.condition("Migrating")["status"] == "False")
    answered(namespace, "done: Gantry leads")
    assert status(namespace)["phase"] == "done"
    read = gantry(namespace, "consume", "Orders", "--group", "check", "--count", str(MESSAGES), "--timeout", "120")
    assert len(read.splitlines()) == MESSAGES
    phases = {e["message"].split(":")[0] for e in cluster.events() if e["reason"] == "Migration"}
    assert {"routing", "routed", "readers-off", "writes-off", "finishing", "taking", "done"} <= phases


def rollback_by_the_resource(namespace: str) -> None:
    """The operators die while nobody reads or writes."""
    kubectl("-n", namespace, "annotate", "bc", "moved", "gantry.dev/migrate-result-")
    kubectl("-n", namespace, "annotate", "bc", "moved", "gantry.dev/migrate=rollback settle=15 timeout=300")
    off = "gantry-readers-off"
    until("consumers get nothing", lambda: recorded(namespace, "migration-rollback") == off, 120, 0.3)
    kill_operators()
    until("the source is back", lambda: recorded(namespace, "migration-rollback") == "rolled-back", 240, 1.0)
    answered(namespace, "done: the source leads again")
    cluster = Cluster(namespace, "moved")
    until("the condition says it", lambda: cluster.condition("Migrating")["reason"] == "RolledBack", 60, 1.0)
    assert status(namespace)["rollback"] == "rolled-back"
    assert maps(namespace), "it has what was copied"
