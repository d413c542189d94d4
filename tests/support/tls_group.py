"""A real broker group whose ports have TLS, with one NameServer in the test's process."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gantry_broker.namesrv.server import NameServer
from gantry_broker.namesrv.settings import InternalTlsSettings, NameServerSettings, TlsSettings
from gantry_broker.remoting.handshake import Identity
from gantry_broker.remoting.tls import ClientCertificates, TlsOptions, client_context

from tests.support.broker_group import Group
from tests.support.certificates import Authority, Files

LOCAL = ("127.0.0.1", "localhost")


@dataclass
class TlsGroup:
    group: Group
    names: NameServer
    authority: Authority
    files: Files
    """The certificate of all client ports."""
    path: Path

    @property
    def options(self) -> TlsOptions:
        """What a client of the group needs."""
        return TlsOptions(ca_file=self.files.ca)

    @property
    def name_server(self) -> str:
        return self.group.name_server

    def rotate(self) -> None:
        """Put a new certificate in the place of the client ports'."""
        self.authority.issue(self.files.cert.parent, *LOCAL)


@contextlib.asynccontextmanager
async def tls_group(
    path: Path,
    count: int = 1,
    *,
    mode: str = "Required",
    client_certificates: ClientCertificates = "None",
    internal: bool = False,
    member_certificates: dict[int, tuple[str, ...]] | None = None,
    name_server_uris: tuple[str, ...] = Identity.of_name_server("demo").uris,
    rsa_key: bool = False,
    broker_mode: str = "MasterSlave",
    **options: Any,
) -> AsyncIterator[TlsGroup]:
    """Members have started, and have no roles. `member_certificates`: names of a member's certificate instead of its
    own ones.
    """
    authority = Authority()
    files = authority.issue(path / "clients", *LOCAL, rsa_key=rsa_key)
    tls = {
        "mode": mode, "cert_file": files.cert, "key_file": files.key,
        "client_ca_file": files.ca if client_certificates != "None" else None,
        "client_certificates": client_certificates,
    }  # fmt: skip
    settings: NameServerSettings = Group.name_server_settings(0, 0)
    settings.tls = TlsSettings(**tls)  # type: ignore[arg-type]
    if internal:
        own = authority.issue(path / "ns", *name_server_uris, *LOCAL)
        settings.internal_tls = InternalTlsSettings(own.cert, own.key, own.ca)
        settings.http_port = 0
    async with NameServer(settings) as names:
        group = Group(path, names, count, {**options, "mode": broker_mode, "tls": tls})
        context: ssl.SSLContext | None = None
        if internal:
            for number, member in enumerate(group.members):
                identity = Identity("demo", "demo-a", number)
                uris = (member_certificates or {}).get(number, identity.uris[:1])
                own = authority.issue(path / f"member{number}", *uris, *LOCAL)
                context = client_context(TlsOptions(ca_file=own.ca))
                member.use_internal_tls(own.cert, own.key, own.ca, context)
        try:
            await group.start()
            yield TlsGroup(group, names, authority, files, path)
        finally:
            await group.close()
