"""The `Host` names that a request may use: otherwise a web page could reach this interface through a browser.

A page of evil.example points its own name to 127.0.0.1 (DNS rebinding), and may then read the browser's answers from
there. The browser still sends `Host: evil.example`. An IP address cannot be pointed elsewhere, so any address is
allowed.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable
from typing import Final

LOOPBACK_NAMES: Final = ("localhost", "localhost.localdomain")
_HOST: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]{2,45})\]|([A-Za-z0-9._-]{1,253}))(?::[0-9]{1,5})?")


def host_of(header: str) -> str | None:
    """Return the name or address in a Host header, in lower case and without its port; None: it is invalid."""
    match = _HOST.fullmatch(header)
    if match is None:
        return None
    return (match[1] or match[2]).lower().removesuffix(".")


def is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


class AllowedHosts:
    """Allows loopback, this machine's own name, every address, and `names` (with or without a port)."""

    def __init__(self, names: Iterable[str]) -> None:
        hosts = (host_of(name) for name in (*LOOPBACK_NAMES, socket.gethostname(), *names))
        self.names = frozenset(name for name in hosts if name)

    def allows(self, header: str) -> bool:
        host = host_of(header)
        return host is not None and (host in self.names or is_address(host))

    def refusal(self, header: str) -> str:
        """Return the text of the refusal."""
        return (
            f"the Host {header[:100]!r} is none of this process: use an IP address, localhost or one of "
            f"{', '.join(sorted(self.names))}"
        )
