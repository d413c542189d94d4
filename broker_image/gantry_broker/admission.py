"""The check of access at a port for clients: brokers and NameServers do it in the same way, before anything else."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Protocol

from gantry_broker.access.decide import DISABLED
from gantry_broker.access.gate import Caller
from gantry_broker.access.guesses import HOLD_S
from gantry_broker.access.signature import ACCESS_KEY
from gantry_broker.protocol.headers import error_answer
from gantry_broker.protocol.requests import PLACES

if TYPE_CHECKING:
    from gantry_broker.access.gate import Gate
    from gantry_broker.protocol.frame import Frame, Sends
    from gantry_broker.remoting.connection import Connection


def owners_of(conn: Connection) -> tuple[object, str]:
    """Return who pays for a request that waits: the connection, and its user or, unsigned, the peer's address."""
    caller = conn.attrs.get("caller")
    user = None if caller is None else caller.user
    return conn, f"address {conn.peer[0]}" if user is None else f"user {user}"


def user_of(gate: Gate, frame: Frame) -> str | None:
    """Return the user that signed an admitted request; None: nobody, or signatures are not looked at."""
    return None if gate.mode == DISABLED else frame.ext.get(ACCESS_KEY)


def admit(gate: Gate, conn: Connection, frames: list[Frame]) -> list[Frame]:
    """Return the requests of one read that may be carried out; answer the others, or drop them if they are one-way."""
    caller = conn.attrs.get("caller")
    if caller is None:
        caller = conn.attrs["caller"] = Caller(conn.peer[0])
    if caller.ends:
        return []
    again = caller.again(gate.policy)
    admitted: list[Frame] = []
    at, end = 0, len(frames)
    while at < end:
        frame = frames[at]
        if again and not frame.known_unsigned:
            checks = again.get(frame.ext.get(ACCESS_KEY, ""))
            check = None if checks is None else checks.get(frame.code)
            if check is not None:
                passed = check(frames, at)
                if passed == end:
                    return frames
                if passed:
                    admitted += frames[at : at + passed]
                    at += passed
                    continue
        at += 1
        now = time.monotonic()
        refused = gate.check(caller, frame, now, time.time_ns() // 1_000_000)
        if refused is None:
            admitted.append(frame)
            continue
        if not frame.is_oneway:
            conn.send(error_answer(frame, refused.code, refused.remark))
        if refused is not None and refused.ends:
            _end(conn, caller)
            break
    return admitted


def admits(gate: Gate, conn: Connection, sends: Sends) -> bool:
    """Whether plain sends may be carried out. False: `admit` has to look at each of them."""
    caller = conn.attrs.get("caller")
    return caller is not None and not caller.ends and gate.passes(caller, sends)


class Answered(Protocol):
    """A connection that takes answers."""

    def send(self, frame: Frame) -> None:
        """Send an answer."""


def admit_again(gate: Gate, conn: Answered, address: str, frames: list[Frame]) -> list[Frame]:
    """As `admit`, for requests of one client (`address`) that another member admitted: those about a place of the log
    need the right for the record that this member has there.
    """
    if not gate.active or all(frame.code not in PLACES for frame in frames):
        return frames
    caller = Caller(address)
    admitted = []
    for frame in frames:
        refused = None
        if frame.code in PLACES:
            refused = gate.check(caller, frame, time.monotonic(), time.time_ns() // 1_000_000)
        if refused is None:
            admitted.append(frame)
        elif not frame.is_oneway:
            conn.send(error_answer(frame, refused.code, refused.remark))
    gate.closed(caller)
    return admitted


def _end(conn: Connection, caller: Caller) -> None:
    """Close a connection in a moment, until when it takes one of those that its address may have."""
    caller.ends = True
    conn.stop_reading()
    conn.drop_input()
    asyncio.get_running_loop().call_later(HOLD_S, conn.close)


def left(gate: Gate, conn: Connection) -> None:
    """Note that the connection has ended."""
    caller = conn.attrs.get("caller")
    if caller is not None:
        gate.closed(caller)
