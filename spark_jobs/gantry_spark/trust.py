"""Which servers a reader trusts: contexts of TLS for HTTPS and for the remoting protocol."""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass
from functools import cache
from typing import Final

from gantry_spark.errors import SourceError


@dataclass(frozen=True, slots=True)
class Trust:
    """`ca_file`: PEM file with the CAs of the cluster; None: those of the system. `tls`: connections to NameServers
    and to the brokers' ports for clients have TLS. Tasks open the file on the machine where they run.
    """

    ca_file: str | None = None
    tls: bool = False

    def context(self) -> ssl.SSLContext:
        """Return the context for HTTPS. Raises SourceError when the file cannot be used."""
        return _context(self.ca_file)

    def wrap(self, connection: socket.socket, host: str) -> socket.socket:
        """Begin TLS on a connection of the remoting protocol, if these have it."""
        if not self.tls:
            return connection
        try:
            return self.context().wrap_socket(connection, server_hostname=host)
        except BaseException:
            connection.close()
            raise


PLAINTEXT: Final = Trust()


@cache
def _context(ca_file: str | None) -> ssl.SSLContext:
    """Loading the trusted certificates takes longer than many responses."""
    from gantry_broker.remoting.tls import TlsError, TlsOptions, client_context

    try:
        return client_context(TlsOptions(ca_file))
    except TlsError as error:
        raise SourceError(f"option caFile: {error}") from None
