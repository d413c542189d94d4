"""Conversion between the brokers' HTTP models and the plain values of the decisions.

Every member sends a status line each second, so lines are read without building models. A test keeps the two equal.
"""

from __future__ import annotations

from typing import Any, Final, get_args

from gantry_broker.contracts.leadership import Assignment, InSyncSetProposal, LeadershipRecord, MemberId
from gantry_broker.contracts.models import AssignmentModel, HandoverRequest, MemberRef
from gantry_broker.protocol import plausible

from gantry_operator.failover.model import FollowerView, LinkState, Report, Role

ROLES: Final = frozenset(get_args(Role))
LINKS: Final = frozenset(get_args(LinkState))


class BadStatus(ValueError):
    """A status line that cannot be parsed, or has a value that no correct member reports."""


def report_from(status: dict[str, Any]) -> Report:
    """Parse the JSON of a `MemberStatus` into a `Report`. Raises BadStatus with the field and its value."""
    try:
        link = status.get("leader_link") or {}
        link_leader = link.get("member")
        proposal = status.get("proposal")
        site = status.get("site") or {}
        return Report(
            id=_id(status["member"]),
            role=_word("role", status["role"], ROLES),
            epoch=plausible.epoch("epoch", status["epoch"]),
            version=plausible.version("version", status["version"]),
            highest_seen_epoch=plausible.epoch("highest_seen_epoch", status.get("highest_seen_epoch", 0)),
            log_trusted=bool(status.get("log_trusted", True)),
            last_epoch=plausible.epoch("last_epoch", status.get("last_epoch", 0)),
            end=plausible.offset("end", status.get("end", 0)),
            confirmed=plausible.offset("confirmed", status.get("confirmed", 0)),
            in_sync=_ids("in_sync", status.get("in_sync", ())),
            proposal=None
            if proposal is None
            else InSyncSetProposal(
                plausible.version("base_version", proposal["base_version"]), _ids("in_sync", proposal["in_sync"])
            ),
            followers=tuple(
                FollowerView(
                    _id(f["member"]),
                    plausible.number("acked", f["acked"], -1, plausible.MAX_OFFSET),
                    plausible.number("last_fetch_ms", f["last_fetch_ms"], 0, plausible.MAX_OFFSET),
                )
                for f in plausible.items("followers", status.get("followers", ()), plausible.MAX_MEMBERS)
            ),
            link=_word("leader_link", link.get("state", "none"), LINKS),
            link_leader=None if link_leader is None else _id(link_leader),
            link_answer_ms=plausible.number("last_answer_ms", link.get("last_answer_ms", -1), -1, plausible.MAX_OFFSET),
            writes_paused=bool(status.get("writes_paused", False)),
            not_promotable=str(status.get("not_promotable", ""))[: plausible.MAX_TEXT],
            disk_full=bool((status.get("disk") or {}).get("full", False)),
            standby=site.get("role") == "Standby",
            site_origin=str(site.get("origin", ""))[: plausible.MAX_TEXT],
            site_end=plausible.offset("origin_end", site.get("origin_end", 0)),
        )
    except plausible.Implausible as error:
        raise BadStatus(f"its report cannot be used: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadStatus(f"not a member's status: {type(error).__name__} {error}") from error


def impossible_epoch(report: Report, recorded: int) -> str:
    """Why no correct member of a group with recorded epoch `recorded` reports this; empty: it is plausible."""
    for name, epoch in (
        ("epoch", report.epoch),
        ("highest_seen_epoch", report.highest_seen_epoch),
        ("last_epoch", report.last_epoch),
    ):
        jump = plausible.jump_refusal(recorded, epoch)
        if jump:
            return f"its report cannot be used: {name}: {jump}"
    return ""


def assignment_body(assignment: Assignment) -> bytes:
    return AssignmentModel.of(assignment).model_dump_json().encode()


def handover_body(target: MemberId, leadership: LeadershipRecord, timeout_ms: int) -> bytes:
    request = HandoverRequest(
        target=MemberRef.of(target), epoch=leadership.epoch, version=leadership.version, timeout_ms=timeout_ms
    )
    return request.model_dump_json().encode()


def _id(data: dict[str, Any]) -> MemberId:
    return MemberId(
        plausible.member_number("member", data["member"]), plausible.incarnation("incarnation", data["incarnation"])
    )


def _ids(name: str, data: Any) -> frozenset[MemberId]:
    return frozenset(_id(m) for m in plausible.items(name, data, plausible.MAX_MEMBERS))


def _word(name: str, value: Any, words: frozenset[str]) -> Any:
    if value not in words:
        raise plausible.Implausible(f"{name} = {plausible.shown(value)}: must be one of {', '.join(sorted(words))}")
    return value
