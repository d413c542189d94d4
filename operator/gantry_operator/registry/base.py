"""What the failover asks of a role registry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gantry_broker.replication.types import Cell


class RegistryUnavailable(Exception):
    """The registry did not answer, or what it holds cannot be read. Nothing is decided meanwhile."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A cell as it was read. `token` says which write of it this is, where the registry knows such a thing."""

    cell: Cell
    token: str = ""


class RoleRegistry(Protocol):
    """Compare-and-swap of whole cells (rule 13)."""

    async def read(self, group: str) -> Entry | None:
        """The group's cell; None: the registry is sure that there is none.

        Called several times a second: answer from a watch where a read is dear. An outdated answer costs a failed swap.
        Raises RegistryUnavailable.
        """
        ...

    async def swap(self, group: str, expected: Entry | None, new: Cell) -> bool:
        """Write `new` if the registry still holds `expected` (None: holds nothing). False: it does not.

        True only once the write is durable. Raises RegistryUnavailable when the outcome is not known.
        """
        ...
