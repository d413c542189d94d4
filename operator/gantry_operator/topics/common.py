"""What topics and consumer groups have in common: conditions, and who owns a name. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from gantry_operator.topics.model import Origin, RecordedState, State, Step, WantedGroup, WantedTopic

W = TypeVar("W", WantedTopic, WantedGroup)

DELETED: Final = State("False", "Deleted", "the brokers keep nothing of it that this resource should delete")
TO_KEEP: Final = "to keep it after all, write spec.deletionPolicy: Retain"
SHOWN: Final = 6


def first_of_each(wanted: Sequence[W], name: Callable[[W], str]) -> dict[str, W]:
    """Return the owner of each name: the resource that had it, the older one, the first in the alphabet."""
    out: dict[str, W] = {}
    for w in sorted(wanted, key=lambda w: (not w.recorded.origin, w.created, w.resource)):
        out.setdefault(name(w), w)
    return out


def origin_of(recorded: RecordedState, exists: bool, answered: bool) -> Origin:
    """Decided once, before the first step. `answered`: a broker group says what it has."""
    if recorded.origin or not answered:
        return recorded.origin
    return "Adopted" if exists else "Created"


def in_words(parts: Sequence[str]) -> str:
    more = f"; and {len(parts) - SHOWN} more" if len(parts) > SHOWN else ""
    return "; ".join(parts[:SHOWN]) + more


def ready(origin: Origin, message: str) -> State:
    if origin == "Adopted":
        return State("True", "Adopted", f"it existed before this resource, which manages it now: {message}")
    return State("True", "Created", message)


def synced() -> State:
    return State("True", "AsWanted", "the brokers have what the spec says")


def on_hold(reason: str) -> State:
    return State("Unknown", "Paused", f"{reason}: nothing is compared or changed")


def drifted(parts: Sequence[str]) -> State:
    return State(
        "False", "Drifted", f"others have changed it, and driftPolicy is Report: {in_words(parts)}; put it back, "
        "change the spec, or write driftPolicy: Enforce",
    )  # fmt: skip


def applying(steps: Sequence[Step], waits: Sequence[str]) -> State:
    groups = sorted({step.group for step in steps})
    return State("False", "Applying", in_words([f"the brokers of {', '.join(groups)} get it now", *waits]))


def blind(silent: Sequence[str], otherwise: State) -> State:
    """`silent`: broker groups without an answer; none: the other state holds."""
    if not silent:
        return otherwise
    names = ", ".join(silent)
    return State("Unknown", "BrokersNotReached", f"no master of {names} answers now, so its part is not known")
