"""Which servers a reader trusts: contexts of TLS for HTTPS and for the remoting protocol."""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

from gantry_broker.client.credentials import Credentials
from gantry_broker.protocol.fastjson import JsonError, loads
from gantry_broker.protocol.frame import Frame

from gantry_spark.errors import SourceError


@dataclass(frozen=True, slots=True)
class Trust:
    """`ca_file`: PEM file with the CAs of the cluster; None: those of the system. `tls`: connections to NameServers
    and to the brokers' ports for clients have TLS. `credentials_file`: JSON with `accessKey` and `secretKey` of the
    user who signs requests at these ports; None: they are not signed. Tasks open the files on the machine where they
    run. `keys`: access key and secret key themselves, instead of the file.
    """

    ca_file: str | None = None
    tls: bool = False
    credentials_file: str | None = None
    keys: tuple[str, str] | None = field(default=None, repr=False)

    def sign(self, request: Frame) -> None:
        """Sign a request of the remoting protocol. Raises SourceError when the file cannot be used."""
        if self.keys is not None:
            Credentials(*self.keys).sign(request)
        elif self.credentials_file is not None:
            _credentials(self.credentials_file).sign(request)

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
def _credentials(file: str) -> Credentials:
    try:
        content = loads(Path(file).read_bytes())
        keys = content.get("accessKey"), content.get("secretKey")
    except OSError as error:
        raise SourceError(f"option credentialsFile: {file} cannot be read: {error.strerror}") from None
    except (JsonError, AttributeError):
        keys = None, None
    access, secret = keys
    if not (isinstance(access, str) and isinstance(secret, str) and access and secret):
        raise SourceError(f"option credentialsFile: {file} holds no JSON with accessKey and secretKey")
    return Credentials(access, secret)


@cache
def _context(ca_file: str | None) -> ssl.SSLContext:
    """Make a context once, and keep it: loading the trusted certificates takes longer than many responses."""
    from gantry_broker.remoting.tls import TlsError, TlsOptions, client_context

    try:
        return client_context(TlsOptions(ca_file))
    except TlsError as error:
        raise SourceError(f"option caFile: {error}") from None
