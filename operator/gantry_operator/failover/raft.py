"""Conclusions from the reports of a group in mode Raft: its leader, the voters in sync, candidates for a transfer."""

from __future__ import annotations

from collections.abc import Sequence

from gantry_broker.contracts.leadership import MemberId

from gantry_operator.failover.model import Report

IN_SYNC_BYTES = 16 << 20
"""A member that lacks more bytes delays a majority that needs it. Under load a healthy member may lack some MiB."""


def leader_of(reports: Sequence[Report]) -> Report | None:
    """Return the leader of the highest epoch. A leader of an older epoch does not know yet that it was replaced."""
    # A leader that is cut off goes on saying so until it notices: of two, the higher epoch counts.
    epoch = max((r.epoch for r in reports), default=0)
    return next((r for r in reports if r.role == "Master" and r.epoch == epoch), None)


def keeping_up(leader: Report) -> frozenset[MemberId]:
    """Return the voters that are in sync, the leader included.

    A voter stays one at any distance, but a majority that needs a distant voter confirms nothing until it has caught
    up.
    """
    near = leader.confirmed - IN_SYNC_BYTES
    return leader.in_sync & ({f.id for f in leader.followers if f.acked >= near} | {leader.id})


def transfer_candidates(leader: Report, others: Sequence[Report]) -> list[Report]:
    """Candidates for a transfer: voters that answer, the longest log first."""
    able = [r for r in others if r.id in leader.in_sync and r.id != leader.id and r.role == "Slave"]
    return sorted(able, key=lambda r: (r.rank, -r.id.member), reverse=True)
