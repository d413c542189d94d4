"""The bytes and connections that the ports of one process may hold, as a share of its memory. Pure.

Every limit of buffered bytes derives from the one number that an operator sets: the memory limit of the pod
(`resources.limits.memory`), or of the process's cgroup, or the machine's memory.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gantry_broker.descriptors import MAX_REMOTING
from gantry_broker.protocol.digits import whole_number
from gantry_broker.protocol.frame import MAX_FRAME

MIB: Final = 1 << 20
CGROUP_FILES: Final = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""The memory limit of this process's own cgroup as a container sees it: version 2, then version 1."""


@dataclass(frozen=True, slots=True)
class RemotingBudget:
    """The limits of one process, in bytes unless the name says otherwise."""

    unfinished_bytes: int
    """Bytes of incomplete frames on all connections."""
    high_water: int
    """Bytes that wait for a peer, above which this process stops reading from it."""
    unsent_bytes_each: int
    """Bytes that wait for a peer, above which this process closes its connection."""
    unsent_bytes: int
    """Bytes that wait for all peers above `high_water`; beyond it the slowest connection is closed."""
    buffered_bytes: int
    """Bytes of writes that are buffered for the new leader during a handover."""
    connections: int
    """Connections that are open at the same time."""
    handshakes: int
    """Of these, the ones whose TLS handshake is not complete."""


def remoting_budget(memory: int, max_connections: int = MAX_REMOTING) -> RemotingBudget:
    """Return the parts of a process's memory (bytes) that its connections may use.

    | part | share of the memory | at least | at most |
    |---|---|---|---|
    | unfinished frames | 1/8 | 20 MiB, so that one frame of any size can arrive | 256 MiB |
    | answers to slow readers, all | 1/8 | 16 MiB | 1 GiB |
    | answers to one slow reader | 1/16 | 10 MiB, above the largest answer | 32 MiB |
    | a reader is slow beyond | 1/4096 | 64 KiB | 1 MiB |
    | writes buffered for a handover | 1/16 | 8 MiB | 64 MiB |
    | connections without a complete TLS handshake | one for 1 MiB | 64 | 1,024 |
    | connections | one for 64 KiB | 256 | `max_connections`, which descriptors limit (`gantry_broker.descriptors`) |
    """
    return RemotingBudget(
        unfinished_bytes=_within(memory // 8, MAX_FRAME + 4 * MIB, 256 * MIB),
        high_water=_within(memory // 4096, 64 * 1024, MIB),
        unsent_bytes_each=_within(memory // 16, 10 * MIB, 32 * MIB),
        unsent_bytes=_within(memory // 8, 16 * MIB, 1024 * MIB),
        buffered_bytes=_within(memory // 16, 8 * MIB, 64 * MIB),
        connections=min(max(memory // (64 * 1024), 256), max_connections),
        handshakes=_within(memory // MIB, 64, 1_024),
    )


def _within(value: int, low: int, high: int) -> int:
    return min(max(value, low), high)


DEFAULT_BUDGET: Final = remoting_budget(4 << 30)
"""The budget of a process without a configured one, such as a client."""


def memory_limit(configured: int | None, files: tuple[str, ...] = CGROUP_FILES) -> int:
    """Return the bytes that this process may use: the configured limit, its cgroup's, or the machine's memory."""
    if configured is not None:
        return configured
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in files:
        try:
            text = Path(name).read_text().strip()
        except OSError:
            continue
        limit = whole_number(text, 1)
        if limit is not None:  # "max" is no limit; version 1 writes a number beyond any memory
            return min(limit, machine)
    return machine
