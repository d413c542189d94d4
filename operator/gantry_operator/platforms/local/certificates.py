"""The certificates of a local cluster: the folder `tls`, with the authority and a folder for each holder.

A holder is a broker group or the NameServers. All files are for this user alone. Processes read a changed certificate
again by themselves.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gantry_broker.remoting.handshake import Identity
from gantry_broker.remoting.tls import TlsOptions

from gantry_operator import certificates
from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.api.status import CertificateRow
from gantry_operator.plan.plan import Plan
from gantry_operator.plan.tls_files import AUTHORITIES, CERTIFICATE, KEY
from gantry_operator.platforms.local.folder import ClusterFolder, make_private, read_json
from gantry_operator.platforms.local.ports import HOST
from gantry_operator.registry.file import write_durably

if TYPE_CHECKING:
    from gantry_operator.plan.process_config import TlsFolders

NAME_SERVERS = "namesrv"
PROXIES = "proxy"
NOT_HERE = "spec.security.tls.issuer is Secret, which Kubernetes alone has: write issuer: Operator without secretName"
NOT_HERE_EITHER = "spec.proxy.tls.secretName names a Secret, which Kubernetes alone has: leave it out"


def uses_tls(cluster: BrokerCluster) -> bool:
    tls = cluster.spec.security.tls
    return tls.mode != "Disabled" or tls.between_members(kubernetes=False)


def proxy_has_tls(cluster: BrokerCluster) -> bool:
    """Whether the proxies take TLS from gRPC clients."""
    proxy = cluster.spec.proxy
    return proxy is not None and proxy.replicas > 0 and proxy.tls_mode(cluster.spec.security.tls.mode) != "Disabled"


def scheme(cluster: BrokerCluster) -> str:
    """How the HTTP interfaces of members are called."""
    return "https" if cluster.spec.security.tls.between_members(kubernetes=False) else "http"


def authorities_file(folder: ClusterFolder) -> Path:
    """Return the file that clients trust."""
    return folder.tls / AUTHORITIES


def read_authorities(folder: ClusterFolder) -> bytes:
    """Return the authorities as PEM; empty: there are none."""
    try:
        return authorities_file(folder).read_bytes()
    except OSError:
        return b""


def holder_folder(folder: ClusterFolder, holder: str) -> Path:
    return folder.tls / holder


def tls_folders(cluster: BrokerCluster, folder: ClusterFolder, holder: str) -> TlsFolders:
    from gantry_operator.plan.process_config import TlsFolders

    tls = cluster.spec.security.tls
    place = holder_folder(folder, holder)
    return TlsFolders(
        clients=None if tls.mode == "Disabled" else place,
        members=place if tls.between_members(kubernetes=False) else None,
    )


def client_options(cluster: BrokerCluster, folder: ClusterFolder) -> TlsOptions | None:
    """How this user's programs call the ports for clients; None: in clear text.

    They show the certificate of the NameServers to ports that ask for one.
    """
    tls = cluster.spec.security.tls
    if tls.mode == "Disabled":
        return None
    own = holder_folder(folder, NAME_SERVERS)
    if tls.clientCertificates == "None":
        return TlsOptions(authorities_file(folder))
    return TlsOptions(authorities_file(folder), own / CERTIFICATE, own / KEY)


def holders(cluster: BrokerCluster, plan: Plan) -> dict[str, certificates.Names]:
    """Return the certificates to issue: all ports are on one address of this machine."""
    name = cluster.name
    hosts = tuple(dict.fromkeys(("localhost", "127.0.0.1", "::1", HOST)))
    names = {}
    if plan.proxies:
        names[PROXIES] = certificates.Names(f"{name}-proxy", hosts, ())
    if not uses_tls(cluster):
        return names
    names[NAME_SERVERS] = certificates.Names(
        f"{name}-namesrv", hosts, Identity(cluster.broker_cluster_name, "", 0).uris
    )
    for group in plan.groups:
        uris = dict.fromkeys(
            Identity(cluster.broker_cluster_name, cluster.broker_name(group.name), m.number).uris[-1]
            for m in group.members
        )
        names[group.name] = certificates.Names(f"{name}-{group.name}", hosts, tuple(uris))
    return names


class LocalCertificates:
    """The certificates of one folder. One process keeps them: the supervisor, or `gantry up` before it starts."""

    def __init__(self, folder: ClusterFolder, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._folder = folder
        self._now = now
        self._held = certificates.Certificates()
        self._written: dict[Path, bytes] = {}

    def trusted(self) -> bytes:
        """Return the authorities of the members, as PEM; empty: there are none."""
        return b"" if self._held.authority is None else certificates.trusted(self._held.authority)

    def due_s(self) -> float:
        """Seconds until the next look."""
        return certificates.due_s(self._held, self._now())

    def is_due(self) -> bool:
        """Whether that look is due by the wall clock."""
        return certificates.is_due(self._held, self._now())

    def keep(self, cluster: BrokerCluster, plan: Plan) -> list[certificates.Note]:
        """Write what is missing or due. Returns what changed. Raises OSError."""
        if not (uses_tls(cluster) or proxy_has_tls(cluster)):
            return []
        needed = holders(cluster, plan)
        make_private(self._folder.tls)
        self._load(needed)
        given = cluster.metadata.annotations.get
        requests = certificates.Asked(
            given(certificates.RENEW_CERTIFICATES, ""), given(certificates.RENEW_AUTHORITY, "")
        )
        held, notes = certificates.renew(self._held, needed, ("", cluster.name), requests, self._now())
        assert held.authority is not None
        # The authority first: a certificate whose authority was lost would be worthless.
        self._write(self._folder.tls / "authority.json", json.dumps(_stored(held), indent=1).encode())
        self._held = held
        bundle = certificates.trusted(held.authority)
        self._write(authorities_file(self._folder), bundle)
        for holder, leaf in held.leaves.items():
            place = holder_folder(self._folder, holder)
            make_private(place)
            self._write(place / AUTHORITIES, bundle)
            # A process that reads between the two sees that they do not fit, and reads again.
            self._write(place / KEY, leaf.key)
            self._write(place / CERTIFICATE, leaf.certificate)
        return notes

    def _load(self, needed: Mapping[str, certificates.Names]) -> None:
        authority, followed = _read(read_json(self._folder.tls / "authority.json"))
        leaves = dict(self._held.leaves)
        for holder in needed:
            place = holder_folder(self._folder, holder)
            with suppress(OSError):
                leaves[holder] = certificates.KeyPair((place / CERTIFICATE).read_bytes(), (place / KEY).read_bytes())
        self._held = certificates.Certificates(
            authority or self._held.authority, leaves, followed or dict(self._held.followed)
        )

    def _write(self, path: Path, content: bytes) -> None:
        try:
            if path.read_bytes() == content:
                return
        except OSError:
            pass
        write_durably(path, content.decode("ascii"))
        path.chmod(0o600)


def rows(folder: ClusterFolder, cluster: BrokerCluster, plan: Plan) -> list[CertificateRow]:
    """Return the certificates for the status."""
    if not (uses_tls(cluster) or proxy_has_tls(cluster)):
        return []
    authority, _ = _read(read_json(folder.tls / "authority.json"))
    rows = [_row("ca", None if authority is None else authority.current)]
    for holder in holders(cluster, plan):
        place = holder_folder(folder, holder)
        try:
            pair: certificates.KeyPair | None = certificates.KeyPair(
                (place / CERTIFICATE).read_bytes(), (place / KEY).read_bytes()
            )
        except OSError:
            pair = None
        rows.append(_row(holder, pair))
    return rows


def _row(name: str, pair: certificates.KeyPair | None) -> CertificateRow:
    form = "%Y-%m-%dT%H:%M:%SZ"
    try:
        if pair is None:
            raise certificates.UnusableCertificate("it is missing")
        renewed = certificates.renewal_of(pair).strftime(form)
        return CertificateRow(
            name=name,
            issuer="Operator",
            notAfter=certificates.expiry_of(pair.certificate).strftime(form),
            renewalTime=renewed,
        )
    except certificates.UnusableCertificate:
        return CertificateRow(name=name, issuer="Operator")


# ---- authority.json


def _stored(held: certificates.Certificates) -> dict[str, Any]:
    authority = held.authority
    assert authority is not None
    following = authority.following
    return {
        "certificate": authority.current.certificate.decode("ascii"),
        "key": authority.current.key.decode("ascii"),
        "next": None if following is None else [following.certificate.decode("ascii"), following.key.decode("ascii")],
        "former": None if authority.former is None else authority.former.decode("ascii"),
        "switchAt": None if authority.switch_at is None else authority.switch_at.isoformat(),
        "dropAt": None if authority.drop_at is None else authority.drop_at.isoformat(),
        "renewed": authority.asked,
        "renewedCertificates": dict(held.followed),
    }


def _read(stored: Any) -> tuple[certificates.Authority | None, dict[str, str]]:
    """Return the authority and the followed requests; None for content that is not ours."""
    try:
        following = stored["next"]
        times = [stored[name] and datetime.fromisoformat(stored[name]) for name in ("switchAt", "dropAt")]
        authority = certificates.Authority(
            certificates.KeyPair(stored["certificate"].encode(), stored["key"].encode()),
            None if following is None else certificates.KeyPair(following[0].encode(), following[1].encode()),
            None if stored["former"] is None else stored["former"].encode(),
            times[0],
            times[1],
            str(stored["renewed"]),
        )
        return authority, {str(k): str(v) for k, v in stored["renewedCertificates"].items()}
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        return None, {}
