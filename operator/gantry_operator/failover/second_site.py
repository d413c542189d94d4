"""A group of a standby has no leader; after a promotion of its cluster a member with the whole log leads. Pure."""

from __future__ import annotations

from gantry_broker.contracts.leadership import LeadershipRecord
from gantry_broker.contracts.sites import first_epoch

from gantry_operator.failover.model import Bootstrap, Observation, Retire, Wait

STANDBY = "standby"
"""Code of the wait of a group whose cluster follows another one."""


def second_site(obs: Observation) -> Bootstrap | Retire | Wait | None:
    """Decide for a group whose cluster is a standby, or was one until a moment ago; None: it is an ordinary group.

    The control plane sends each member its part, and the member keeps it on its disk. A standby member refuses
    assignments, so nothing here can make it lead by mistake.
    """
    record = obs.leadership
    heard = [m.report for m in obs.members if m.heard and m.report is not None]
    active = [r for r in heard if not r.standby]
    if heard and not active:
        if record is not None and (record.master is not None or record.in_sync):
            if not obs.settings.standby:
                # New disks, or members that were away: those that lead or are in sync do not answer now.
                return Wait("promotion", "members do not know yet that their cluster is active", False)
            gone = LeadershipRecord(record.epoch, record.version + 1, None, frozenset())
            return Retire(gone, "the cluster is a standby: no member leads")
        return Wait(STANDBY, "the group follows the archive of another cluster, so no member leads")
    if record is not None and (record.master is not None or record.in_sync):
        return None
    promoted = [r for r in active if r.site_origin]
    held = record is None and any(r.order > (0, 0) for r in heard)
    if held or any(r.order > (0, 0) for r in promoted):
        return None  # The record was lost after the promotion: the members' disks have it.
    if not promoted:
        # Without a record and a promotion it is a new group.
        return None if record is None else Wait("promotion", "the cluster was a standby: members start again", False)
    newest = max(promoted, key=lambda r: r.site_end)
    able = [r for r in promoted if r.site_origin == newest.site_origin and r.end >= newest.site_end]
    # One with less would lead without records that the other site has acknowledged.
    if not able:
        reason = f"waiting for a member with the whole log of the other site, up to {newest.site_end}"
        return Wait("waiting-for-members", reason, False)
    best = min(able, key=lambda r: (-r.end, r.id.member))
    # Above the other site's epochs: it may have gone on from the same records, with others at the same offsets.
    epoch = max(first_epoch(best.last_epoch, best.site_origin), 0 if record is None else record.epoch + 1)
    version = 1 if record is None else record.version + 1
    reason = f"the cluster was promoted: member {best.id.member} has the whole log and leads"
    return Bootstrap(LeadershipRecord(epoch, version, best.id, frozenset({best.id})), reason)
