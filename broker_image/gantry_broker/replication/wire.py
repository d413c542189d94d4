"""Fetches and their answers as remoting frames (GantryCode.FETCH), and what members in Raft mode ask (POLL).

The numbers travel in the header, the history of an answer as JSON in the header too (a reset is rare), the history of
a fetch as JSON in its body, and the records of an answer verbatim as its body.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import orjson

from gantry_broker.protocol.codes import GantryCode, ResponseCode
from gantry_broker.protocol.frame import Frame
from gantry_broker.remoting.handshake import Identity
from gantry_broker.replication.members import members_from_json, members_to_json
from gantry_broker.replication.messages import AnswerKind, Fetch, FetchAnswer, Position
from gantry_broker.replication.raft_messages import Poll, PollAnswer, PollKind
from gantry_broker.replication.types import EpochStart, History, MemberId


class WireError(Exception):
    """A frame that is not what its code says; the text names the field."""


@lru_cache(maxsize=64)
def _history_bytes(history: History) -> bytes:
    return orjson.dumps([list(e) for e in history])


@lru_cache(maxsize=64)
def _history(data: bytes) -> History:
    try:
        return tuple(EpochStart(int(epoch), int(start)) for epoch, start in orjson.loads(data))
    except (orjson.JSONDecodeError, TypeError, ValueError) as error:
        raise WireError(f"history: {error}") from error


def _number(ext: dict[str, str], name: str) -> int:
    try:
        return int(ext[name])
    except (KeyError, ValueError) as error:
        raise WireError(f"{name} = {ext.get(name)!r}: must be an integer") from error


def fetch_frame(fetch: Fetch) -> Frame:
    ext = {
        "epoch": str(fetch.epoch),
        "member": str(fetch.member.member),
        "incarnation": fetch.member.incarnation,
        "end": str(fetch.end),
        "flushed": str(fetch.flushed),
        "confirmed": str(fetch.confirmed),
        "maxBytes": str(fetch.max_bytes),
    }
    if fetch.address:
        ext["address"] = fetch.address
    if fetch.leader is not None:
        ext["leader"], ext["leaderIncarnation"] = str(fetch.leader.member), fetch.leader.incarnation
    return Frame(GantryCode.FETCH, ext=ext, body=_history_bytes(fetch.history))


def parse_fetch(frame: Frame) -> Fetch:
    """Raises WireError."""
    ext = frame.ext
    incarnation = ext.get("incarnation", "")
    if not incarnation:
        raise WireError("incarnation: is missing")
    return Fetch(
        _number(ext, "epoch"),
        MemberId(_number(ext, "member"), incarnation),
        _number(ext, "end"),
        _number(ext, "flushed"),
        _history(frame.body),
        _number(ext, "confirmed"),
        max(1, min(_number(ext, "maxBytes"), 8 << 20)),
        ext.get("address", ""),
        MemberId(_number(ext, "leader"), ext.get("leaderIncarnation", "")) if "leader" in ext else None,
    )


def answer_frame(request: Frame, answer: FetchAnswer) -> Frame:
    ext = {
        "kind": answer.kind.value,
        "epoch": str(answer.epoch),
        "askedEnd": str(answer.asked.end),
        "askedEpoch": str(answer.asked.epoch),
        "confirmed": str(answer.confirmed),
        "leaderEnd": str(answer.leader_end),
    }
    if answer.kind in (AnswerKind.CUT, AnswerKind.RESET):
        ext["to"] = str(answer.to)
        ext["parted"] = str(answer.parted)
        ext["history"] = _history_bytes(answer.history).decode()
    remark = answer.reason or None
    return Frame.response_to(request, ResponseCode.SUCCESS, remark, ext, answer.data)


def parse_answer(frame: Frame) -> FetchAnswer:
    """Raises WireError, also for an answer that says that the request was not understood."""
    if frame.code != ResponseCode.SUCCESS:
        raise WireError(f"answer {frame.code}: {frame.remark}")
    ext = frame.ext
    try:
        kind = AnswerKind(ext.get("kind"))
    except ValueError as error:
        raise WireError(f"kind: {error}") from error
    parted = kind in (AnswerKind.CUT, AnswerKind.RESET)
    return FetchAnswer(
        kind,
        _number(ext, "epoch"),
        Position(_number(ext, "askedEnd"), _number(ext, "askedEpoch")),
        _number(ext, "confirmed"),
        _number(ext, "leaderEnd"),
        _number(ext, "to") if parted else 0,
        _number(ext, "parted") if parted else 0,
        frame.body,
        _history(ext.get("history", "[]").encode()) if parted else (),
        frame.remark or "",
    )


def poll_frame(poll: Poll, group: str, group_address: str) -> Frame:
    """`group`: "cluster/group" of the asker, for an address may belong to a member of another group by now. So may a
    name: two namespaces can have clusters of one name, and only `group_address` tells those apart."""
    body = {
        "kind": poll.kind.value,
        "epoch": poll.epoch,
        "member": list(poll.member),
        "address": poll.address,
        "rank": list(poll.rank),
        "transfer": poll.transfer,
        "members": members_to_json(poll.members),
    }
    return Frame(GantryCode.POLL, ext={"group": group, "groupAddress": group_address}, body=orjson.dumps(body))


def not_of_group(frame: Frame, group: str, group_address: str) -> str:
    """Why a poll is not for a member of this group; empty: it is. Older members do not say their address."""
    asked, address = frame.ext.get("group"), frame.ext.get("groupAddress", group_address)
    if (asked, address) == (group, group_address):
        return ""
    return f"this is a member of {group} at {group_address}, not of {asked} at {address}"


def not_its_own(sender: Identity | None, member: int) -> str:
    """Why a request in the name of a member is refused, by who proved to be at the other end; empty: it is not."""
    if sender is not None and sender.member == member:
        return ""
    return f"the request is in the name of member {member}, but {sender or 'nobody'} is connected"


def parse_poll(frame: Frame) -> Poll:
    """Raises WireError."""
    try:
        data = orjson.loads(frame.body)
        return Poll(
            PollKind(data["kind"]),
            int(data["epoch"]),
            _member(data["member"]),
            str(data["address"]),
            (int(data["rank"][0]), int(data["rank"][1])),
            bool(data["transfer"]),
            members_from_json(data["members"]),
        )
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, IndexError) as error:
        raise WireError(f"poll: {error!r}") from error


def poll_answer_frame(request: Frame, answer: PollAnswer) -> Frame:
    body = {
        "kind": answer.kind.value,
        "asked": answer.asked,
        "member": list(answer.member),
        "epoch": answer.epoch,
        "granted": answer.granted,
        "leader": None if answer.leader is None else list(answer.leader),
        "leaderAddress": answer.leader_address,
        "fresh": answer.fresh,
    }
    return Frame.response_to(request, ResponseCode.SUCCESS, None, None, orjson.dumps(body))


def parse_poll_answer(frame: Frame) -> PollAnswer:
    """Raises WireError, also for an answer that says that the request was not understood."""
    if frame.code != ResponseCode.SUCCESS:
        raise WireError(f"answer {frame.code}: {frame.remark}")
    try:
        data = orjson.loads(frame.body)
        return PollAnswer(
            PollKind(data["kind"]),
            int(data["asked"]),
            _member(data["member"]),
            int(data["epoch"]),
            bool(data["granted"]),
            None if data["leader"] is None else _member(data["leader"]),
            str(data["leaderAddress"]),
            bool(data["fresh"]),
        )
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise WireError(f"answer to a poll: {error!r}") from error


def _member(data: Any) -> MemberId:
    number, incarnation = data
    return MemberId(int(number), str(incarnation))
