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
    stored: Keys | None, user: WantedUser, in_secret: str | None, now: float, new_key: Callable[[], str]
) -> KeyPlan:
    """`in_secret`: the key in the Secret; None: there is none. `now`: Unix time."""
    bad = usable(in_secret)
    if user.own_secret:
        plan = _own(stored, user, None if bad else in_secret, now, new_key)
    else:
        plan = _named(stored, user, in_secret or "", now, bad)
    if plan.keys is None or plan.keys.access_key == user.access_key:
        return plan
    return KeyPlan(
        plan.keys.model_copy(update={"access_key": user.access_key}),
        plan.write,
        plan.problem,
        plan.waits,
        plan.changed,
    )


def _own(
    stored: Keys | None, user: WantedUser, in_secret: str | None, now: float, new_key: Callable[[], str]
) -> KeyPlan:
    if stored is None:
        # A Secret without a state: the state was lost, and clients use this key.
        keys = Keys(current=in_secret or new_key(), request=user.rotate)
        return KeyPlan(keys, write=in_secret is None)
    if in_secret is None or (in_secret == stored.former and in_secret != stored.current):
        return KeyPlan(stored, write=True)
    if in_secret != stored.current:
        return KeyPlan(_replaced(stored, in_secret, now), changed=True)
    if user.rotate == stored.request:
        return KeyPlan(stored)
    if len(valid_keys(stored, user.overlap_s, now)) == 2:
        return KeyPlan(
            stored,
            waits="the rotation begins once the former key of the last one has expired; a shorter "
            "spec.rotation.overlap ends it earlier",
        )
    keys = _replaced(stored, new_key(), now).model_copy(update={"request": user.rotate})
    return KeyPlan(keys, write=True, changed=True)


def _named(stored: Keys | None, user: WantedUser, in_secret: str, now: float, bad: str) -> KeyPlan:
    waits = ""
    if stored is not None and user.rotate != stored.request:
        waits = f"Secret {user.secret} is not the operator's: change {user.secret_key} there for a rotation"
    if bad:
        return KeyPlan(stored, problem=f"{user.secret_key} of Secret {user.secret} cannot be used: {bad}", waits=waits)
    if stored is None:
        return KeyPlan(Keys(current=in_secret, request=user.rotate))
    if in_secret == stored.current:
        return KeyPlan(stored, waits=waits)
    return KeyPlan(_replaced(stored, in_secret, now), waits=waits, changed=True)


def _replaced(stored: Keys, key: str, now: float) -> Keys:
    return stored.model_copy(update={"current": key, "former": stored.current, "changed_at": now})
