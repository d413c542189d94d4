"""TLS contexts from certificate files that may be replaced while the process runs.

Each new connection gets the present context, so existing connections go on with the certificate that they began with.
"""

from __future__ import annotations

import logging
import os
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gantry_broker.remoting.certificate_end import not_after
from gantry_broker.remoting.tls_settings import ClientCertificates
from gantry_broker.watching import WatchedFiles

log = logging.getLogger(__name__)

MAX_FILE: Final = 1 << 20
"""Bytes of the largest file with certificates or a key."""

_VERIFY: Final = {"None": ssl.CERT_NONE, "Optional": ssl.CERT_OPTIONAL, "Required": ssl.CERT_REQUIRED}
_Stamp = tuple[tuple[int, int, int], ...]
"""Device-independent mark of the files' present content: inode, size and time of change for each."""


class TlsError(ValueError):
    """The files cannot be used; the text names the file and what is wrong."""


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """How a client of brokers and NameServers uses TLS.

    `ca_file`: PEM file with the CAs to trust; None: those of the system. `cert_file` and `key_file`: the client's own
    certificate, if servers ask for one; a key may stand in `cert_file`. `verify` False trusts any server, so it
    protects from listeners only, not from servers in the middle. `server_name`: the name that certificates must have;
    None: the host of the address that the client connects to.
    """

    ca_file: Path | str | None = None
    cert_file: Path | str | None = None
    key_file: Path | str | None = None
    verify: bool = True
    server_name: str | None = None


def client_context(options: TlsOptions) -> ssl.SSLContext:
    """Return the context of a calling end, for HTTP clients too. Blocks for a read of the files. Raises TlsError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _harden(context)
    if not options.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif options.ca_file is None:
        context.load_default_certs()
    else:
        _trust(context, Path(options.ca_file))
    if options.cert_file is not None:
        _present(context, Path(options.cert_file), Path(options.key_file or options.cert_file))
    return context


def server_context(
    cert_file: Path,
    key_file: Path,
    client_ca_file: Path | None,
    clients: ClientCertificates,
    protocols: Sequence[str] = (),
) -> ssl.SSLContext:
    """Return the context of a listening end; `protocols`: offered by ALPN. Blocks for a read of the files. Raises
    TlsError.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _harden(context)
    _present(context, cert_file, key_file)
    if client_ca_file is not None:
        _trust(context, client_ca_file)
    context.verify_mode = _VERIFY[clients]
    if protocols:
        context.set_alpn_protocols(protocols)
    return context


def _harden(context: ssl.SSLContext) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION


def _present(context: ssl.SSLContext, cert_file: Path, key_file: Path) -> None:
    for path in (cert_file, key_file):
        _readable(path)

    def no_password() -> str:
        raise TlsError(f"{key_file} is encrypted: write the key without a passphrase")

    try:
        context.load_cert_chain(cert_file, key_file, no_password)
    except OSError as error:
        if isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
            raise TlsError(f"the key in {key_file} does not belong to the certificate in {cert_file}") from None
        raise TlsError(f"{cert_file} with {key_file} cannot be used: {error}") from None


def _trust(context: ssl.SSLContext, ca_file: Path) -> None:
    _readable(ca_file)
    try:
        context.load_verify_locations(ca_file)
    except OSError as error:
        raise TlsError(f"{ca_file} holds no certificates of a CA: {error}") from None


def _readable(path: Path) -> None:
    try:
        size = path.stat().st_size
    except OSError as error:
        raise TlsError(f"{path} cannot be read: {error.strerror}") from None
    if size > MAX_FILE:
        raise TlsError(f"{path} has {size} bytes; a file with certificates or a key has at most {MAX_FILE}")


def expiry(cert_file: Path) -> float:
    """Return the end of the first certificate's validity, in Unix seconds. Raises TlsError."""
    try:
        with open(cert_file, "rb") as file:
            return not_after(file.read(MAX_FILE)).timestamp()
    except (OSError, ValueError) as error:
        raise TlsError(f"{cert_file} holds no certificate: {error}") from None


def stamp(files: list[Path]) -> _Stamp | None:
    """Return a mark that differs once a file was replaced; None: one is missing."""
    try:
        statuses = [os.stat(path) for path in files]
    except OSError:
        return None
    return tuple((status.st_ino, status.st_size, status.st_mtime_ns) for status in statuses)


class Certificates(WatchedFiles):
    """The certificate of one kind of port. It reads the files again when they change, and keeps the former certificate
    while the new files cannot be used: a key without its certificate, no PEM, an expired certificate.
    """

    def __init__(
        self,
        port: str,
        cert_file: Path,
        key_file: Path,
        ca_file: Path | None = None,
        clients: ClientCertificates = "None",
        *,
        calls: bool = False,
        protocols: Sequence[str] = (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`port` is the metrics' label. `protocols`: offered by ALPN. `calls`: this process also presents the
        certificate to other ones, and verifies theirs by the CA. Blocks for a read of the files. Raises TlsError.
        """
        self.port = port
        self.expires = 0.0
        """The end of the present certificate's validity, in Unix seconds."""
        self.failures = 0
        """Changes of the files that could not be used."""
        self._files = [cert_file, key_file] if ca_file is None else [cert_file, key_file, ca_file]
        self._paths = cert_file, key_file, ca_file
        self._clients: ClientCertificates = clients
        self._calls = calls
        self._protocols = tuple(protocols)
        self._clock = clock
        self._stamp = stamp(self._files)
        self._problem = ""
        self.server: ssl.SSLContext
        self.client: ssl.SSLContext | None
        """The context for connections to other members; it verifies the CA, and leaves the name to the caller."""
        self.server, self.client, self.expires = self._load()
        if self.expires <= clock():
            log.error("the certificate in %s has expired: clients will refuse it", cert_file)

    def _load(self) -> tuple[ssl.SSLContext, ssl.SSLContext | None, float]:
        cert_file, key_file, ca_file = self._paths
        server = server_context(cert_file, key_file, ca_file, self._clients, self._protocols)
        client = None
        if self._calls:
            client = client_context(TlsOptions(ca_file, cert_file, key_file))
            client.check_hostname = False
        return server, client, expiry(cert_file)

    def look(self) -> None:
        """Use the files' present content if they have changed. Blocks for a read of the files."""
        now = stamp(self._files)
        if now == self._stamp and not self._problem:
            return
        fresh = now != self._stamp
        self._stamp = now
        try:
            if now is None:
                raise TlsError(f"one of {', '.join(str(path) for path in self._files)} is missing")
            server, client, expires = self._load()
            if expires <= self._clock() < self.expires:
                raise TlsError(f"the new certificate in {self._paths[0]} has expired")
        except TlsError as error:
            if fresh or str(error) != self._problem:
                self.failures += 1
                log.error("%s; the former certificate stays in use", error)
            self._problem = str(error)
            return
        self._problem = ""
        self.server, self.client, self.expires = server, client, expires
        log.info("%s ports: the certificate was read again; it is valid until %s", self.port, shown(expires))


def shown(unix_s: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(unix_s))


class CallingTls:
    """TLS of a calling end: a context for each new connection, and the name that the server must have."""

    def __init__(self, given: TlsOptions | ssl.SSLContext | Certificates) -> None:
        """With options, replaced files count for the next connection. Raises TlsError."""
        self._given = given
        self._context: ssl.SSLContext | None = None
        self._stamp: _Stamp | None = None
        self.context()

    def context(self) -> ssl.SSLContext:
        """Blocks for a look at the files. Raises TlsError when they were replaced by some that cannot be used."""
        given = self._given
        if isinstance(given, Certificates):
            assert given.client is not None
            return given.client
        if isinstance(given, ssl.SSLContext):
            return given
        names = (given.ca_file, given.cert_file, given.key_file)
        now = stamp([Path(name) for name in names if name is not None])
        if self._context is None or now != self._stamp:
            self._context, self._stamp = client_context(given), now
        return self._context

    def server_name(self, host: str) -> str | None:
        if isinstance(self._given, TlsOptions) and self._given.server_name is not None:
            return self._given.server_name
        return None if isinstance(self._given, Certificates) else host
