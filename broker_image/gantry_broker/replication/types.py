"""The words of replication: who a member is, what the role registry holds, what a member is told.

Pure values, shared by the brokers, the operator and the simulation. The rules that they serve are in
docs/replication.md; a rule's number is given where code keeps it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from gantry_broker.protocol import plausible
from gantry_broker.store.log.epochs import EpochStart as EpochStart
from gantry_broker.store.log.epochs import LeaderEpochs as LeaderEpochs


class MemberId(NamedTuple):
    """A member of a group and one life of its disk (rule 16).

    `member` is the number that never changes within the group, 0 and up (RocketMQ's brokerId changes with the role,
    this does not). `incarnation` is new whenever the disk can no longer prove what it held: an empty disk, or with
    ASYNC_FLUSH a start without a clean stop after another boot of the machine.
    """

    member: int
    incarnation: str

    def __str__(self) -> str:
        return f"{self.member}/{self.incarnation}"


@dataclass(frozen=True, slots=True)
class LeadershipRecord:
    """What the role registry holds for one group (rule 13). A swap compares the whole cell."""

    epoch: int = 0
    version: int = 0
    master: MemberId | None = None
    in_sync: frozenset[MemberId] = frozenset()

    def promoted(self, master: MemberId, in_sync: Iterable[MemberId]) -> LeadershipRecord:
        """The next epoch under `master`. Whether that is allowed is decided by the caller (rules 16 and 20)."""
        return LeadershipRecord(self.epoch + 1, self.version + 1, master, frozenset(in_sync))

    def with_set(self, in_sync: Iterable[MemberId]) -> LeadershipRecord:
        """The same leadership with another in-sync set."""
        return replace(self, version=self.version + 1, in_sync=frozenset(in_sync))

    def touched(self) -> LeadershipRecord:
        """The same content under a new version: how a refused proposal moves the version (rule 18)."""
        return replace(self, version=self.version + 1)

    @property
    def order(self) -> tuple[int, int]:
        """Assignments are ordered by this (rule 14)."""
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
        """Raises KeyError, TypeError or ValueError when `data` is not what `to_json` writes."""
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
    """From [number, incarnation]; `name` is the field's. Raises ValueError."""
    number, incarnation = plausible.items(name, data, 2)
    return MemberId(plausible.member_number(name, number), plausible.incarnation(name, incarnation))


@dataclass(frozen=True, slots=True)
class Assignment:
    """What the operator tells a member, only after the cell is recorded (rule 13)."""

    leadership: LeadershipRecord
    leader_address: str | None = None
    """host:port on which the master serves fetches (its own member address, never the group's)."""
    unclean: bool = False
    """Only then may a follower cut below its own confirmed offset (rule 3)."""


@dataclass(frozen=True, slots=True)
class InSyncSetProposal:
    """The in-sync set that a master wants recorded, and the version that it is based on (rule 17)."""

    base_version: int
    in_sync: frozenset[MemberId]
