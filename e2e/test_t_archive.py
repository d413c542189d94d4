"""Archives in an S3 server in a pod: a cluster that is lost with its volumes comes back, its keys are rotated, and two
sites exchange their parts.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kube import BROKER_IMAGE, Cluster, apply, forwarded, get, kubectl, run, until

from tests.archive import s3

SERVER, BUCKET, SECRET = "s3", "shop-archive", "archive-s3"
ACCESS_KEY, SECRET_KEY = "e2e", "of-the-archive"
COUNT, READ = 400, 150
ROTATED = "another-of-the-archive"
SERVE = f"""
mkdir -p /tmp/data/{BUCKET}
until [ -e /tmp/ready ]; do sleep 0.1; done
while true; do
  [ ! -e /tmp/secret ] || export ROOT_SECRET_KEY=$(cat /tmp/secret)
  /tmp/versitygw --port :7070 posix /tmp/data & echo $! > /tmp/pid
  wait
  sleep 0.1
done
"""
"""Runs the server; it begins again with the key in /tmp/secret when it is killed."""


@pytest.fixture(scope="module")
def store(namespace: str) -> dict[str, Any]:
    """Where archives lie: a field of a spec, without the URL."""
    program = s3.built()
    secret = secret_with(SECRET_KEY)
    container = {
        "name": SERVER, "image": BROKER_IMAGE, "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", SERVE],
        "env": [{"name": "ROOT_ACCESS_KEY", "value": ACCESS_KEY}, {"name": "ROOT_SECRET_KEY", "value": SECRET_KEY}],
    }  # fmt: skip
    pod = {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": SERVER, "labels": {"app": SERVER}},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 0},
    }  # fmt: skip
    service = {
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": SERVER},
        "spec": {"selector": {"app": SERVER}, "ports": [{"port": 7070}]},
    }  # fmt: skip
    apply(namespace, "\n---\n".join(map(json.dumps, (secret, pod, service))))
    until("the server's pod runs", lambda: get(namespace, "pod", SERVER)["status"]["phase"] == "Running", 60)
    copy = ["kubectl", "-n", namespace, "exec", "-i", SERVER, "--", "sh", "-c"]
    with program.open("rb") as content:
        subprocess.run(
            [*copy, "cat > /tmp/versitygw && chmod +x /tmp/versitygw && touch /tmp/ready"], stdin=content, check=True
        )
    return {"endpoint": f"http://{SERVER}.{namespace}.svc:7070", "credentialsSecret": SECRET}


def secret_with(secret_key: str) -> dict[str, Any]:
    keys = {"accessKeyId": ACCESS_KEY, "secretAccessKey": secret_key}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": SECRET}, "stringData": keys}


def url(name: str) -> str:
    return f"s3://{BUCKET}/{name}"


def cluster(namespace: str, name: str, **spec: Any) -> Cluster:
    """Applied, and running."""
    usual = {
        "nameServers": {"replicas": 1}, "brokerGroups": [{"name": "a", "members": 2}], "reclaim": "Delete",
        "storage": {"size": "1Gi"},
    }  # fmt: skip
    kind = {"apiVersion": "gantry.dev/v1alpha1", "kind": "BrokerCluster"}
    apply(namespace, json.dumps(kind | {"metadata": {"name": name}, "spec": usual | spec}))
    made = Cluster(namespace, name)
    made.wait_running()
    return made


def gantry(of: Cluster, *arguments: str, check: bool = True) -> str:
    """What the command says of a cluster."""
    command = [str(Path(sys.executable).parent / "gantry"), *arguments, "-n", of.namespace, "--cluster", of.name]
    return run(*command, check=check, timeout=180)


def unread(of: Cluster, group: str) -> int:
    found = json.loads(gantry(of, "group", "list", "-o", "json"))
    return int(next(row for row in found if row["group"] == group)["lag"])


def archived(of: Cluster) -> bool:
    """Every byte that its log has now."""
    end = max(int(member["maxOffset"]) for member in of.status()["members"])
    try:
        until("the archive has all of it", lambda: int(of.status()["groups"][0]["archive"]["offset"]) >= end, 60, 0.5)
    except AssertionError as error:
        raise AssertionError(f"{error}: {of.status()['groups']}") from None
    return True


def verified(of: Cluster, records: int) -> None:
    """A Job of the schedule has read everything back, and the brokers tell what it found."""

    def known() -> bool:
        row = of.status()["groups"][0]["archive"]
        return bool(row.get("verified")) and int(row["verifiedOffset"]) > records * 100

    try:
        until("a Job has read the archive back", known, 240, 1)
    except AssertionError as error:
        jobs = kubectl("-n", of.namespace, "get", "cronjobs,jobs,pods", "-o", "wide", check=False)
        raise AssertionError(f"{error}: {of.status()['groups']}\n{jobs}") from None
    assert int(of.status()["groups"][0]["archive"].get("faults", 0)) == 0
    of.wait_true("Archiving")


@pytest.fixture(scope="module")
def again(namespace: str, store: dict[str, Any]) -> Cluster:
    """A cluster from the archive of `shop`, which was deleted with its volumes. The group `billing` had read `READ` of
    the `COUNT` messages of the topic `Orders`.
    """
    verify = {"schedule": "* * * * *"}
    shop = cluster(namespace, "shop", archive=store | {"url": url("prod"), "interval": "2s", "verify": verify})
    gantry(shop, "produce", "Orders", "--count", str(COUNT), "--size", "100")
    gantry(shop, "consume", "Orders", "--group", "billing", "--count", str(READ), "--quiet")
    until("the offsets are in the log", lambda: unread(shop, "billing") == COUNT - READ, 30, 1)
    assert archived(shop)
    shop.wait_true("Archiving")
    verified(shop, COUNT)
    kubectl("-n", namespace, "delete", "bc", "shop", timeout=180)
    selector = "gantry.dev/cluster=shop"
    until("its volumes are gone", lambda: not get(namespace, "pvc", selector=selector), 90)
    source = store | {"url": url("prod"), "cluster": "shop"}
    archive = store | {"url": url("again"), "interval": "2s"}
    return cluster(namespace, "again", bootstrap={"fromArchive": source}, archive=archive)


def test_a_cluster_that_is_lost_with_its_volumes_comes_back(again: Cluster) -> None:
    until("the offsets of the group are those of the archive", lambda: unread(again, "billing") == COUNT - READ, 30, 1)
    gantry(again, "consume", "Orders", "--group", "billing", "--count", str(COUNT - READ), "--quiet")
    gantry(again, "consume", "Orders", "--group", "audit", "--count", str(COUNT), "--quiet")
    until("all is read", lambda: (unread(again, "billing"), unread(again, "audit")) == (0, 0), 30, 1)


def test_a_topic_of_an_archive_comes_into_a_running_cluster(namespace: str, again: Cluster, tmp_path: Path) -> None:
    """From the archive of the lost cluster, under another name."""
    keys = tmp_path / "keys"
    keys.mkdir()
    for name, value in get(namespace, "secret", SECRET)["data"].items():
        (keys / name).write_bytes(base64.b64decode(value))
    with forwarded(namespace, SERVER, 7070) as server:
        place = ["--endpoint", server, "--credentials", str(keys), "--state", str(tmp_path / "state")]
        said = gantry(again, "restore", url("prod"), "--topic", "Orders", "--as", "OrdersThen", *place, "-o", "json")
    assert json.loads(said)["messages"] == COUNT
    gantry(again, "consume", "OrdersThen", "--group", "then", "--count", str(COUNT), "--quiet")
    until("all is read", lambda: unread(again, "then") == 0, 30, 1)


def test_credentials_are_rotated_while_the_cluster_runs(namespace: str, again: Cluster) -> None:
    """The server takes another key at once, and the pods get it with the Secret, within about a minute."""
    before = {pod["metadata"]["uid"] for pod in again.pods()}
    change = f"echo {ROTATED} > /tmp/secret; kill $(cat /tmp/pid)"
    kubectl("-n", namespace, "exec", SERVER, "--", "sh", "-c", change)
    gantry(again, "produce", "Rotated", "--count", "10", "--size", "100")
    until(
        "the condition names the credentials",
        lambda: "check the credentials" in again.condition("Archiving")["message"],
        90,
    )
    apply(namespace, json.dumps(secret_with(ROTATED)))
    until("uploads go on", lambda: again.condition("Archiving")["status"] == "True", 240, 1)
    assert archived(again)
    assert {pod["metadata"]["uid"] for pod in again.pods()} == before


def test_two_sites_exchange_their_parts(namespace: str, store: dict[str, Any], again: Cluster) -> None:
    first, place = again, store | {"url": url("again")}
    second = cluster(namespace, "standby", bootstrap={"follow": place}, archive=place | {"interval": "2s"})
    second.wait_true("Standby")
    refused = run(
        str(Path(sys.executable).parent / "gantry"), "produce", "Orders", "--count", "1", "-n", namespace,
        "--cluster", "standby", "--timeout", "10", check=False,
    )  # fmt: skip
    assert "sent 1" not in refused
    old = {pod["metadata"]["uid"] for pod in second.pods()}
    second.patch({"spec": {"flush": "Sync"}})
    until("a standby's members are replaced", lambda: not old & {pod["metadata"]["uid"] for pod in second.pods()}, 90)
    second.wait_running()
    gantry(first, "produce", "Orders", "--count", "50", "--size", "100")
    token = json.loads(gantry(first, "demote", "-o", "json"))["token"]
    gantry(second, "promote", "--token", token)
    gantry(second, "consume", "Orders", "--group", "second", "--count", str(COUNT + 50), "--quiet")
    gantry(second, "produce", "Orders", "--count", "25", "--size", "100")
    assert archived(second)

    kubectl("-n", namespace, "delete", "bc", "standby", timeout=180)
    gantry(first, "promote", "--accept-loss")
    gantry(first, "consume", "Orders", "--group", "last", "--count", str(COUNT + 75), "--quiet")
    gantry(first, "produce", "Orders", "--count", "5", "--size", "100")
