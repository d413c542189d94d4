"""The start configuration of one proxy process: a JSON file, read by `python -m gantry_broker.proxy --config FILE`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from pydantic import Field, field_validator

from gantry_broker.config import Authentication, FileConfig, InternalTlsConfig, TlsConfig
from gantry_broker.descriptors import CONNECTIONS_OF_ADDRESS

_ADDRESS: Final = re.compile(r"^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]{1,253}):([0-9]{1,5})$")


def split_endpoint(address: str) -> tuple[str, int]:
    """Return host and port of "host:port". Raises ValueError."""
    match = _ADDRESS.match(address)
    if match is None or not 0 < int(match[2]) < 65_536:
        raise ValueError(f"{address[:100]!r} is no address: write host:port, for instance 127.0.0.1:8081")
    return match[1].strip("[]"), int(match[2])


class BrokerTls(FileConfig):
    """TLS of the proxy's own connections to brokers and NameServers. Files are PEM; replaced files count at once."""

    ca_file: Path | None = Field(None, description="The CAs that brokers' certificates come from; None: the system's.")
    cert_file: Path | None = Field(None, description="The proxy's own certificate, if brokers ask for one.")
    key_file: Path | None = None
    verify: bool = True
    server_name: str | None = Field(None, description="The name in the certificates; None: the address's host.")


class ProxyCredentials(FileConfig):
    """The super user by whom the proxy signs its requests to brokers and NameServers."""

    access_key: str = Field(min_length=1, max_length=128)
    secret_key_file: Path = Field(
        description="Holds the secret key alone; spaces around it do not count. It may come later, and be replaced."
    )


class AccessConfig(FileConfig):
    """The users of the cluster, as brokers have them."""

    file: Path = Field(description="The access table as JSON (`AccessTable`); a replaced file counts within a second.")
    authentication: Authentication = Field("Enabled", description="Counts until the file is there.")


class ProxyConfig(FileConfig):
    """One proxy process."""

    cluster: str = Field("", max_length=255, description="The cluster's name: the resource Cluster of access rules.")
    name: str = Field("proxy", max_length=255, description="The proxy's name in logs and metrics.")
    name_servers: list[str] = Field(min_length=1, max_length=64, description="NameServers for clients, as host:port.")
    listen_host: str = "0.0.0.0"
    port: int = Field(8081, ge=0, le=65535, description="For gRPC clients, with TLS and without.")
    http_host: str | None = Field(None, description="Where `http_port` listens; None: as `listen_host`.")
    http_port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="/livez, /readyz (a NameServer answers), /metrics and /v1/clients; None: not served.",
    )
    token_file: Path | None = Field(
        None, description="Holds the token that a request of /v1/clients needs; None: that page is not served."
    )
    advertise: str | None = Field(
        None,
        description="host:port that routes name as the place of every broker; None: the endpoints that the client "
        "says it came through.",
    )
    tls: TlsConfig | None = Field(None, description="TLS of `port`; None: plaintext.")
    internal_tls: InternalTlsConfig | None = Field(None, description="TLS of the HTTP interface; None: plaintext.")
    access: AccessConfig | None = Field(None, description="Authentication of clients; None: everybody may do all.")
    broker_tls: BrokerTls | None = Field(None, description="TLS to brokers and NameServers; None: plaintext.")
    credentials: ProxyCredentials | None = Field(None, description="None: the proxy's own requests are not signed.")
    http_hosts: list[str] = Field(
        default_factory=list, description="Names that a request over HTTP may give as its Host, besides localhost."
    )
    max_connections: int = Field(10_000, ge=1, le=1_000_000, description="Connections of clients.")
    max_connections_per_address: int = Field(
        CONNECTIONS_OF_ADDRESS, ge=1, le=1_000_000, description="Of them, from one address."
    )
    memory_limit_bytes: int | None = Field(None, description="What this process may use; None: the machine's memory.")
    drain_s: float = Field(30.0, ge=0, le=600, description="Seconds that SIGTERM leaves for requests in work.")

    @field_validator("name_servers")
    @classmethod
    def _reachable(cls, addresses: list[str]) -> list[str]:
        for address in addresses:
            split_endpoint(address)
        return addresses

    @field_validator("advertise")
    @classmethod
    def _dialable(cls, address: str | None) -> str | None:
        if address is not None:
            split_endpoint(address)
        return address
