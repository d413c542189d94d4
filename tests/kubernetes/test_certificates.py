"""The Secrets with a cluster's certificates, what the pods mount of them, and what the status says."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from gantry_broker.config import BrokerConfig, NameServerConfig
from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.api.status import BrokerClusterStatus, CertificateRow
from gantry_operator.certificates import x509
from gantry_operator.certificates.schedule import LEAF_LIFETIME, RENEW_AUTHORITY, RENEW_CERTIFICATES, SPREAD
from gantry_operator.certificates.x509 import KeyPair
from gantry_operator.cluster.member_http import httpx, make_client, tls_context
from gantry_operator.cluster.observed import ObservedState
from gantry_operator.cluster.status import status_of
from gantry_operator.plan.plan import plan
from gantry_operator.platforms.kubernetes import names
from gantry_operator.platforms.kubernetes.api.client import KINDS
from gantry_operator.platforms.kubernetes.api.events import EventRecorder
from gantry_operator.platforms.kubernetes.api.informer_cache import InformerCache
from gantry_operator.platforms.kubernetes.manifests import pod_parts
from gantry_operator.platforms.kubernetes.manifests.desired_objects import OperatorSettings, render
from gantry_operator.platforms.kubernetes.monitoring import metrics
from gantry_operator.platforms.kubernetes.objects.certificates import CertificateReconciler, authority_of, holders
from gantry_operator.platforms.kubernetes.objects.object_reconciler import ObjectReconciler, ReconcileResult

from tests.kubernetes.fake_api import FakeApi
from tests.support.running import until

START = datetime(2026, 3, 1, tzinfo=UTC)
SECRETS = {"demo-ca", "demo-ca-cert", "demo-a-tls", "demo-namesrv-tls"}


def cluster(**tls: Any) -> BrokerCluster:
    made = BrokerCluster.make("demo", "mq", brokerGroups=[{"name": "a"}], security={"tls": tls})
    made.metadata.uid = "u1"
    return made


def make_pair(name: str, now: datetime = START) -> KeyPair:
    """A certificate by another authority than the cluster's."""
    authority = x509.make_authority("other", "", now, timedelta(days=400))
    return x509.sign(authority, x509.Names(name, (name,)), "", now, timedelta(days=30))


class Rig:
    """A reconciler of certificates over the API in memory, with a clock of its own."""

    def __init__(self, fake: FakeApi, caches: dict[str, InformerCache]) -> None:
        self.fake, self.api, self.caches = fake, fake.api, caches
        self.now = START
        self.annotations: dict[str, str] = {}
        self.events = EventRecorder(fake.api, "mq", "demo", "u1", "test")
        self.restart()

    def restart(self) -> None:
        """Another operator, which knows only what is stored."""
        objects = ObjectReconciler(self.api, self.caches, OperatorSettings("broker:1"), "mq", "demo", "u1")
        self.certificates = CertificateReconciler(self.api, objects, self.events, "u1", lambda: self.now)

    async def keep(
        self, of: BrokerCluster | None = None, outside: dict[str, str] | None = None
    ) -> tuple[bool, list[str]]:
        found = ReconcileResult()
        resource = {"metadata": {"annotations": self.annotations}}
        of = of or cluster()
        return await self.certificates.keep(of, plan(of), outside or {}, resource, found), found.problems

    def data(self, name: str) -> dict[str, bytes]:
        secret = self.fake.get("Secret", name)
        assert secret is not None, name
        return {key: base64.b64decode(value) for key, value in secret["data"].items()}

    async def reasons(self) -> list[str]:
        await self.events.close()
        return [o["reason"] for (kind, _, _), o in self.fake.objects.items() if kind == "Event"]


@pytest.fixture
async def rig(fake: FakeApi) -> AsyncIterator[Rig]:
    caches = {"Secret": InformerCache(fake.api, KINDS["Secret"], [], names.CLUSTER_LABEL, lambda *_: None)}
    following = asyncio.create_task(caches["Secret"].run())
    await caches["Secret"].ready()
    rig = Rig(fake, caches)
    yield rig
    await rig.events.close()
    rig.certificates.close()
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


async def test_each_holder_gets_a_secret_and_a_second_pass_writes_nothing(rig: Rig) -> None:
    assert await rig.keep() == (True, [])
    assert {n for kind, _, n in rig.fake.objects if kind == "Secret"} == SECRETS
    ca = rig.data("demo-ca")
    assert rig.data("demo-ca-cert") == {"ca.crt": ca["tls.crt"]}
    assert rig.data("demo-a-tls")["ca.crt"] == ca["tls.crt"]
    assert (rig.fake.get("Secret", "demo-ca") or {})["metadata"]["ownerReferences"][0]["uid"] == "u1"
    assert sorted(await rig.reasons()) == ["AuthorityChanged", "CertificateIssued", "CertificateIssued"]
    writes = len(rig.fake.log)
    assert await rig.keep() == (True, [])
    rig.restart()
    assert await rig.keep() == (True, [])
    await rig.events.close()
    assert len(rig.fake.log) == writes, "another operator goes on with what is stored"


async def test_a_deleted_secret_comes_back_with_the_same_content(rig: Rig) -> None:
    await rig.keep()
    before = {name: rig.data(name) for name in SECRETS}
    for name in SECRETS:
        rig.fake.remove("Secret", "mq", name)
    await until(lambda: not any(rig.caches["Secret"].get("mq", name) for name in SECRETS))
    assert await rig.keep() == (True, [])
    assert {name: rig.data(name) for name in SECRETS} == before


async def test_certificates_are_renewed_in_time_and_on_request(rig: Rig) -> None:
    await rig.keep()
    first = rig.data("demo-a-tls")
    assert rig.certificates.due_s() == 600.0
    rig.now = START + LEAF_LIFETIME * 2 / 3 - timedelta(seconds=90)
    assert 80 < rig.certificates.due_s() < 100
    rig.now += timedelta(seconds=100)
    await rig.keep()
    second = rig.data("demo-a-tls")
    assert second["tls.crt"] != first["tls.crt"]
    assert second["ca.crt"] == first["ca.crt"]
    rig.annotations[RENEW_CERTIFICATES] = "1"
    await rig.keep()
    third = rig.data("demo-a-tls")
    rig.restart()
    await rig.keep()
    assert rig.data("demo-a-tls") == third != second, "a request is followed once, by whichever operator"


async def test_a_new_authority_is_trusted_before_it_signs(rig: Rig) -> None:
    await rig.keep()
    old = rig.data("demo-a-tls")
    rig.annotations[RENEW_AUTHORITY] = "1"
    await rig.keep()
    both = rig.data("demo-a-tls")
    assert both["tls.crt"] == old["tls.crt"]
    assert both["ca.crt"].count(b"BEGIN") == 2
    assert rig.certificates.trusted() == both["ca.crt"]
    rig.restart()
    rig.now += SPREAD
    await rig.keep()
    switched = rig.data("demo-a-tls")
    assert switched["tls.crt"] != old["tls.crt"]
    assert switched["ca.crt"].count(b"BEGIN") == 2
    rig.restart()
    rig.now += SPREAD
    await rig.keep()
    assert rig.data("demo-ca-cert")["ca.crt"].count(b"BEGIN") == 1
    stored = authority_of(rig.fake.get("Secret", "demo-ca"))
    assert stored is not None
    assert (stored.following, stored.former, stored.asked) == (None, None, "1")
    assert {"AuthorityAdded", "AuthorityChanged", "AuthorityDropped"} <= set(await rig.reasons())


async def test_secrets_of_others_are_never_touched(rig: Rig) -> None:
    meta = {"name": "demo-ca", "namespace": "mq", "labels": {names.CLUSTER_LABEL: "demo"}}
    secret = {"kind": "Secret", "metadata": meta | {"ownerReferences": [{"uid": "former"}]}, "data": {}}
    rig.fake.put(secret)
    await until(lambda: rig.caches["Secret"].get("mq", "demo-ca") is not None)
    complete, problems = await rig.keep()
    assert not complete
    assert "demo-ca belongs to another object" in problems[0]
    assert rig.certificates.trusted() == b""
    assert rig.fake.log == []


async def test_an_operator_under_a_refused_spec_trusts_what_the_last_one_wrote(rig: Rig) -> None:
    await rig.keep()
    rig.restart()
    assert rig.certificates.trusted() == rig.data("demo-ca-cert")["ca.crt"]


async def test_external_names_are_added_once_they_are_known(rig: Rig) -> None:
    await rig.keep()
    await rig.keep(outside={"demo-a": "mq.example.com:31000", "demo-namesrv-0": "192.0.2.7:9876"})
    group = x509.read_certificate(rig.data("demo-a-tls")["tls.crt"]).names
    assert "mq.example.com" in group
    assert "192.0.2.7" in x509.read_certificate(rig.data("demo-namesrv-tls")["tls.crt"]).names
    assert "192.0.2.7" not in group


async def test_without_tls_nothing_is_made(rig: Rig) -> None:
    assert await rig.keep(cluster(internal=False)) == (True, [])
    assert rig.fake.log == []
    assert (rig.certificates.rows, rig.certificates.for_clients) == ([], None)


async def test_clients_can_get_the_certificate_of_a_secret(rig: Rig) -> None:
    spec = cluster(mode="Required", issuer="Secret", secretName="mine", clientCertificates="Required")
    _, problems = await rig.keep(spec)
    assert "Secret mine does not exist" in problems[0]
    pair = make_pair("mq.example.com")
    data = {"tls.crt": pair.certificate, "tls.key": pair.key}
    given = {key: base64.b64encode(value).decode() for key, value in data.items()}
    rig.fake.put({"kind": "Secret", "metadata": {"name": "mine", "namespace": "mq"}, "data": given})
    complete, problems = await rig.keep(spec)
    assert complete, "the members start: Kubernetes waits for a missing Secret, and says so"
    assert "has no ca.crt" in problems[0]
    assert rig.certificates.for_clients == (pair.certificate, pair)
    row = rig.certificates.rows[-1]
    assert (row.name, row.issuer, row.notAfter) == ("mine", "Secret", "2026-03-31T00:00:00Z")
    assert (
        metrics.REGISTRY.get_sample_value(
            "gantry_operator_certificate_expiry_timestamp_seconds",
            {"namespace": "mq", "cluster": "demo", "secret": "mine"},
        )
        == datetime(2026, 3, 31, tzinfo=UTC).timestamp()
    )
    rig.fake.put(
        {"kind": "Secret", "metadata": {"name": "mine", "namespace": "mq"}, "data": given | {"tls.key": "eA=="}}
    )
    _, problems = await rig.keep(spec)
    assert "the key cannot be read" in problems[-1]
    assert rig.certificates.rows[-1].notAfter == ""


# ---- names


def test_a_certificate_has_every_name_that_others_call_its_holder_by() -> None:
    made = cluster()
    found = holders(made, plan(made), {})
    assert set(found) == {"a", names.NAME_SERVER}
    group, servers = found["a"].hosts, found[names.NAME_SERVER].hosts
    for host in ("demo-a-master.mq.svc", "demo-a-master.mq", "demo-a-master.mq.svc.cluster.local", "demo-a.mq.svc"):
        assert host in group
    assert {"*.demo-a.mq.svc", "*.demo-a.mq", "localhost", "127.0.0.1", "::1"} <= set(group)
    assert {"demo-namesrv-1.mq.svc", "demo-namesrv.mq.svc", "localhost"} <= set(servers)
    assert found["a"].uris == ("gantry://demo/a",)
    assert found[names.NAME_SERVER].uris == ("gantry://demo/nameserver",)


def test_members_that_come_or_go_need_no_other_certificate() -> None:
    few, many = (BrokerCluster.make("demo", "mq", brokerGroups=[{"name": "a", "members": n}]) for n in (2, 5))
    assert holders(few, plan(few), {}) == holders(many, plan(many), {})


def test_a_group_with_the_name_of_the_nameservers_has_the_uris_of_its_members() -> None:
    made = BrokerCluster.make("demo", "mq", brokerGroups=[{"name": "nameserver", "members": 2}])
    uris = holders(made, plan(made), {})["nameserver"].uris
    assert uris == ("gantry://demo/nameserver/0", "gantry://demo/nameserver/1")


# ---- pods


def texts(made: BrokerCluster) -> dict[str, str]:
    objects = render(made, plan(made), OperatorSettings("broker:1"))
    return {name: text for o in objects if o["kind"] == "ConfigMap" for name, text in o["data"].items()}


def templates(made: BrokerCluster) -> dict[str, dict[str, Any]]:
    objects = render(made, plan(made), OperatorSettings("broker:1"))
    return {o["metadata"]["name"]: o["spec"]["template"] for o in objects if o["kind"] == "StatefulSet"}


def test_pods_mount_their_certificates_and_are_probed_by_https() -> None:
    for name, template in templates(cluster()).items():
        (container,) = template["spec"]["containers"]
        assert {"name": "tls", "secret": {"secretName": f"{name}-tls"}} in template["spec"]["volumes"]
        assert {"name": "tls", "mountPath": pod_parts.TLS_DIR, "readOnly": True} in container["volumeMounts"]
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert container[probe]["httpGet"]["scheme"] == "HTTPS"
        assert template["metadata"]["annotations"][names.HTTP_SCHEME] == "https"
    broker = BrokerConfig.model_validate_json(texts(cluster())["demo-a-0.json"])
    server = NameServerConfig.model_validate_json(texts(cluster())["demo-namesrv-0.json"])
    assert broker.tls is None
    assert server.tls is None
    assert broker.internal_tls is not None
    assert str(broker.internal_tls.cert_file) == "/etc/gantry-tls/tls.crt"
    assert broker.internal_tls == server.internal_tls


def test_without_tls_between_members_pods_are_as_before() -> None:
    for template in templates(cluster(internal=False)).values():
        (container,) = template["spec"]["containers"]
        assert container["livenessProbe"]["httpGet"]["scheme"] == "HTTP"
        assert "tls" not in {v["name"] for v in template["spec"]["volumes"]}
    assert BrokerConfig.model_validate_json(texts(cluster(internal=False))["demo-a-0.json"]).internal_tls is None


@pytest.mark.parametrize("issuer", ["Operator", "Secret"])
def test_the_ports_for_clients_have_the_certificate_of_their_issuer(issuer: str) -> None:
    more = {"secretName": "mine"} if issuer == "Secret" else {}
    made = cluster(mode="Permissive", clientCertificates="Optional", issuer=issuer, **more)
    folder = {"Operator": "/etc/gantry-tls", "Secret": "/etc/gantry-client-tls"}[issuer]
    for config in (
        BrokerConfig.model_validate_json(texts(made)["demo-a-0.json"]),
        NameServerConfig.model_validate_json(texts(made)["demo-namesrv-0.json"]),
    ):
        assert config.tls is not None
        assert config.internal_tls is not None
        assert (config.tls.mode, config.tls.client_certificates) == ("Permissive", "Optional")
        assert str(config.tls.cert_file) == f"{folder}/tls.crt"
        assert str(config.tls.client_ca_file) == f"{folder}/ca.crt"
        assert str(config.internal_tls.cert_file) == "/etc/gantry-tls/tls.crt"
    volumes = templates(made)["demo-a"]["spec"]["volumes"]
    assert ({"name": "client-tls", "secret": {"secretName": "mine"}} in volumes) == (issuer == "Secret")


def test_the_operator_calls_each_pod_as_it_runs() -> None:
    (container,) = templates(cluster())["demo-a"]["spec"]["containers"]
    assert pod_parts.scheme_of({"spec": {"containers": [container]}}) == "https"
    (container,) = templates(cluster(internal=False))["demo-a"]["spec"]["containers"]
    assert pod_parts.scheme_of({"spec": {"containers": [container]}}) == "http"
    assert pod_parts.scheme_of(None) == "http"


# ---- the operator's client


async def serve(context: ssl.SSLContext) -> asyncio.Server:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok")
        await writer.drain()
        writer.close()

    return await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)


async def test_the_operator_trusts_the_present_authorities_only(tmp_path: Any) -> None:
    now = datetime.now(UTC)
    one, two = (x509.make_authority("demo", "mq", now, timedelta(days=1)) for _ in range(2))
    leaf = x509.sign(one, x509.Names("demo-a", ("demo-a.mq.svc",)), "mq", now, timedelta(days=1))
    (tmp_path / "pair.pem").write_bytes(leaf.certificate + leaf.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "pair.pem")
    trusted = b""
    server = await serve(context)
    url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    async with server, make_client(lambda: "t", lambda: trusted) as client:
        with pytest.raises(httpx.ConnectError, match="authority is not known yet"):
            await client.get(url)
        trusted = two.certificate
        with pytest.raises(httpx.ConnectError, match="certificate verify failed"):
            await client.get(url)
        trusted = two.certificate + one.certificate
        assert (await client.get(url)).text == "ok"


def test_a_context_for_clients_can_show_a_certificate() -> None:
    pair = make_pair("demo")
    assert tls_context(pair.certificate, (pair.certificate, pair.key)) is not None
    assert tls_context(b"no certificate") is None
    assert tls_context(pair.certificate, (pair.certificate, b"no key")) is None


# ---- status


@pytest.mark.parametrize(
    ("until", "status", "reason"),
    [
        ("2026-06-01T00:00:00Z", "True", "Valid"),
        ("2026-03-10T00:00:00Z", "False", "Expiring"),
        ("2026-02-01T00:00:00Z", "False", "Expired"),
        ("", "False", "Unreadable"),
    ],
)
def test_the_status_shows_certificates(until: str, status: str, reason: str) -> None:
    rows = [
        CertificateRow(name="demo-ca", issuer="Operator", notAfter="2031-03-01T00:00:00Z"),
        CertificateRow(name="mine", issuer="Secret", notAfter=until),
    ]
    seen = ObservedState(members=[], name_servers=[], available={}, certificates=rows)
    found = status_of(cluster(), BrokerClusterStatus(), seen, "2026-03-01T00:00:00Z", 1)
    assert found.certificates == rows
    (condition,) = (c for c in found.conditions if c.type == "CertificatesValid")
    assert (condition.status, condition.reason) == (status, reason)
    assert "mine" in condition.message


def test_a_cluster_without_tls_has_no_condition_about_certificates() -> None:
    seen = ObservedState(members=[], name_servers=[], available={})
    found = status_of(cluster(), BrokerClusterStatus(), seen, "2026-03-01T00:00:00Z", 1)
    assert "CertificatesValid" not in {c.type for c in found.conditions}
