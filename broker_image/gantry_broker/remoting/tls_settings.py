"""What the TLS of a process's ports is built from."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Protocol

ClientCertificates = Literal["None", "Optional", "Required"]
"""Whether a listening port asks clients for a certificate."""


def refuse_unverifiable(clients: ClientCertificates, ca_file: Path | None) -> None:
    """Raise ValueError when client certificates are asked for and nothing could verify them."""
    if clients != "None" and ca_file is None:
        raise ValueError(
            f"client_certificates is {clients}, but client_ca_file is not set: name the file with the CAs of clients"
        )


class ClientPortTls(Protocol):
    """`TlsConfig`, or the NameServer's settings of the same fields."""

    @property
    def mode(self) -> Literal["Permissive", "Required"]: ...
    @property
    def cert_file(self) -> Path: ...
    @property
    def key_file(self) -> Path: ...
    @property
    def client_ca_file(self) -> Path | None: ...
    @property
    def client_certificates(self) -> ClientCertificates: ...


class InternalPortTls(Protocol):
    """`InternalTlsConfig`, or the NameServer's settings of the same fields."""

    @property
    def cert_file(self) -> Path: ...
    @property
    def key_file(self) -> Path: ...
    @property
    def ca_file(self) -> Path: ...
