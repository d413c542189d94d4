"""What a member must remember of its role over a restart: config/replica.json."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gantry_broker.replication.types import Cell, MemberId


@dataclass(frozen=True, slots=True)
class Durable:
    """Written before it is acted upon (rule 15)."""

    me: MemberId
    cell: Cell = field(default_factory=Cell)
    """The newest assignment accepted; an older one is refused, also after a restart."""
    master_address: str | None = None
    unclean: bool = False
    """The newest assignment allowed this member to cut below its confirmed offset (rule 3)."""

    def to_json(self) -> dict[str, Any]:
        return {
            "member": list(self.me),
            "cell": self.cell.to_json(),
            "masterAddress": self.master_address,
            "unclean": self.unclean,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Durable:
        """Raises KeyError, TypeError or ValueError when `data` is not what `to_json` writes."""
        member, incarnation = data["member"]
        address = data["masterAddress"]
        return cls(
            MemberId(int(member), str(incarnation)),
            Cell.from_json(data["cell"]),
            None if address is None else str(address),
            bool(data["unclean"]),
        )
