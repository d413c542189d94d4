"""The address that says by which protocol a client speaks: `grpc://HOST:PORT` is a proxy, any other a NameServer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gantry_broker.protocol.digits import whole_number

SCHEME: Final = "grpc://"
ONLY_REMOTING: Final = (
    "{} is a proxy: Producer, TransactionProducer, Consumer, OrderedConsumer and SimpleConsumer speak gRPC, all other "
    "classes speak remoting. Write the NameServers as host:port"
)


def proxy_of(given: object) -> str | None:
    """Return host:port of a proxy, several joined by commas; None: the address is no `grpc://`. Raises ValueError."""
    parts = [given] if isinstance(given, str) else list(given) if isinstance(given, Sequence) else []
    texts = [part.strip() for text in parts if isinstance(text, str) for part in text.replace(",", ";").split(";")]
    addresses = [text.removeprefix(SCHEME) for text in texts if text.startswith(SCHEME)]
    if not addresses:
        return None
    if len(addresses) != len([text for text in texts if text]):
        raise ValueError(f"{given!r} has addresses of proxies and of NameServers: write {SCHEME} before all or none")
    for address in addresses:
        host, _, port = address.rpartition(":")
        if not host or whole_number(port, 1, 65_535) is None:
            raise ValueError(f"{SCHEME}{address} is no address of a proxy: write {SCHEME}HOST:PORT")
    return ",".join(addresses)
