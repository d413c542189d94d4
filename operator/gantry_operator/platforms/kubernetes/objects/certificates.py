"""The certificates of one cluster on Kubernetes, as Secrets: the authority, its public part, one for each holder.

A holder is a broker group or the NameServers. Pods mount the Secret of their holder, and the kubelet brings changes
into running pods.
"""

from __future__ import annotations

import base64
import logging
import ssl
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from gantry_broker.remoting.handshake import Identity

from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.api.status import CertificateRow
from gantry_operator.certificates.renewal import (
    Asked,
    Authority,
    Certificates,
    Note,
    due_s,
    expiry_of,
    is_due,
    renew,
    renewal_of,
    trusted,
)
from gantry_operator.certificates.schedule import RENEW_AUTHORITY, RENEW_CERTIFICATES
from gantry_operator.certificates.x509 import KeyPair, Names, UnusableCertificate
from gantry_operator.cluster.member_http import tls_context
from gantry_operator.plan.plan import Plan
from gantry_operator.plan.tls_files import AUTHORITIES, CERTIFICATE, KEY
from gantry_operator.platforms.kubernetes import names
from gantry_operator.platforms.kubernetes.api.client import SECRET, KubeApi, Object
from gantry_operator.platforms.kubernetes.api.events import EventRecorder
from gantry_operator.platforms.kubernetes.manifests import external, pod_parts, proxies
from gantry_operator.platforms.kubernetes.monitoring import metrics
from gantry_operator.platforms.kubernetes.objects import drift
from gantry_operator.platforms.kubernetes.objects.object_reconciler import ObjectReconciler, ReconcileResult

log = logging.getLogger(__name__)

NEXT_CERTIFICATE, NEXT_KEY, FORMER = "next.crt", "next.key", "former.crt"
"""Keys of the authority's Secret besides those of the present authority."""
SWITCH_AT = "gantry.dev/switch-at"
DROP_AT = "gantry.dev/drop-at"
FOLLOWED = "gantry.dev/renewed"
"""Annotations of the Secrets: times of the authority's next steps, and the last request that was followed."""


def holders(cluster: BrokerCluster, plan: Plan, outside: Mapping[str, str]) -> dict[str, Names]:
    """Return the certificates to issue. `outside`: external address by endpoint name, as far as they are known.

    Clients meet each name of a Service, a pod and an external address. The URI is what members prove to each other.
    """
    name, namespace = cluster.name, cluster.namespace
    by_holder: dict[str, Names] = {}
    if proxies.own_certificate(cluster):
        endpoint = external.proxy_endpoint(cluster).name
        hosts = (*_hosts([names.proxies(name)], namespace), *_outside(outside, [endpoint]))
        by_holder[names.PROXY] = Names(names.proxies(name), hosts, ())
    if not pod_parts.own_authority(cluster):
        return by_holder
    services = [names.name_servers(name), *(s.name for s in plan.name_servers)]
    by_holder[names.NAME_SERVER] = Names(
        names.name_servers(name),
        (*_hosts(services, namespace), *_outside(outside, [s.name for s in plan.name_servers])),
        Identity(cluster.broker_cluster_name, "", 0).uris,
    )
    for group in plan.groups:
        headless = names.group_set(name, group.name)
        services = [names.master_service(name, group.name), headless]
        each = [f"*.{form}" for form in names.host_forms(names.service_host(headless, namespace))[1:]]
        endpoints = [headless, *(m.name for m in group.members)]
        uris = dict.fromkeys(
            Identity(cluster.broker_cluster_name, cluster.broker_name(group.name), m.number).uris[-1]
            for m in group.members
        )
        by_holder[group.name] = Names(
            headless, (*_hosts(services, namespace), *each, *_outside(outside, endpoints)), tuple(uris)
        )
    return by_holder


def _hosts(services: Iterable[str], namespace: str) -> list[str]:
    forms = [form for s in services for form in names.host_forms(names.service_host(s, namespace))]
    return [*dict.fromkeys(forms), "localhost", "127.0.0.1", "::1"]


def _outside(addresses: Mapping[str, str], endpoints: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(addresses[e].rpartition(":")[0].strip("[]") for e in endpoints if e in addresses))


# ---- Secrets


def _encoded(values: Mapping[str, bytes]) -> dict[str, str]:
    return {key: base64.b64encode(value).decode() for key, value in values.items()}


def decoded(secret: Object | None) -> dict[str, bytes]:
    data = {}
    for key, value in ((secret or {}).get("data") or {}).items():
        with suppress(ValueError, TypeError):
            data[key] = base64.b64decode(value, validate=True)
    return data


def _annotation(secret: Object | None, name: str) -> str:
    return str((((secret or {}).get("metadata") or {}).get("annotations") or {}).get(name, ""))


def _time(text: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else None


def _pair(data: Mapping[str, bytes], certificate: str = CERTIFICATE, key: str = KEY) -> KeyPair | None:
    if not data.get(certificate) or not data.get(key):
        return None
    return KeyPair(data[certificate], data[key])


def authority_of(secret: Object | None) -> Authority | None:
    """Return the authority in a Secret as the API returns it; None: there is none."""
    data = decoded(secret)
    current = _pair(data)
    if current is None:
        return None
    return Authority(
        current,
        _pair(data, NEXT_CERTIFICATE, NEXT_KEY),
        data.get(FORMER) or None,
        _time(_annotation(secret, SWITCH_AT)),
        _time(_annotation(secret, DROP_AT)),
        _annotation(secret, FOLLOWED),
    )


def authority_secret(cluster: BrokerCluster, authority: Authority) -> Object:
    """Return the authority with its key. cert-manager can use it as a CA, too."""
    following = authority.following or KeyPair(b"", b"")
    meta = names.metadata(cluster, names.ca_secret(cluster.name), names.CERTIFICATES)
    meta["annotations"] = {
        SWITCH_AT: "" if authority.switch_at is None else authority.switch_at.isoformat(),
        DROP_AT: "" if authority.drop_at is None else authority.drop_at.isoformat(),
        FOLLOWED: authority.asked,
    }
    data = {
        CERTIFICATE: authority.current.certificate,
        KEY: authority.current.key,
        NEXT_CERTIFICATE: following.certificate,
        NEXT_KEY: following.key,
        FORMER: authority.former or b"",
    }
    return _secret(meta, data)


def public_secret(cluster: BrokerCluster, authority: Authority) -> Object:
    """Return what clients trust."""
    meta = names.metadata(cluster, names.ca_cert_secret(cluster.name), names.CERTIFICATES)
    return _secret(meta, {AUTHORITIES: trusted(authority)}, "Opaque")


def leaf_secret(cluster: BrokerCluster, holder: str, leaf: KeyPair, authority: Authority, followed: str) -> Object:
    component = names.PROXY if holder == names.PROXY else names.CERTIFICATES
    meta = names.metadata(cluster, names.tls_secret(cluster.name, holder), component)
    meta["annotations"] = {FOLLOWED: followed}
    return _secret(meta, {CERTIFICATE: leaf.certificate, KEY: leaf.key, AUTHORITIES: trusted(authority)})


def _secret(meta: dict[str, Any], data: Mapping[str, bytes], kind: str = "kubernetes.io/tls") -> Object:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "type": kind, "data": _encoded(data)}


# ---- the reconciler


class CertificateReconciler:
    """The certificates of one cluster object. The operator's own copy restores a Secret that somebody deleted."""

    def __init__(
        self, api: KubeApi, objects: ObjectReconciler, events: EventRecorder, uid: str,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:  # fmt: skip
        self.for_clients: tuple[bytes, KeyPair | None] | None = None
        """How to call the ports for clients while they need TLS: the authorities, and a certificate to show. None: they
        take clear text, or nothing is known yet."""
        self.rows: list[CertificateRow] = []
        self._api = api
        self._objects = objects
        self._events = events
        self._uid = uid
        self._now = now
        self._held = Certificates()
        self._measured: set[tuple[str, str, str]] = set()

    def for_calls(self) -> ssl.SSLContext | None:
        """Return how to call the ports for clients; None: they need no TLS."""
        if self.for_clients is None:
            return None
        authorities, pair = self.for_clients
        return tls_context(authorities, None if pair is None else (pair.certificate, pair.key))

    def trusted(self) -> bytes:
        """Return the authorities of the members' certificates as PEM; empty: none is known.

        Before the first pass, and under a refused spec, those that the last operator wrote.
        """
        if self._held.authority is not None:
            return trusted(self._held.authority)
        live = self._objects.live("Secret", names.ca_cert_secret(self._objects.name))
        return decoded(live).get(AUTHORITIES, b"") if live is not None and drift.owned_by(live, self._uid) else b""

    def due_s(self) -> float:
        """Seconds until the next look."""
        return due_s(self._held, self._now())

    def is_due(self) -> bool:
        """Whether that look is due by the wall clock."""
        return is_due(self._held, self._now())

    async def keep(
        self, cluster: BrokerCluster, plan: Plan, outside: Mapping[str, str], resource: Object, result: ReconcileResult
    ) -> bool:
        """One pass, before the pods that mount the Secrets. False: not complete, so look again.

        Raises ApiError and ApiUnavailable.
        """
        rows: list[CertificateRow] = []
        complete = True
        if pod_parts.own_authority(cluster) or proxies.own_certificate(cluster):
            complete = await self._keep_own(cluster, plan, outside, resource, rows, result)
        tls = cluster.spec.security.tls
        self.for_clients = None
        if tls.mode == "Required" and tls.issuer == "Operator" and complete:
            self.for_clients = (self.trusted(), self._held.leaves.get(names.NAME_SERVER))
        if tls.mode != "Disabled" and tls.issuer == "Secret":
            rows.append(await self._of_user(cluster, str(tls.secretName), result))
        named = None if proxies.spec(cluster) is None or cluster.spec.proxy is None else cluster.spec.proxy.tls
        if named is not None and named.secretName is not None:
            rows.append(await self._of_proxies(cluster, named.secretName, result))
        self.rows = rows
        self._measure(cluster, rows)
        return complete

    async def _keep_own(
        self, cluster: BrokerCluster, plan: Plan, outside: Mapping[str, str], resource: Object,
        rows: list[CertificateRow], result: ReconcileResult,
    ) -> bool:  # fmt: skip
        needed = holders(cluster, plan, outside)
        foreign = self._of_a_former(cluster, needed)
        if foreign:
            result.problems.append(f"Secret {foreign} belongs to another object: if it is a former cluster, wait")
            return False
        self._load(cluster, needed)
        given = (resource["metadata"].get("annotations") or {}).get
        requests = Asked(str(given(RENEW_CERTIFICATES, "")), str(given(RENEW_AUTHORITY, "")))
        held, notes = renew(self._held, needed, (cluster.namespace, cluster.name), requests, self._now())
        authority = held.authority
        assert authority is not None
        # The authority first: a certificate whose authority was lost would be worthless.
        for obj in (authority_secret(cluster, authority), public_secret(cluster, authority)):
            if not await self._objects.apply(obj, result):
                return False
        # Kept only now: an authority that could not be written has signed nothing.
        self._held = held
        for holder, leaf in held.leaves.items():
            obj = leaf_secret(cluster, holder, leaf, authority, held.followed.get(holder, ""))
            if not await self._objects.apply(obj, result):
                return False
        self._say(notes)
        until = expiry_of(authority.current.certificate)
        rows.append(_row(names.ca_secret(cluster.name), "Operator", until, renewal_of(authority.current)))
        for holder, leaf in held.leaves.items():
            name = names.tls_secret(cluster.name, holder)
            rows.append(_row(name, "Operator", expiry_of(leaf.certificate), renewal_of(leaf)))
        return True

    def _load(self, cluster: BrokerCluster, needed: Iterable[str]) -> None:
        """Take what the Secrets hold. A missing or unreadable Secret leaves the operator's own copy."""
        secret = self._objects.live("Secret", names.ca_secret(cluster.name))
        authority = authority_of(secret) or self._held.authority
        leaves, followed = dict(self._held.leaves), dict(self._held.followed)
        for holder in needed:
            live = self._objects.live("Secret", names.tls_secret(cluster.name, holder))
            pair = _pair(decoded(live))
            if pair is not None:
                leaves[holder], followed[holder] = pair, _annotation(live, FOLLOWED)
        self._held = Certificates(authority, leaves, followed)

    def _of_a_former(self, cluster: BrokerCluster, needed: Iterable[str]) -> str:
        """Return a Secret with one of our names that is not this object's; empty: there is none."""
        mine = [names.ca_secret(cluster.name), names.ca_cert_secret(cluster.name)]
        for name in [*mine, *(names.tls_secret(cluster.name, h) for h in needed)]:
            live = self._objects.live("Secret", name)
            if live is not None and not drift.owned_by(live, self._uid):
                return name
        return ""

    async def _of_user(self, cluster: BrokerCluster, name: str, result: ReconcileResult) -> CertificateRow:
        """Return the certificate in a Secret that the spec names. Only its name is known, so it is read by that."""
        secret = await self._api.get(SECRET, cluster.namespace, name)
        data = decoded(secret)
        where = f"spec.security.tls.secretName: Secret {name}"
        if secret is None:
            result.problems.append(f"{where} does not exist: create it with {CERTIFICATE}, {KEY} and {AUTHORITIES}")
            return _row(name, "Secret", None, None)
        for needed, what in (
            (cluster.spec.security.tls.clientCertificates != "None", "clientCertificates needs"),
            (proxies.wanted(cluster), "the proxies need to verify brokers"),
        ):
            if needed and not data.get(AUTHORITIES):
                result.problems.append(f"{where} has no {AUTHORITIES}, which {what}: add it")
        pair = _pair(data)
        try:
            if pair is None:
                raise UnusableCertificate(f"it lacks {CERTIFICATE} or {KEY}")
            renewal_of(pair)  # It reads the key, too.
            if cluster.spec.security.tls.mode == "Required":
                self.for_clients = (data.get(AUTHORITIES) or pair.certificate, pair)
            return _row(name, "Secret", expiry_of(pair.certificate), None)
        except UnusableCertificate as error:
            result.problems.append(f"{where} cannot be used: {error}")
            return _row(name, "Secret", None, None)

    async def _of_proxies(self, cluster: BrokerCluster, name: str, result: ReconcileResult) -> CertificateRow:
        """Return the certificate that `spec.proxy.tls.secretName` names."""
        secret = await self._api.get(SECRET, cluster.namespace, name)
        data = decoded(secret)
        where = f"spec.proxy.tls.secretName: Secret {name}"
        if cluster.spec.security.tls.clientCertificates != "None" and secret is not None and not data.get(AUTHORITIES):
            result.problems.append(f"{where} has no {AUTHORITIES}, which clientCertificates needs: add it")
        try:
            pair = _pair(data)
            if pair is None:
                missing = "does not exist" if secret is None else f"lacks {CERTIFICATE} or {KEY}"
                raise UnusableCertificate(f"it {missing}")
            renewal_of(pair)  # It reads the key, too.
            return _row(name, "Secret", expiry_of(pair.certificate), None)
        except UnusableCertificate as error:
            result.problems.append(f"{where} cannot be used: {error}")
            return _row(name, "Secret", None, None)

    def _say(self, notes: Iterable[Note]) -> None:
        for note in notes:
            self._events.record("Normal", note.reason, note.message)

    def _measure(self, cluster: BrokerCluster, rows: Iterable[CertificateRow]) -> None:
        now = set()
        for row in rows:
            until = _time(row.notAfter)
            if until is not None:
                labels = (cluster.namespace, cluster.name, row.name)
                metrics.CERTIFICATE_EXPIRY.labels(*labels).set(until.timestamp())
                now.add(labels)
        for labels in self._measured - now:
            metrics.CERTIFICATE_EXPIRY.remove(*labels)
        self._measured = now

    def close(self) -> None:
        for labels in self._measured:
            metrics.CERTIFICATE_EXPIRY.remove(*labels)
        self._measured = set()


def _row(name: str, issuer: str, until: datetime | None, renewed: datetime | None) -> CertificateRow:
    return CertificateRow(
        name=name,
        issuer=issuer,
        notAfter="" if until is None else until.strftime("%Y-%m-%dT%H:%M:%SZ"),
        renewalTime=None if renewed is None else renewed.strftime("%Y-%m-%dT%H:%M:%SZ"),
    )
