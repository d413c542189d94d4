"""The terms of replication: members, leadership records, assignments, proposals.

Pure values, shared by the brokers, the operator and the simulation. The rules that they serve are in
docs/replication.md; comments in the code name a rule's number.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from gantry_broker.protocol import plausible


class MemberId(NamedTuple):
    """A member of a group and one incarnation of its disk (rule 16).

    `member` is a number from 0 up that never changes within the group (RocketMQ's brokerId changes with the role).
    `incarnation` is new whenever the disk cannot prove what it held: an empty disk, or with ASYNC_FLUSH a start without
    a clean stop after another boot of the machine.
    """

    member: int
    incarnation: str

    def __str__(self) -> str:
        return f"{self.member}/{self.incarnation}"


@dataclass(frozen=True, slots=True)
class LeadershipRecord:
    """The registry's entry for one group (rule 13). A swap compares the whole record."""

    epoch: int = 0
    version: int = 0
    master: MemberId | None = None
    """The leader, by the word that people read in a Lease and in RocketMQ's tools; None: there is none yet."""
    in_sync: frozenset[MemberId] = frozenset()

    def promoted(self, master: MemberId, in_sync: Iterable[MemberId]) -> LeadershipRecord:
        """Return the next epoch under `master`. The caller decides whether that is allowed (rules 16 and 20)."""
        return LeadershipRecord(self.epoch + 1, self.version + 1, master, frozenset(in_sync))

    def with_set(self, in_sync: Iterable[MemberId]) -> LeadershipRecord:
        """Return the same leadership with another in-sync set."""
        return replace(self, version=self.version + 1, in_sync=frozenset(in_sync))

    def touched(self) -> LeadershipRecord:
        """Return the same content under a new version: a rejected proposal raises the version (rule 18)."""
        return replace(self, version=self.version + 1)

    @property
    def order(self) -> tuple[int, int]:
        """The key by which assignments are ordered (rule 14)."""
        return (self.epoch, self.version)

    def to_json(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "version": self.version,
            "master": None if self.master is None else list(self.master),
            "inSync": sorted(list(m) for m in self.in_sync),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> LeadershipRecord:
        """Read a record. Raises KeyError, TypeError or ValueError when `data` is not what `to_json` writes."""
        master = data["master"]
        return cls(
            epoch=plausible.epoch("epoch", data["epoch"]),
            version=plausible.version("version", data["version"]),
            master=None if master is None else member_from_json("master", master),
            in_sync=frozenset(
                member_from_json("inSync", m) for m in plausible.items("inSync", data["inSync"], plausible.MAX_MEMBERS)
            ),
        )


def member_from_json(name: str, data: Any) -> MemberId:
    """Return the member from [number, incarnation]; `name` is the field's. Raises ValueError."""
    number, incarnation = plausible.items(name, data, 2)
    return MemberId(plausible.member_number(name, number), plausible.incarnation(name, incarnation))


@dataclass(frozen=True, slots=True)
class Assignment:
    """The operator's assignment to a member, sent only after the leadership record is written (rule 13)."""

    leadership: LeadershipRecord
    leader_address: str | None = None
    """host:port on which the leader serves fetches (its own member address, never the group's)."""
    unclean: bool = False
    """Allows a follower to truncate below its own confirmed offset (rule 3)."""


@dataclass(frozen=True, slots=True)
class InSyncSetProposal:
    """The in-sync set that a leader wants recorded, and the version that it is based on (rule 17)."""

    base_version: int
    in_sync: frozenset[MemberId]
