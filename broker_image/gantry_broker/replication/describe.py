"""A member in words: config/replica.json, config/members.json, and the control records of replication."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from gantry_broker.protocol import plausible
from gantry_broker.protocol.codes import CONTROL_TOPIC
from gantry_broker.replication.identity import StateError
from gantry_broker.replication.members import Members, members_from_json
from gantry_broker.replication.state import HardState
from gantry_broker.store.recovery_point import boot_id
from gantry_broker.store.sealed import unseal

REPLICA: str = "replica.json"
MEMBERS: str = "members.json"


def read_state(path: Path) -> Any:
    """Return the content of a JSON file of config/; None without the file. Raises StateError, OSError."""
    try:
        return orjson.loads(unseal(path.read_bytes()))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise StateError(f"{path}: {error}") from None


def describe_replica(data: Any, path: Path) -> list[tuple[str, str]]:
    """replica.json as labels and texts. `path` is for the error. Raises StateError for an invalid file."""
    if data is None:
        return [("replica.json", "none: the disk belongs to no member yet")]
    try:
        state = HardState.from_json(data)
        boot, clean, mode = str(data["boot"]), bool(data["clean"]), str(data.get("mode", ""))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StateError(f"{path}: {error!r}") from None
    leadership = state.leadership
    raft = mode == "Raft"
    if not leadership.epoch:
        leader = "none: no epoch has been recorded on this disk"
    elif leadership.master is None:
        leader = f"epoch {leadership.epoch}: none known"
    else:
        leader = f"epoch {leadership.epoch}: member {leadership.master}"
        if leadership.master == state.me:
            leader += ", this one"
        elif state.leader_address:
            leader += f" at {state.leader_address}"
    facts = [
        ("member", f"number {state.me.member}, incarnation {state.me.incarnation}"),
        ("mode", mode or "not recorded"),
        ("leader", leader),
    ]
    if not raft:
        names = ", ".join(str(member) for member in sorted(leadership.in_sync)) or "none"
        facts.append(("in-sync set", f"{names} (version {leadership.version})"))
        if state.unclean:
            facts.append(("unclean", "it may truncate its log below its confirmed offset"))
    else:
        facts.append(("vote", "none in this epoch" if state.vote is None else f"for member {state.vote}"))
        if state.first_members:
            facts.append(("first members", describe_members(state.first_members)))
    if clean:
        stop = "the last stop was clean"
    elif boot and boot == boot_id():
        stop = "running, or killed; the machine has not booted since"
    else:
        stop = "running, or killed; the machine has booted since, or its disk failed"
    trusted = data.get("sync") is True or clean or (boot != "" and boot == boot_id())
    facts.append(("last stop", stop))
    if trusted or not data.get("held"):
        facts.append(("next start", "keeps the incarnation, unless its log is damaged or gone"))
    else:
        facts.append(("next start", "takes a new incarnation: the disk cannot prove what it acknowledged"))
    facts.append(("log", "has held records" if data.get("held") else "was empty when the file was written"))
    return facts


def describe_member_changes(data: Any, path: Path) -> list[tuple[str, str]]:
    """members.json as labels and texts; empty without the file. Raises StateError for an invalid file."""
    try:
        return [
            (
                f"members at {plausible.offset('at', change['at'])}",
                describe_members(members_from_json(change["members"])),
            )
            for change in data or ()
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(f"{path}: {error!r}") from None


def describe_members(members: Members) -> str:
    """Return the voters of a Raft group on one line."""
    return ", ".join(f"{voter.id} at {voter.address}" for voter in members)


def describe_control(topic: str, body: bytes) -> str | None:
    """Return the epoch or the members that a control record of replication carries; None for every other record."""
    if topic != CONTROL_TOPIC:
        return None
    try:
        data = orjson.loads(body)
        kind = data.get("kind")
        if kind == "epoch":
            number = plausible.epoch("epoch", data["epoch"])
            return f"epoch {number} begins: member {int(data['member'])} of group {data['group']} leads"
        if kind == "members":
            return f"the members are {describe_members(members_from_json(data['members']))}"
    except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError, ValueError):
        return None
    return None
