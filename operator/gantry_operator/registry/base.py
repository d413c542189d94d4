"""The interface of the role registry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gantry_broker.contracts.leadership import LeadershipRecord


class RegistryUnavailable(Exception):
    """The registry did not answer, or its content cannot be read. No failover decision is made meanwhile."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A leadership record as it was read. `token` identifies the write, if the registry supports it."""

    leadership: LeadershipRecord
    token: str = ""


class RoleRegistry(Protocol):
    """Compare-and-swap of whole leadership records (rule 13)."""

    async def read(self, group: str) -> Entry | None:
        """Return the group's leadership record; None: the registry is sure that there is none.

        Called several times a second, so a slow registry answers from a watch. A stale answer costs a failed swap.
        Raises RegistryUnavailable.
        """
        ...

    async def swap(self, group: str, expected: Entry | None, new: LeadershipRecord) -> bool:
        """Write `new` if the registry holds `expected` (None: nothing). False: it holds another record.

        Returns True only after the write is durable. Raises RegistryUnavailable if the outcome is unknown.
        """
        ...
