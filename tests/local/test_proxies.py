"""Proxies under `gantry up`: users and TLS as the brokers', restarted when they die, more and fewer of them."""

from __future__ import annotations

import http.client
import json
import signal
import ssl
import stat
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from gantry_broker.client import Credentials
from gantry_broker.protocol.grpc_contract import Code
from gantry_operator.platforms.local.process import start_mark

from tests.local.cluster import Cluster, kill, running, take_down
from tests.support.grpc_client import GrpcClient, Refused

pytestmark = pytest.mark.timeout(300)
GROUPS = [{"name": "a", "members": 1}]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    security = {"authentication": "Enabled", "tls": {"mode": "Required", "internal": True}}
    made = Cluster(
        tmp_path_factory.mktemp("proxies"), nameServers={"replicas": 1}, brokerGroups=GROUPS, security=security,
        proxy={"replicas": 2},
    )  # fmt: skip
    try:
        said = made.up()
        assert said.count("  gRPC  ") == 2, said
        for topic in ("Orders", "shop-orders"):
            made.gantry("topic", "create", topic)
        yield made
    finally:
        take_down(made)


def proxies(cluster: Cluster) -> dict[str, dict[str, object]]:
    found = cluster.resource()["status"].get("proxy") or {"members": []}
    return {row["name"]: row for row in found["members"]}


def key_of(cluster: Cluster, user: str) -> Credentials:
    said = json.loads(cluster.gantry("user", "key", user, "-o", "json").stdout)
    return Credentials(said["accessKey"], said["secretKey"])


def connect(cluster: Cluster, name: str = "t-proxy-0", credentials: Credentials | None = None) -> GrpcClient:
    ca = (cluster.folder.tls / "ca.crt").read_bytes()
    return GrpcClient(str(proxies(cluster)[name]["address"]), credentials, ca)


def sends(cluster: Cluster, name: str, credentials: Credentials | None) -> int:
    """The code of the answer, 0 for OK."""
    with connect(cluster, name, credentials) as client:
        try:
            client.send("Orders", b"x", timeout=10)
        except Refused as error:
            return error.code
        return 0


def test_every_proxy_serves_the_users_of_the_cluster_by_tls(cluster: Cluster) -> None:
    admin = key_of(cluster, "admin")
    for name, row in proxies(cluster).items():
        assert row["ready"], row
        assert sends(cluster, name, admin) == 0
        assert sends(cluster, name, None) == Code.UNAUTHORIZED
        assert sends(cluster, name, Credentials("admin", "another-key")) == Code.UNAUTHORIZED
        with pytest.raises(grpc.RpcError), GrpcClient(str(row["address"]), admin) as clear:
            clear.send("Orders", b"x", timeout=5)
    with connect(cluster, "t-proxy-1", admin) as client:
        found = [m.body for _ in range(2) for m in client.receive("Orders", "readers", 5)]
    assert found == [b"x", b"x"]


def test_the_http_interface_of_proxies_has_tls(cluster: Cluster) -> None:
    port = json.loads(cluster.folder.ports.read_text())["t-proxy-0/http"]
    context = ssl.create_default_context(cafile=str(cluster.folder.tls / "ca.crt"))
    with urllib.request.urlopen(f"https://127.0.0.1:{port}/readyz", context=context, timeout=10) as answer:
        assert answer.read() == b"ready\n"
    with urllib.request.urlopen(f"https://127.0.0.1:{port}/metrics", context=context, timeout=10) as answer:
        assert b'gantry_tls_handshakes_total{port="http"}' in answer.read()
    with pytest.raises((OSError, http.client.HTTPException)):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/livez", timeout=10)


def test_a_change_of_users_reaches_the_proxies(cluster: Cluster) -> None:
    cluster.gantry("user", "create", "shop", "--allow", "Topic:shop-*:Pub")
    shop = key_of(cluster, "shop")
    cluster.until("the proxy knows the user", lambda: sends(cluster, "t-proxy-0", shop) == Code.FORBIDDEN, 10)
    with connect(cluster, "t-proxy-0", shop) as client:
        assert client.send("shop-orders", b"x")
    cluster.gantry("user", "delete", "shop")
    cluster.until("the user is refused", lambda: sends(cluster, "t-proxy-0", shop) == Code.UNAUTHORIZED, 10)


def test_keys_are_for_this_user_alone(cluster: Cluster) -> None:
    for path in (cluster.folder.proxy_key, cluster.folder.access_table, cluster.folder.tls / "proxy" / "tls.key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert "gantry-proxy" not in cluster.gantry("user", "list").stdout, "it is the cluster's own"


def test_a_killed_proxy_starts_again_with_a_lost_key_restored(cluster: Cluster) -> None:
    pid = int(str(proxies(cluster)["t-proxy-0"]["pid"]))
    cluster.folder.proxy_key.unlink()
    kill(pid, signal.SIGKILL)
    row = cluster.until(
        "it runs again", lambda: (r := proxies(cluster)["t-proxy-0"])["ready"] and r["pid"] != pid and r, 30
    )
    assert row
    assert cluster.events("ProcessExited")[-1]["object"] == "t-proxy-0"
    cluster.gantry("user", "create", "other", "--allow", "Topic:other:Pub")  # Any change makes the supervisor look.
    cluster.until("the key is back", cluster.folder.proxy_key.exists, 10)
    cluster.until("it serves", lambda: sends(cluster, "t-proxy-0", key_of(cluster, "admin")) == 0, 20)


def test_fewer_and_no_proxies(cluster: Cluster, tmp_path: Path) -> None:
    rows = proxies(cluster)
    pids = {name: int(str(row["pid"])) for name, row in rows.items()}
    cluster.up("--proxy", "1")
    assert set(proxies(cluster)) == {"t-proxy-0"}
    assert proxies(cluster)["t-proxy-0"]["pid"] == pids["t-proxy-0"], "the other one is not disturbed"
    cluster.until("it ended", lambda: start_mark(pids["t-proxy-1"]) is None, 15)
    cluster.up("--proxy", "0")
    assert proxies(cluster) == {}
    cluster.until("it ended", lambda: start_mark(pids["t-proxy-0"]) is None, 15)
    assert "PROXY" not in cluster.gantry("status", "--dir", str(cluster.folder.root)).stdout


def test_a_manifest_that_says_nothing_gets_one(tmp_path: Path) -> None:
    made = Cluster(tmp_path, nameServers={"replicas": 1}, brokerGroups=GROUPS)
    made.write(nameServers={"replicas": 1}, brokerGroups=GROUPS)
    manifest = json.loads(made.file.read_text())
    del manifest["spec"]["proxy"]
    made.file.write_text(json.dumps(manifest))
    with running(made):
        made.gantry("topic", "create", "Orders")
        (row,) = proxies(made).values()
        for ca in (None, (made.folder.tls / "ca.crt").read_bytes()):
            with GrpcClient(str(row["address"]), None, ca) as client:
                assert client.send("Orders", b"x", timeout=10), "TLS and clear text on one port"
        assert "stopped" in made.gantry("down", "--dir", str(made.folder.root)).stdout
        assert start_mark(int(str(row["pid"]))) is None
