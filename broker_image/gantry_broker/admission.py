"""The check of access at a port for clients: brokers and NameServers do it in the same way, before anything else."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gantry_broker.access.gate import Caller
from gantry_broker.protocol.headers import error_answer

if TYPE_CHECKING:
    from gantry_broker.access.gate import Gate
    from gantry_broker.protocol.frame import Frame
    from gantry_broker.remoting.connection import Connection


def admit(gate: Gate, conn: Connection, frames: list[Frame]) -> list[Frame]:
    """Return the requests of one read that may be carried out; answer the others, or drop them if they are one-way."""
    caller = conn.attrs.get("caller")
    if caller is None:
        caller = conn.attrs["caller"] = Caller(conn.peer[0])
    policy, allows_again = gate.policy, caller.allows_again
    admitted = []
    for frame in frames:
        if allows_again(policy, frame):
            admitted.append(frame)
            continue
        refused = gate.check(caller, frame, time.monotonic(), time.time_ns() // 1_000_000)
        if refused is None:
            admitted.append(frame)
        elif not frame.is_oneway:
            conn.send(error_answer(frame, refused.code, refused.remark))
    return admitted


def left(gate: Gate, conn: Connection) -> None:
    """Note that the connection has ended."""
    caller = conn.attrs.get("caller")
    if caller is not None:
        gate.closed(caller)
