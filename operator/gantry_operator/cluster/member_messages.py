"""Between the HTTP models of the brokers and the plain values of the decisions.

A status line comes from every member each second, so it is read without building models; a test keeps the two equal.
"""

from __future__ import annotations

from typing import Any

from gantry_broker.http.models import AssignmentModel, HandoverRequest, MemberRef
from gantry_broker.replication.types import Ask, Assignment, Cell, MemberId

from gantry_operator.failover.model import FollowerView, Report


class BadStatus(ValueError):
    """A status line that is none."""


def report_from(status: dict[str, Any]) -> Report:
    """The JSON of a `MemberStatus` as a `Report`. Raises BadStatus."""
    try:
        link = status.get("master_link") or {}
        link_master = link.get("member")
        ask = status.get("ask")
        return Report(
            id=_id(status["member"]),
            role=status["role"],
            epoch=int(status["epoch"]),
            version=int(status["version"]),
            told_epoch=int(status.get("told_epoch", 0)),
            proven=bool(status.get("proven", True)),
            last_epoch=int(status.get("last_epoch", 0)),
            end=int(status.get("end", 0)),
            confirmed=int(status.get("confirmed", 0)),
            in_sync=frozenset(_id(m) for m in status.get("in_sync", ())),
            ask=None if ask is None else Ask(int(ask["base_version"]), frozenset(_id(m) for m in ask["in_sync"])),
            followers=tuple(
                FollowerView(_id(f["member"]), int(f["acked"]), int(f["last_fetch_ms"]))
                for f in status.get("followers", ())
            ),
            link=link.get("state", "none"),
            link_master=None if link_master is None else _id(link_master),
            link_answer_ms=int(link.get("last_answer_ms", -1)),
            parked=bool(status.get("parked", False)),
            unfit=str(status.get("unfit", "")),
            disk_full=bool((status.get("disk") or {}).get("full", False)),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadStatus(f"not a member's status: {type(error).__name__} {error}") from error


def assignment_body(assignment: Assignment) -> bytes:
    return AssignmentModel.of(assignment).model_dump_json().encode()


def handover_body(target: MemberId, cell: Cell, timeout_ms: int) -> bytes:
    request = HandoverRequest(
        target=MemberRef.of(target), epoch=cell.epoch, version=cell.version, timeout_ms=timeout_ms
    )
    return request.model_dump_json().encode()


def _id(data: dict[str, Any]) -> MemberId:
    return MemberId(int(data["member"]), str(data["incarnation"]))
