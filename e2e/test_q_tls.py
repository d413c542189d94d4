"""The quickstart with TLS and authentication: certificates that are renewed under load, and what strangers may not."""

from __future__ import annotations

import base64
import json
import time
from typing import Any

import pytest
import yaml
from cryptography import x509
from gantry_broker.client import Producer
from gantry_operator.platforms.kubernetes.targets.target import KubeTarget
from kube import BROKER_IMAGE, Cluster, Figure, Load, apply, calm, example, get, kubectl, unharmed, until

SPREAD_S = 180
"""Seconds after which a requested authority signs, and again until the former one is dropped."""


@pytest.fixture(scope="module")
def secure(namespace: str) -> Cluster:
    """examples/quickstart.yaml for clients with TLS."""
    document = yaml.safe_load(example("quickstart.yaml"))
    document["spec"]["security"] = {"tls": {"mode": "Required"}}
    apply(namespace, yaml.safe_dump(document))
    cluster = Cluster(namespace)
    cluster.wait_running()
    return cluster


def secret(cluster: Cluster, name: str) -> dict[str, bytes]:
    data = get(cluster.namespace, "secret", name)["data"]
    return {key: base64.b64decode(value) for key, value in data.items()}


def serial(cluster: Cluster, name: str = "demo-a-tls") -> int:
    return x509.load_pem_x509_certificate(secret(cluster, name)["tls.crt"]).serial_number


def presented(cluster: Cluster, pod: str) -> dict[str, int]:
    """The serial numbers of the certificates that a broker presents now, by port, as seen in its own pod."""
    script = (
        "import ssl,sys;from cryptography import x509\n"
        "for port in (10911, 10921):\n"
        " pem=ssl.get_server_certificate(('127.0.0.1', port))\n"
        " print(port, x509.load_pem_x509_certificate(pem.encode()).serial_number)"
    )
    said = kubectl("-n", cluster.namespace, "exec", pod, "--", "python", "-c", script, check=False)
    return {line.split()[0]: int(line.split()[1]) for line in said.splitlines() if line.count(" ") == 1}


def annotate(cluster: Cluster, name: str) -> None:
    kubectl("-n", cluster.namespace, "annotate", "bc", cluster.name, f"{name}={time.time_ns()}", "--overwrite")


def test_the_quickstart_with_tls_and_authentication(secure: Cluster, figure: Figure) -> None:
    result = Load(secure, "with-tls", 20).result()
    figure("TLS: calm load in a pod", result)
    calm(result, 200)
    secure.wait_true("Available", "Secured", "CertificatesValid")
    names = {row["name"] for row in secure.status()["certificates"]}
    assert names == {"demo-ca", "demo-a-tls", "demo-namesrv-tls"}


def test_strangers_without_tls_or_a_certificate_are_refused(secure: Cluster) -> None:
    """A pod without the token and without a certificate: clear text at each port, and TLS at those of members."""
    master = secure.master()
    script = """
import json, socket, ssl, sys
host, said = sys.argv[1], {}
for port in (10911, 10912, 10921):
    with socket.create_connection((host, port), 60) as plain:
        plain.sendall(b"GET /v1/status HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n")
        plain.settimeout(8)
        try:
            said[f"clear {port}"] = plain.recv(200).decode("latin-1")
        except OSError as error:
            said[f"clear {port}"] = ""
context = ssl._create_unverified_context()
try:
    with context.wrap_socket(socket.create_connection((host, 10912), 60), server_hostname="x") as tls:
        tls.sendall(b"x" * 64)
        tls.settimeout(8)
        said["member port"] = tls.recv(100).decode("latin-1")
except OSError as error:
    said["member port"] = ""
print(json.dumps(said))
"""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "stranger"},
        "spec": {
            "restartPolicy": "Never",
            "containers": [
                {
                    "name": "stranger",
                    "image": BROKER_IMAGE,
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["python", "-c", script, master["status"]["podIP"]],
                }
            ],
        },
    }
    apply(secure.namespace, json.dumps(pod))
    until("it ends", lambda: get(secure.namespace, "pod", "stranger")["status"]["phase"] in ("Succeeded", "Failed"), 90)
    said = json.loads(kubectl("-n", secure.namespace, "logs", "stranger").splitlines()[-1])
    kubectl("-n", secure.namespace, "delete", "pod", "stranger", "--wait=false")
    assert not any("HTTP/1.1 200" in text or "epoch" in text for text in said.values()), said
    assert said["member port"] == "", said


async def test_the_command_reaches_it_through_the_api_server(secure: Cluster) -> None:
    async with KubeTarget(namespace=secure.namespace) as target:
        servers, key = await target.name_servers(), await target.super_user()
        async with Producer(servers, credentials=key, tls=await target.client_tls()) as producer:
            results = [await producer.send("Outside", b"x", timeout=60) for _ in range(5)]
        assert {r.status.name for r in results} == {"SEND_OK"}
        assert len(await target.members_http()) == 3


def wait_until_presented(cluster: Cluster, before: int) -> None:
    """Waits until all brokers present the newest certificate at both ports, which has another serial than `before`."""

    def newest(member: str) -> bool:
        now = serial(cluster)
        return now != before and presented(cluster, member) == {"10911": now, "10921": now}

    for pod in cluster.pods():
        name = pod["metadata"]["name"]
        until(f"{name} presents the new one", lambda name=name: newest(name), 180, 2)


def test_certificates_are_renewed_under_load_without_a_failed_send(secure: Cluster, figure: Figure) -> None:
    before, uids = serial(secure), secure.uids()
    load = Load(secure, "renewal")
    annotate(secure, "gantry.dev/renew-certificates")
    until("there are new certificates", lambda: serial(secure) != before, 60)
    wait_until_presented(secure, before)
    # A failover makes new connections with the new certificates.
    epoch = secure.epoch()
    secure.switch_over()
    until("another master leads", lambda: secure.epoch() > epoch, 60)
    secure.wait_running()
    result = load.stop()
    figure("TLS: certificates renewed under load", result)
    unharmed(result)
    assert secure.uids() == uids, "no pod was restarted"


def test_a_new_authority_takes_over_under_load(secure: Cluster, figure: Figure) -> None:
    first, uids, before = secret(secure, "demo-ca")["tls.crt"], secure.uids(), serial(secure)
    load = Load(secure, "authority")
    annotate(secure, "gantry.dev/renew-authority")
    until("two are trusted", lambda: secret(secure, "demo-ca-cert")["ca.crt"].count(b"BEGIN") == 2, 60)
    assert secret(secure, "demo-ca")["tls.crt"] == first, "the new one does not sign yet"
    until("the new one signs", lambda: secret(secure, "demo-ca")["tls.crt"] != first, SPREAD_S + 60, 2)
    wait_until_presented(secure, before)
    result = load.stop()
    figure("TLS: a new authority under load", result)
    unharmed(result)
    assert secure.uids() == uids, "no pod was restarted"
    reasons: set[Any] = {e["reason"] for e in secure.events()}
    assert {"AuthorityAdded", "AuthorityChanged"} <= reasons
