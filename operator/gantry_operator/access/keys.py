"""The rotation of one user's secret key.

At most two keys are valid: the current one, and the former one until its overlap ends. The state with a new key is
kept durably first, then the members get it, then the Secret is written: clients never read a key that no member knows.
A Secret that still holds the former key is behind. A Secret with a third key was changed by its owner, and that key is
adopted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gantry_operator.access.state import Keys
from gantry_operator.access.wanted import WantedUser
from gantry_operator.api.user import MAX_SECRET_KEY, MIN_SECRET_KEY


@dataclass(frozen=True, slots=True)
class KeyPlan:
    """The next keys of one user; None: it has none yet."""

    keys: Keys | None
    write: bool = False
    """The Secret must be written with the current key, once the members have it."""
    problem: str = ""
    """Why the Secret cannot be used."""
    waits: str = ""
    """Why a rotation is not carried out yet, or not at all."""
    changed: bool = False
    """The current key was replaced."""


def usable(value: str | None) -> str:
    """Why this is no secret key; empty: it is one."""
    if value is None:
        return "it is missing"
    if not MIN_SECRET_KEY <= len(value) <= MAX_SECRET_KEY:
        return f"it has {len(value)} characters: write {MIN_SECRET_KEY} to {MAX_SECRET_KEY}"
    if not value.isascii() or not value.isprintable() or " " in value:
        return "it has other characters than visible ASCII: write letters, digits and signs"
    return ""


def expires_at(keys: Keys, overlap_s: float) -> float | None:
    """End of the former key; None: there is none."""
    return keys.changed_at + overlap_s if keys.former else None


def valid_keys(keys: Keys, overlap_s: float, now: float) -> list[str]:
    """Return the valid keys, the newest first."""
    end = expires_at(keys, overlap_s)
    return [keys.current] if end is None or now >= end else [keys.current, keys.former]


def next_keys(
    known: Keys | None, wanted: WantedUser, found: str | None, now: float, new_key: Callable[[], str]
) -> KeyPlan:
    """`found`: the key in the Secret; None: there is none. `now`: Unix time."""
    bad = usable(found)
    if wanted.own_secret:
        plan = _own(known, wanted, None if bad else found, now, new_key)
    else:
        plan = _named(known, wanted, found or "", now, bad)
    if plan.keys is None or plan.keys.access_key == wanted.access_key:
        return plan
    return KeyPlan(
        plan.keys.model_copy(update={"access_key": wanted.access_key}),
        plan.write,
        plan.problem,
        plan.waits,
        plan.changed,
    )


def _own(known: Keys | None, wanted: WantedUser, found: str | None, now: float, new_key: Callable[[], str]) -> KeyPlan:
    if known is None:
        # A Secret without a state: the state was lost, and clients use this key.
        keys = Keys(current=found or new_key(), request=wanted.rotate)
        return KeyPlan(keys, write=found is None)
    if found is None or (found == known.former and found != known.current):
        return KeyPlan(known, write=True)
    if found != known.current:
        return KeyPlan(_replaced(known, found, now), changed=True)
    if wanted.rotate == known.request:
        return KeyPlan(known)
    if len(valid_keys(known, wanted.overlap_s, now)) == 2:
        return KeyPlan(
            known,
            waits="the rotation begins once the former key of the last one has expired; a shorter "
            "spec.rotation.overlap ends it earlier",
        )
    keys = _replaced(known, new_key(), now).model_copy(update={"request": wanted.rotate})
    return KeyPlan(keys, write=True, changed=True)


def _named(known: Keys | None, wanted: WantedUser, found: str, now: float, bad: str) -> KeyPlan:
    waits = ""
    if known is not None and wanted.rotate != known.request:
        waits = f"Secret {wanted.secret} is not the operator's: change {wanted.secret_key} there for a rotation"
    if bad:
        return KeyPlan(
            known, problem=f"{wanted.secret_key} of Secret {wanted.secret} cannot be used: {bad}", waits=waits
        )
    if known is None:
        return KeyPlan(Keys(current=found, request=wanted.rotate))
    if found == known.current:
        return KeyPlan(known, waits=waits)
    return KeyPlan(_replaced(known, found, now), waits=waits, changed=True)


def _replaced(known: Keys, key: str, now: float) -> Keys:
    return known.model_copy(update={"current": key, "former": known.current, "changed_at": now})
