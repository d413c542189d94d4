"""Changes of the in-sync set while a leader leads: its proposals, and removals (rules 17 and 18)."""

from __future__ import annotations

from gantry_broker.contracts.leadership import LeadershipRecord, MemberId

from gantry_operator.failover.model import (
    ExpandInSyncSet,
    FailoverSettings,
    MemberView,
    Observation,
    RejectProposal,
    Report,
    ShrinkInSyncSet,
)

REFUSED_AND_IDLE_MS = 250
"""Milliseconds without a fetch after which a follower that refuses connections counts as gone."""
REFUSES_AND_IDLE_MS = 600
"""Milliseconds of refusals in this epoch after which a follower that does not fetch is removed."""
STARTING_MS = 1_000
"""Milliseconds from the leader's last report within which the status of a proposed follower must be readable."""


def names(obs: Observation, ids: frozenset[MemberId]) -> str:
    texts = []
    for id in sorted(ids):
        view = obs.view(id.member)
        texts.append(view.name if view is not None else f"member {id.member}")
    return ", ".join(texts)


def review_proposal(
    obs: Observation, leadership: LeadershipRecord, leader: Report, leader_age_ms: int
) -> ExpandInSyncSet | RejectProposal | None:
    """Accept or reject the leader's proposal; None: no answer yet.

    The leader drops a proposal that is based on another version when it gets the newer assignment. Such a proposal
    needs no answer, and its base must never be changed. A member that has just started fetches before its status can be
    read. While the leader hears it, it is not added, because it would soon count as gone. It is not rejected either,
    because that would keep it out for seconds.
    """
    proposal = leader.proposal
    # [17] Applied on its own version or not at all: on another one it would bring back a member that was removed since.
    if proposal is None or proposal.base_version != leadership.version:
        return None
    added = proposal.in_sync - leadership.in_sync
    fetched = {f.id: f.last_fetch_ms for f in leader.followers}
    why_not, unsure = "", False
    # [17] A leader that could remove members could go on without the copies that a promotion relies on.
    if not leadership.in_sync <= proposal.in_sync:
        why_not = f"it leaves out {names(obs, leadership.in_sync - proposal.in_sync)}, and only the operator removes"
    for id in sorted(added):
        view = obs.view(id.member)
        if view is None:
            why_not = f"member {id.member} is not part of the group"
        elif view.gone or view.deleting or _refuses(view, fetched.get(id), leader_age_ms, STARTING_MS):
            why_not = f"{view.name} does not run any more"
        elif view.reach == "refused":
            unsure = True
        elif view.report is not None and view.heard and view.report.id != id:
            why_not = f"the disk of {view.name} is not the one proposed"
    if why_not:
        # [18] The version moves with a refusal, too: only that ends the leader's wait for those that it proposed.
        return RejectProposal(leadership.touched(), f"the proposal to add {names(obs, added)} is refused: {why_not}")
    if unsure:
        return None
    who = names(obs, added) or "no new member"
    return ExpandInSyncSet(
        leadership.with_set(proposal.in_sync),
        added,
        f"{who} {'have' if len(added) > 1 else 'has'} every acknowledged record",
    )


def shrink(
    obs: Observation, leadership: LeadershipRecord, leader: Report, leader_age_ms: int
) -> ShrinkInSyncSet | None:
    """Remove followers that delay writes and are gone or acknowledge too late. The leader is never removed."""
    fetched = {f.id: f.last_fetch_ms for f in leader.followers}
    removed: dict[MemberId, str] = {}
    replaced: set[MemberId] = set()
    for id in leadership.in_sync:
        # [17] Its own log is the copy that certainly has every acknowledged record.
        if id == leadership.master:
            continue
        view = obs.view(id.member)
        if view is None:
            removed[id] = f"member {id.member} is not part of the group"
            continue
        if view.heard and view.report is not None and view.report.id != id:
            removed[id] = f"{view.name} has another disk"
            replaced.add(id)
            continue
        why = _must_leave(view, leadership, fetched.get(id), leader_age_ms, obs.settings)
        if not why and view.deleting and _another_stays(obs, leadership, id):
            # Remove it before it stops. Otherwise writes would wait until its end is detected.
            why = "is about to be stopped"
        if why:
            removed[id] = f"{view.name} {why}"
    # Below minInSyncReplicas nothing is confirmed, and a member that stays recorded may still take over later.
    room = len(leadership.in_sync) - max(1, obs.settings.min_in_sync)
    # A former incarnation never comes back. It holds no copy, and the new incarnation needs its place.
    room = max(room, len(replaced))
    gone = frozenset(sorted(removed, key=lambda id: (id not in replaced, id))[: max(0, room)])
    if not gone:
        return None
    return ShrinkInSyncSet(
        leadership.with_set(leadership.in_sync - gone), gone, "; ".join(removed[id] for id in sorted(gone))
    )


def _another_stays(obs: Observation, leadership: LeadershipRecord, leaving: MemberId) -> bool:
    """Return whether the leader keeps at least one other in-sync member without it."""
    others = leadership.in_sync - {leaving} - ({leadership.master} if leadership.master is not None else set())
    views = [obs.view(id.member) for id in others if obs.heard_as(id) is not None]
    return any(v is not None and not v.deleting for v in views)


def _refuses(view: MemberView, fetch_ms: int | None, leader_age_ms: int, idle_ms: int = REFUSED_AND_IDLE_MS) -> bool:
    return view.reach == "refused" and (fetch_ms is None or fetch_ms + leader_age_ms >= idle_ms)


def _must_leave(
    view: MemberView, leadership: LeadershipRecord, fetch_ms: int | None, leader_age_ms: int, settings: FailoverSettings
) -> str:
    """Why the follower counts as gone; empty: it does not. `fetch_ms`: milliseconds since its last fetch in the
    leader's last line.

    The age of that line does not count. Otherwise a leader that has just frozen would lose all followers from the set,
    and no member could take over.
    """
    detection_ms = settings.detection_ms
    if view.gone:
        return "is gone"
    if _refuses(view, fetch_ms, leader_age_ms):
        return "refuses connections"
    if fetch_ms is not None and fetch_ms >= detection_ms:
        return f"has not fetched for {fetch_ms / 1000:.1f} s"
    if fetch_ms is None and view.reach == "silent" and view.silence_ms >= detection_ms:
        return f"was not heard for {view.silence_ms / 1000:.1f} s"
    report = view.report
    # A follower that refuses only a version still fetches, at long intervals if there are no new records.
    follows = report is not None and report.role == "Slave" and report.epoch == leadership.epoch
    idle = fetch_ms is None or fetch_ms >= REFUSES_AND_IDLE_MS
    if view.refused and not follows and idle and view.refused_ms >= REFUSES_AND_IDLE_MS:
        return f"does not follow: {view.refused}"
    full = report is not None and report.disk_full
    if view.stalled_ms >= (detection_ms if full else settings.stalled_ms):
        why = ": its disk is full" if full else ""
        return f"has not acknowledged for {view.stalled_ms / 1000:.1f} s the records that its master had then{why}"
    return ""
