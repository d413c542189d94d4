"""The first leadership record of a group, and the recovery of a lost record from the members' disks (rule 22)."""

from __future__ import annotations

from gantry_broker.contracts.leadership import LeadershipRecord
from gantry_broker.protocol import plausible

from gantry_operator.failover.model import Bootstrap, MemberView, Observation, Recover, Report, Wait

NEW_DISK_PATIENCE_MS = 30_000
"""Milliseconds that the first leadership record waits for members without a disk. They join later."""
LEAP = 10
"""Distance of a recovered epoch and version above those on the disks. The lost record may have been newer."""


def bootstrap(obs: Observation) -> Bootstrap | Recover | Wait:
    """Decide for a group without a leadership record."""
    unheard = [m for m in obs.members if not m.heard]
    blocking = [m for m in unheard if not (m.never_ran and m.reach_ms >= NEW_DISK_PATIENCE_MS)]
    heard = [m.report for m in obs.members if m.heard and m.report is not None]
    # The group has led before: a record that begins again would give epochs twice, under which logs differ.
    if any(r.order > (0, 0) for r in heard):
        return recover(obs, "the registry has no record of this group, but its disks have")
    filled = None if obs.settings.filled is None else obs.view(obs.settings.filled)
    if filled is not None and not filled.heard:
        # It answers once its disk is filled. A group that begins without it would have none of these records.
        reason = f"waiting for {filled.name}: spec.bootstrap fills its disk, and the group begins with its log"
        return Wait("waiting-for-members", reason, False)
    # Every disk: the one that is missing may hold all that was acknowledged.
    if blocking or not heard:
        names = _names(blocking or unheard)
        return Wait("waiting-for-members", f"waiting for {names}: every disk must report first", False)
    full = [r for r in heard if not r.empty]
    if len(full) > 1:
        reason = (
            f"members {', '.join(str(r.id.member) for r in full)} hold records from outside this group, "
            "so the right store is not known: keep such a store on one member only"
        )
        return Wait("conflicting-stores", reason, False)
    if full:
        # A log from an archive has epochs, the next one is above them. One that RocketMQ wrote has epoch 0.
        leadership = LeadershipRecord(full[0].last_epoch + 1, 1, full[0].id, frozenset({full[0].id}))
        return Bootstrap(leadership, f"first start: member {full[0].id.member} has a store with records and leads")
    staying = [m.report for m in obs.members if m.heard and m.report is not None and not m.deleting]
    leader = min(staying or heard, key=lambda r: r.id.member)
    return Bootstrap(
        LeadershipRecord(
            max((r.highest_seen_epoch for r in heard), default=0) + 1, 1, leader.id, frozenset(r.id for r in heard)
        ),
        f"first start: every disk is empty, member {leader.id.member} leads",
    )


def recover(obs: Observation, why: str) -> Recover | Wait:
    """Recover the leadership record from the members' disks.

    A member stores an assignment before it acts on it (rule 15). If every disk reports and none is new, the newest
    record on the disks is the newest that took effect.
    """
    record = obs.leadership
    unclean = obs.settings.unclean
    heard = [m.report for m in obs.members if m.heard and m.report is not None]
    # A disk that is missing may hold a newer record, under which others took records that these lack. So may that of a
    # `pending` member: its report is older than the last assignment.
    missing = [m for m in obs.members if not m.heard or m.pending]
    if missing and not (unclean and heard and min(m.reach_ms for m in missing) >= obs.settings.unclean_after_ms):
        return Wait("recovery-blocked", f"{why}; waiting for {_names(missing)}: every disk must report first", False)
    new_disks = [r for r in heard if r.empty]
    if new_disks and not unclean:
        reason = (
            f"{why}; the disk of member {', '.join(str(r.id.member) for r in new_disks)} is new, so its former state "
            "is lost: bring it back, or set failover.unclean: true to continue with the records on the other disks"
        )
        return Wait("recovery-blocked", reason, False)
    newest = max((r for r in heard if r.in_sync), key=lambda r: r.order, default=None)
    able = [] if newest is None else [r for r in heard if r.id in newest.in_sync]
    lost = newest is None or len(able) < len(newest.in_sync)
    if lost and not unclean:
        return Wait("recovery-blocked", f"{why}; a disk of the last in-sync set is missing", False)
    best: Report = max(able or heard, key=lambda r: (r.rank, -r.id.member))
    epoch = max(
        max(r.epoch for r in heard), max(r.highest_seen_epoch for r in heard), 0 if record is None else record.epoch
    )
    # Without a record the members are compared with each other.
    seen_epochs = [max(r.epoch, r.highest_seen_epoch) for r in heard if not r.empty]
    lowest = min(seen_epochs, default=epoch) if record is None else record.epoch
    if jump := plausible.jump_refusal(lowest, epoch) or plausible.jump_refusal(epoch, epoch + LEAP):
        return Wait("recover", f"{why}; the members' reports cannot belong to one group: {jump}", False)
    version = max(max(r.version for r in heard), 0 if record is None else record.version)
    in_sync = frozenset(r.id for r in able) | {best.id}
    return Recover(
        LeadershipRecord(epoch + LEAP, version + LEAP, best.id, in_sync), f"{why}; member {best.id.member} leads"
    )


def _names(members: list[MemberView]) -> str:
    return ", ".join(m.name for m in members)
