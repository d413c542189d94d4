"""The configuration of a NameServer process, read without pydantic: its models alone would double the process's memory.

The planner writes the file with `gantry_broker.config.NameServerConfig`. Fields and defaults here are the same, and a
test compares them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, cast

from gantry_broker.protocol.fields import BodyError, Fields, parse
from gantry_broker.remoting.members import refuse_open_port
from gantry_broker.remoting.tls_settings import ClientCertificates, refuse_unverifiable

_KNOWN = {
    "name",
    "listen_host",
    "port",
    "http_port",
    "http_hosts",
    "data_dir",
    "listeners",
    "cluster",
    "registration_port",
    "token_file",
    "tls",
    "internal_tls",
    "authentication",
    "log_level",
}
_AUTHENTICATION = ("Enabled", "Permissive", "Disabled")


@dataclass(slots=True)
class ListenerSettings:
    name: str
    port: int


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """The same fields as `TlsConfig`."""

    mode: Literal["Permissive", "Required"]
    cert_file: Path
    key_file: Path
    client_ca_file: Path | None = None
    client_certificates: ClientCertificates = "None"


@dataclass(frozen=True, slots=True)
class InternalTlsSettings:
    """The same fields as `InternalTlsConfig`."""

    cert_file: Path
    key_file: Path
    ca_file: Path


@dataclass(slots=True)
class NameServerSettings:
    """The same fields as `NameServerConfig`."""

    name: str
    listen_host: str = "0.0.0.0"
    port: int = 9876
    http_port: int | None = None
    data_dir: Path | None = None
    listeners: list[ListenerSettings] = field(default_factory=list)
    http_hosts: list[str] = field(default_factory=list)
    cluster: str = ""
    registration_port: int | None = None
    token_file: Path | None = None
    tls: TlsSettings | None = None
    internal_tls: InternalTlsSettings | None = None
    authentication: str = "Disabled"

    @classmethod
    def load(cls, path: Path) -> NameServerSettings:
        """Read the settings. Raises OSError when the file cannot be read and BodyError when it is not such a config."""
        raw = path.read_bytes()
        fields = parse(raw, "config")
        unknown = fields.names() - _KNOWN
        if unknown:
            raise BodyError(
                f"config has the unknown field {sorted(unknown)[0]!r}; known are {', '.join(sorted(_KNOWN))}"
            )
        listeners = []
        for item in fields.items("listeners"):
            entry = Fields(item, "config.listeners[]")
            listeners.append(ListenerSettings(entry.text("name"), _port(entry, "port")))
        http = fields.number("http_port", -1)
        registration = fields.number("registration_port", -1)
        data_dir, token_file = fields.text("data_dir", ""), fields.text("token_file", "")
        host, cluster = fields.text("listen_host", "0.0.0.0"), fields.text("cluster", "")
        if registration >= 0:
            if not cluster:
                raise BodyError("registration_port is set, but cluster is not: name the cluster of the brokers")
            try:
                refuse_open_port("registration_port", host, Path(token_file) if token_file else None)
            except ValueError as error:
                raise BodyError(str(error)) from None
        authentication = fields.text("authentication", "Disabled")
        if authentication not in _AUTHENTICATION:
            raise BodyError(
                f"the field authentication is {authentication[:40]!r}; one of {', '.join(_AUTHENTICATION)} is expected"
            )
        return cls(
            fields.text("name"),
            host,
            _port(fields, "port", 9876),
            None if http < 0 else _port(fields, "http_port"),
            Path(data_dir) if data_dir else None,
            listeners,
            fields.texts("http_hosts"),
            cluster,
            None if registration < 0 else _port(fields, "registration_port"),
            Path(token_file) if token_file else None,
            _tls(fields),
            _internal_tls(fields),
            authentication,
        )


def _tls(fields: Fields) -> TlsSettings | None:
    tls = _nested(fields, "tls", {"mode", "cert_file", "key_file", "client_ca_file", "client_certificates"})
    if tls is None:
        return None
    mode, clients = tls.text("mode"), tls.text("client_certificates", "None")
    if mode not in ("Permissive", "Required"):
        raise BodyError(f"tls.mode is {mode[:100]!r}: write Permissive or Required")
    if clients not in ("None", "Optional", "Required"):
        raise BodyError(f"tls.client_certificates is {clients[:100]!r}: write None, Optional or Required")
    ca_file = tls.text("client_ca_file", "")
    settings = TlsSettings(
        cast(Literal["Permissive", "Required"], mode),
        Path(tls.text("cert_file")),
        Path(tls.text("key_file")),
        Path(ca_file) if ca_file else None,
        cast(ClientCertificates, clients),
    )
    try:
        refuse_unverifiable(settings.client_certificates, settings.client_ca_file)
    except ValueError as error:
        raise BodyError(str(error)) from None
    return settings


def _internal_tls(fields: Fields) -> InternalTlsSettings | None:
    tls = _nested(fields, "internal_tls", {"cert_file", "key_file", "ca_file"})
    if tls is None:
        return None
    return InternalTlsSettings(Path(tls.text("cert_file")), Path(tls.text("key_file")), Path(tls.text("ca_file")))


def _nested(fields: Fields, name: str, allowed: set[str]) -> Fields | None:
    value = fields.map(name)
    if not value:
        return None
    nested = Fields(value, f"config.{name}")
    unknown = nested.names() - allowed
    if unknown:
        raise BodyError(f"{name} has the unknown field {sorted(unknown)[0]!r}; known are {', '.join(sorted(allowed))}")
    return nested


def _port(fields: Fields, name: str, default: int | None = None) -> int:
    port = fields.number(name, default)
    if not 0 <= port <= 65535:
        raise BodyError(f"the field {name} is {port}; a port from 0 to 65535 is expected")
    return port
