"""Addresses and processes of a running system, Gantry or Apache RocketMQ."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Target:
    """A running NameServer and broker. `prefix` goes before the command line of every client."""

    name: str
    namesrv: str
    broker_address: str
    cluster: str
    broker_name: str
    prefix: list[str]
    namesrv_pid: int
    broker_pids: list[int]
    log: Path
    registration: str = ""
    """Where our NameServer takes registrations; empty: at its one port."""
    replication: str = ""
    """Our broker's port for other members of its group; empty: it has none."""
    http: str = ""
    """Our broker's HTTP interface; empty: it has none."""
    namesrv_http: str = ""
    """The same of our NameServer."""
