"""The numbers and texts that a member of a group may send to another one, and which epoch can follow another.

Every entrance uses these: fetches, polls and their answers, assignments, status lines, registrations at a NameServer,
the role registry's content, and the files that a member reads when it starts. A value outside is refused before it
changes anything. Pure; `gantry_broker.refusals` counts what was refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from gantry_broker.protocol.digits import MAX_DIGITS, whole_number

MAX_EPOCH: Final = 2**53
"""Epochs and versions: JSON readers that keep numbers as doubles read every one up to here exactly."""
MAX_EPOCH_JUMP: Final = 2**20
"""How far an epoch may lie above the highest one that the receiver knows.

Epochs rise by one: with each promotion that the operator records (by 11 where it recovers a lost record), and in Raft
mode with each election that a candidate begins, whether it wins or fails. A member that was paused or switched off
learns of all of these at once when it comes back. A million are an election every 30 seconds for a year: no member
comes back later than that. An attacker that forges epochs needs 2**33 messages, one after the other, to use them up.
"""
MAX_OFFSET: Final = 2**63 - 1
MAX_MEMBER: Final = 63
"""The highest member number. A BrokerCluster has at most nine members in a group (0 to 8)."""
MAX_MEMBERS: Final = 2 * (MAX_MEMBER + 1)
"""Entries of a list of members: a number may be there twice while one life of its disk replaces another."""
MAX_INCARNATION: Final = 64
"""Characters."""
MAX_ADDRESS: Final = 300
"""Characters of "host:port"; a host name has at most 253."""
MAX_TEXT: Final = 4_096
"""Characters of a reason or another text for people."""
MAX_LEADER_EPOCHS: Final = 65_536
"""Leaderships in the history of a log."""
MAX_LEADER_EPOCHS_BYTES: Final = 48 * MAX_LEADER_EPOCHS
"""Bytes of a history as JSON: two numbers of at most 16 and 19 digits, brackets and commas."""
MAX_POLL_BYTES: Final = 1 << 16
"""Bytes of a poll or of its answer."""


class Implausible(ValueError):
    """A value that no correct peer sends. `reason` is one of `refusals.REASONS`; the text names field and value."""

    def __init__(self, text: str, reason: str = "range") -> None:
        super().__init__(text)
        self.reason = reason


def shown(value: object) -> str:
    """Return a value from outside, short enough for a message."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def integer(name: str, value: str) -> int:
    """Return a whole number from the decimal digits of a header field. Raises Implausible."""
    number = whole_number(value, -(10**MAX_DIGITS), 10**MAX_DIGITS)
    if number is None:
        raise Implausible(f"{name} = {shown(value)}: must be a whole number", "malformed")
    return number


def number(name: str, value: object, low: int, high: int) -> int:
    """Return a whole number in [low, high]. Raises Implausible."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise Implausible(f"{name} = {shown(value)}: must be a whole number from {low} to {high}", "malformed")
    if not low <= value <= high:
        raise Implausible(f"{name} = {shown(value)}: must be from {low} to {high}")
    return value


def epoch(name: str, value: Any) -> int:
    return number(name, value, 0, MAX_EPOCH)


def version(name: str, value: Any) -> int:
    return number(name, value, 0, MAX_EPOCH)


def offset(name: str, value: Any) -> int:
    return number(name, value, 0, MAX_OFFSET)


def member_number(name: str, value: Any) -> int:
    return number(name, value, 0, MAX_MEMBER)


def text(name: str, value: Any, most: int, *, least: int = 0) -> str:
    """Printable text of `least` to `most` characters. Raises Implausible."""
    if not isinstance(value, str):
        raise Implausible(f"{name} = {shown(value)}: must be a text", "malformed")
    if not least <= len(value) <= most or not value.isprintable():
        raise Implausible(f"{name} = {shown(value)}: must be {least} to {most} printable characters")
    return value


def incarnation(name: str, value: Any) -> str:
    return text(name, value, MAX_INCARNATION, least=1)


def address(name: str, value: Any) -> str:
    return text(name, value, MAX_ADDRESS)


def items(name: str, value: Any, most: int) -> Sequence[Any]:
    """Return a list of at most `most` entries. Raises Implausible."""
    if not isinstance(value, list | tuple):
        raise Implausible(f"{name} = {shown(value)}: must be a list", "malformed")
    if len(value) > most:
        raise Implausible(f"{name}: has {len(value)} entries, at most {most} are possible")
    return value


def leader_epochs(name: str, value: Any) -> tuple[tuple[int, int], ...]:
    """Pairs (epoch, offset of its first record): epochs rise, offsets do not fall. Raises Implausible."""
    checked: list[tuple[int, int]] = []
    before, start_before = -1, 0
    for entry in items(name, value, MAX_LEADER_EPOCHS):
        if not isinstance(entry, list | tuple) or len(entry) != 2:
            raise Implausible(f"{name}: {shown(entry)} is no pair of epoch and offset", "malformed")
        pair = epoch(f"{name}: epoch", entry[0]), offset(f"{name}: offset", entry[1])
        if pair[0] <= before or pair[1] < start_before:
            raise Implausible(f"{name}: {shown(entry)} cannot follow epoch {before} from offset {start_before}")
        checked.append(pair)
        before, start_before = pair
    return tuple(checked)


def possible_successor(known: int, new: int) -> bool:
    """Whether a correct peer can be in epoch `new` when the highest epoch known here is `known`.

    An epoch that is not above `known` says nothing new, and is possible.
    """
    return 0 <= new <= MAX_EPOCH and new - known <= MAX_EPOCH_JUMP


def jump_refusal(known: int, new: int) -> str:
    """Why `new` cannot follow `known`, in words; empty: it can."""
    if possible_successor(known, new):
        return ""
    if not 0 <= new <= MAX_EPOCH:
        return f"epoch {shown(new)} is outside 0 to {MAX_EPOCH}"
    return f"epoch {new} cannot follow {known}: at most {MAX_EPOCH_JUMP} elections or promotions lie between two"
