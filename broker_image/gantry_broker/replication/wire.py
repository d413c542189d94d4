"""Fetches and their answers as remoting frames (GantryCode.FETCH), and Raft requests and theirs (POLL).

The numbers travel in the header. The leader epochs of an answer are JSON in the header (a reset is rare), those of a
fetch JSON in its body. The records of an answer are its body, verbatim.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import orjson

from gantry_broker.contracts.leadership import MemberId, member_from_json
from gantry_broker.protocol import plausible
from gantry_broker.protocol.codes import GantryCode, ResponseCode
from gantry_broker.protocol.frame import Frame
from gantry_broker.remoting.handshake import Identity
from gantry_broker.replication.members import Members, members_from_json, members_to_json
from gantry_broker.replication.messages import AnswerKind, Fetch, FetchAnswer, Position
from gantry_broker.replication.raft_messages import RaftRequest, RaftRequestKind, RaftResponse
from gantry_broker.store.log.epochs import EpochStart, LeaderEpochs

_SHORT: Final = 18
"""Digits of a number that is below `plausible.MAX_OFFSET` whatever they are."""


class WireError(Exception):
    """A frame that no correct member sends; the text names the field. `reason` is one of `refusals.REASONS`, or
    empty for an answer that only refuses the request.
    """

    def __init__(self, text: str, reason: str = "malformed") -> None:
        super().__init__(text)
        self.reason = reason


@lru_cache(maxsize=64)
def _leader_epochs_bytes(leader_epochs: LeaderEpochs) -> bytes:
    return orjson.dumps([list(e) for e in leader_epochs])


@lru_cache(maxsize=64)
def _leader_epochs(data: bytes) -> LeaderEpochs:
    """Parse leader epochs. Raises Implausible, ValueError."""
    if len(data) > plausible.MAX_LEADER_EPOCHS_BYTES:
        raise plausible.Implausible(
            f"leader epochs: {len(data)} bytes, at most {plausible.MAX_LEADER_EPOCHS_BYTES} are possible"
        )
    return tuple(EpochStart(*pair) for pair in plausible.leader_epochs("leaderEpochs", orjson.loads(data)))


def _integer(ext: dict[str, str], name: str) -> int:
    """Return a field that is a whole number. Raises Implausible."""
    return plausible.integer(name, _field(ext, name))


def _field(ext: dict[str, str], name: str) -> str:
    """Return a field that must be there. Raises Implausible."""
    value = ext.get(name)
    if value is None:
        raise plausible.Implausible(f"{name}: is missing", "malformed")
    return value


def _epoch(ext: dict[str, str], name: str) -> int:
    return plausible.epoch(name, _integer(ext, name))


def _offset(ext: dict[str, str], name: str) -> int:
    value = ext.get(name)
    if value is not None and len(value) <= _SHORT and value.isdecimal() and value.isascii():
        return int(value)  # In range; each message of a busy group reads several.
    return plausible.offset(name, _integer(ext, name))


class _AsWireError:
    """Turns any exception of a parser into a WireError. A class: a generator costs a tenth of a parser's time."""

    __slots__ = ("_what",)

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, plausible.Implausible):
            raise WireError(f"{self._what}: {error}", error.reason) from error
        if isinstance(error, KeyError | TypeError | ValueError | IndexError | AttributeError):
            raise WireError(f"{self._what}: {error!r}") from error


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
    return Frame(GantryCode.FETCH, ext=ext, body=_leader_epochs_bytes(fetch.leader_epochs))


def parse_fetch(frame: Frame) -> Fetch:
    """Parse a fetch. Raises WireError."""
    ext = frame.ext
    with _AsWireError("fetch"):
        fetch = Fetch(
            _epoch(ext, "epoch"),
            _member_in(ext, "member", "incarnation"),
            _offset(ext, "end"),
            _offset(ext, "flushed"),
            _leader_epochs(frame.body),
            _offset(ext, "confirmed"),
            max(1, min(_offset(ext, "maxBytes"), 8 << 20)),
            plausible.address("address", ext["address"]) if "address" in ext else "",
            _member_in(ext, "leader", "leaderIncarnation") if "leader" in ext else None,
        )
        _check_leader_epochs(fetch.leader_epochs, fetch.epoch, fetch.end)
        return fetch


def _member_in(ext: dict[str, str], number: str, incarnation: str) -> MemberId:
    return _member(number, _field(ext, number), incarnation, _field(ext, incarnation))


@lru_cache(maxsize=64)
def _member(number_name: str, number: str, incarnation_name: str, incarnation: str) -> MemberId:
    """Return a member from its two fields. Raises Implausible."""
    return MemberId(
        plausible.member_number(number_name, plausible.integer(number_name, number)),
        plausible.incarnation(incarnation_name, incarnation),
    )


def _check_leader_epochs(leader_epochs: LeaderEpochs, epoch: int, end: int) -> None:
    """Refuse leader epochs with a later epoch than their member's, or with one that begins after the log's end.
    Raises Implausible.
    """
    if not leader_epochs:
        return
    last = leader_epochs[-1]
    if last.epoch > epoch:
        raise plausible.Implausible(f"leader epochs: the last one, {last.epoch}, is above the sender's epoch {epoch}")
    if last.start > end:
        raise plausible.Implausible(f"leader epochs: the last one begins at {last.start}, after the log's end {end}")


def answer_frame(request: Frame, answer: FetchAnswer) -> Frame:
    frame = answer_without_data(request, answer)
    frame.body = bytes(answer.data)
    return frame


def answer_without_data(request: Frame, answer: FetchAnswer) -> Frame:
    ext = {
        "kind": answer.kind.value,
        "epoch": str(answer.epoch),
        "askedEnd": str(answer.asked.end),
        "askedEpoch": str(answer.asked.epoch),
        "confirmed": str(answer.confirmed),
        "leaderEnd": str(answer.leader_end),
    }
    if answer.kind in (AnswerKind.TRUNCATE, AnswerKind.RESET):
        ext["to"] = str(answer.to)
        ext["divergence"] = str(answer.divergence_offset)
        ext["leaderEpochs"] = _leader_epochs_bytes(answer.leader_epochs).decode()
    remark = answer.reason or None
    return Frame.response_to(request, ResponseCode.SUCCESS, remark, ext)


def parse_answer(frame: Frame) -> FetchAnswer:
    """Parse the answer to a fetch. Raises WireError, also for an answer that rejects the request as invalid."""
    if frame.code != ResponseCode.SUCCESS:
        raise WireError(f"answer {frame.code}: {frame.remark}", "")
    ext = frame.ext
    with _AsWireError("answer to a fetch"):
        kind = AnswerKind(ext.get("kind"))
        divergence_offset = kind in (AnswerKind.TRUNCATE, AnswerKind.RESET)
        answer = FetchAnswer(
            kind,
            _epoch(ext, "epoch"),
            Position(_offset(ext, "askedEnd"), _epoch(ext, "askedEpoch")),
            _offset(ext, "confirmed"),
            _offset(ext, "leaderEnd"),
            _offset(ext, "to") if divergence_offset else 0,
            _offset(ext, "divergence") if divergence_offset else 0,
            frame.body,
            _leader_epochs(ext.get("leaderEpochs", "[]").encode()) if divergence_offset else (),
            (frame.remark or "")[: plausible.MAX_TEXT],
        )
        _check_leader_epochs(answer.leader_epochs, answer.epoch, answer.leader_end)
        for name, value in (
            ("confirmed", answer.confirmed),
            ("to", answer.to),
            ("divergence", answer.divergence_offset),
        ):
            if value > answer.leader_end:
                raise plausible.Implausible(f"{name} = {value}: is above leaderEnd = {answer.leader_end}")
        return answer


def raft_request_frame(request: RaftRequest, group: str, group_address: str) -> Frame:
    """`group` is the sender's "cluster/group": its address may belong to a member of another group by now. Two
    namespaces can have clusters of one name; `group_address` distinguishes them.
    """
    body = {
        "kind": request.kind.value,
        "epoch": request.epoch,
        "member": list(request.member),
        "address": request.address,
        "rank": list(request.rank),
        "transfer": request.transfer,
        "members": members_to_json(request.members),
    }
    return Frame(GantryCode.RAFT, ext={"group": group, "groupAddress": group_address}, body=orjson.dumps(body))


def not_of_group(frame: Frame, group: str, group_address: str) -> str:
    """Return why a Raft request is not for a member of this group; empty: it is. Older members send no address."""
    named, address = frame.ext.get("group"), frame.ext.get("groupAddress", group_address)
    if (named, address) == (group, group_address):
        return ""
    return f"this is a member of {group} at {group_address}, not of {named} at {address}"


def not_its_own(sender: Identity | None, member: int) -> str:
    """Return why a request in the name of a member is refused, given the member that proved itself; empty: it is
    not.
    """
    if sender is not None and sender.member == member:
        return ""
    return f"the request is in the name of member {member}, but the peer is {sender or 'not authenticated'}"


def parse_raft_request(frame: Frame) -> RaftRequest:
    """Parse a Raft request. Raises WireError."""
    with _AsWireError("poll"):
        data = _poll_body(frame)
        rank = plausible.items("rank", data["rank"], 2)
        request = RaftRequest(
            RaftRequestKind(data["kind"]),
            plausible.epoch("epoch", data["epoch"]),
            member_from_json("member", data["member"]),
            plausible.address("address", data["address"]),
            (plausible.epoch("rank", rank[0]), plausible.offset("rank", rank[1])),
            data["transfer"] is True,
            _members(data["members"]),
        )
        if (
            request.rank[0] > request.epoch and request.kind is not RaftRequestKind.FIND
        ):  # A state file may have been lost.
            raise plausible.Implausible(
                f"rank: its epoch {request.rank[0]} is above the sender's epoch {request.epoch}"
            )
        return request


def _poll_body(frame: Frame) -> dict[str, Any]:
    if len(frame.body) > plausible.MAX_POLL_BYTES:
        raise plausible.Implausible(f"{len(frame.body)} bytes, at most {plausible.MAX_POLL_BYTES} are possible")
    data = orjson.loads(frame.body)
    if not isinstance(data, dict):
        raise plausible.Implausible(f"{plausible.shown(data)}: is not a JSON object", "malformed")
    return data


def raft_response_frame(request: Frame, answer: RaftResponse) -> Frame:
    body = {
        "kind": answer.kind.value,
        "asked": answer.asked,
        "member": list(answer.member),
        "epoch": answer.epoch,
        "granted": answer.granted,
        "leader": None if answer.leader is None else list(answer.leader),
        "leaderAddress": answer.leader_address,
        "uninitialized": answer.uninitialized,
        "members": members_to_json(answer.members),
    }
    return Frame.response_to(request, ResponseCode.SUCCESS, None, None, orjson.dumps(body))


def parse_raft_response(frame: Frame) -> RaftResponse:
    """Parse the answer to a Raft request. Raises WireError, also for an answer that rejects the request as invalid."""
    if frame.code != ResponseCode.SUCCESS:
        raise WireError(f"answer {frame.code}: {frame.remark}", "")
    with _AsWireError("answer to a Raft request"):
        data = _poll_body(frame)
        leader = data["leader"]
        return RaftResponse(
            RaftRequestKind(data["kind"]),
            plausible.epoch("asked", data["asked"]),
            member_from_json("member", data["member"]),
            plausible.epoch("epoch", data["epoch"]),
            data["granted"] is True,
            None if leader is None else member_from_json("leader", leader),
            plausible.address("leaderAddress", data["leaderAddress"]),
            data["uninitialized"] is True,
            _members(data.get("members", [])),  # Older members do not send them.
        )


def _members(data: Any) -> Members:
    return members_from_json(plausible.items("members", data, plausible.MAX_MEMBERS))
