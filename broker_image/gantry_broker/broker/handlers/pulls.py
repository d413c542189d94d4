"""Pulls of messages."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from gantry_broker.broker.pull.service import PullService
    from gantry_broker.protocol.frame import Frame
    from gantry_broker.remoting.connection import Connection


class Parts(Protocol):
    """What these functions use of a member."""

    pulls: PullService


def pull(broker: Parts, conn: Connection, frame: Frame) -> Coroutine[None, None, None] | None:
    """Answers a pull, or holds it until there are messages."""
    return broker.pulls.handle(conn, frame)
