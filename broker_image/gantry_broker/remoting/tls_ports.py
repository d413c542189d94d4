"""TLS of one process's ports, from its configuration: certificates, gates, metrics.

A process without TLS imports no TLS: a NameServer is 3 MB smaller without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gantry_broker.exposition import Family
from gantry_broker.remoting.tls_settings import ClientPortTls, InternalPortTls

if TYPE_CHECKING:
    from gantry_broker.remoting.connection import Shared
    from gantry_broker.remoting.tls import Certificates
    from gantry_broker.remoting.tls_gate import TlsGate

CLIENT: Final = "client"
INTERNAL: Final = "internal"
"""Labels of certificates: of the ports for clients, and of all others."""


class PortsTls:
    """What the ports of one process need for TLS. Each gate is None where TLS is off."""

    def __init__(self, client: ClientPortTls | None, internal: InternalPortTls | None) -> None:
        """Blocks for a read of the files. Raises TlsError when they cannot be used."""
        self.client: Certificates | None = None
        self.internal: Certificates | None = None
        """Of the ports between members, of HTTP, and of this process's own connections to other members."""
        self._http: Certificates | None = None
        self._required = client is not None and client.mode == "Required"
        self.gates: list[TlsGate] = []
        if client is None and internal is None:
            return
        from gantry_broker.remoting.tls import Certificates

        if client is not None:
            self.client = Certificates(
                CLIENT, client.cert_file, client.key_file, client.client_ca_file, client.client_certificates
            )
        if internal is not None:
            files = internal.cert_file, internal.key_file, internal.ca_file
            self.internal = Certificates(INTERNAL, *files, "Required", calls=True)
            self._http = Certificates(INTERNAL, *files, "Optional")

    def client_gate(self, shared: Shared) -> TlsGate | None:
        """Return the gate of all ports for clients."""
        if self.client is None:
            return None
        return self._gate(CLIENT, self.client, self._required, shared.budget.handshakes, shared)

    def member_gate(self, port: str, most: int, shared: Shared) -> TlsGate | None:
        """Return the gate of a port between members: both ends need a certificate of the CA."""
        return None if self.internal is None else self._gate(port, self.internal, True, most, shared)

    def http_gate(self, most: int) -> TlsGate | None:
        return None if self._http is None else self._gate("http", self._http, True, most, None)

    def _gate(self, port: str, certificates: Certificates, required: bool, most: int, shared: Shared | None) -> TlsGate:
        from gantry_broker.remoting.tls_gate import TlsGate

        gate = TlsGate(port, certificates, required=required, most=most, shared=shared)
        self.gates.append(gate)
        return gate

    @property
    def _all(self) -> list[Certificates]:
        return [one for one in (self.client, self.internal, self._http) if one is not None]

    def start(self) -> None:
        """Look for replaced files each second."""
        for certificates in self._all:
            certificates.start()

    async def close(self) -> None:
        for gate in self.gates:
            gate.close()
        for certificates in self._all:
            await certificates.close()

    def expiry(self) -> dict[str, int]:
        """Return the end of each certificate's validity in Unix seconds, by the kind of port."""
        return {one.port: int(one.expires) for one in (self.client, self.internal) if one is not None}

    def families(self, labels: dict[str, str]) -> list[Family]:
        """Return the families of metrics. A process without TLS has none."""
        certificates = [one for one in (self.client, self.internal) if one is not None]
        if not certificates:
            return []
        return [
            Family(
                "gantry_certificate_expiry_timestamp_seconds",
                "gauge",
                "End of the certificate's validity, Unix seconds, by port: client, internal.",
                [({**labels, "port": one.port}, int(one.expires)) for one in certificates],
            ),
            Family(
                "gantry_certificate_failures_total",
                "counter",
                "Changes of certificate files that could not be used; the former certificate stayed in use.",
                [({**labels, "port": one.port}, one.failures) for one in certificates],
            ),
            Family(
                "gantry_tls_handshakes_total",
                "counter",
                "Complete TLS handshakes, by port.",
                [({**labels, "port": gate.port}, gate.handshakes) for gate in self.gates],
            ),
            Family(
                "gantry_tls_handshakes_pending",
                "gauge",
                "Connections without a complete TLS handshake, by port.",
                [({**labels, "port": gate.port}, gate.pending) for gate in self.gates],
            ),
            Family(
                "gantry_tls_refused_total",
                "counter",
                "Connections that did not get through the TLS handshake, by port and reason.",
                [
                    ({**labels, "port": gate.port, "reason": reason}, count)
                    for gate in self.gates
                    for reason, count in sorted(gate.refused.counts.items())
                ],
            ),
        ]
