"""When certificates and authorities are renewed. Pure: times are arguments.

A leaf certificate is made again at two thirds of its lifetime. An authority is replaced in three steps, so that no
member meets a certificate that it does not trust:

1. `ADD`: a new authority is made. All members trust both; the old one still signs.
2. `SWITCH`: once everybody has the new one, it signs all certificates. The old one stays trusted.
3. `DROP`: once everybody has a new certificate, the old authority is forgotten.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from gantry_operator.certificates.x509 import BACKDATED, CertificateInfo

AUTHORITY_LIFETIME: Final = timedelta(days=5 * 365)
LEAF_LIFETIME: Final = timedelta(days=90)
RENEWED_AT: Final = 2 / 3
"""Share of a lifetime after which a certificate is made again."""
OVERLAP: Final = timedelta(days=30)
"""Time that clients outside have to fetch a new authority, and to go on with the old one."""
SPREAD: Final = timedelta(minutes=3)
"""The same for a renewal that somebody asked for: time in which a changed Secret reaches every pod."""
EXPIRING: Final = timedelta(days=14)
"""A certificate with a shorter remaining life is reported. Gantry renews its own long before."""

RENEW_CERTIFICATES: Final = "gantry.dev/renew-certificates"
"""Annotation: each new value makes all certificates of the cluster again."""
RENEW_AUTHORITY: Final = "gantry.dev/renew-authority"
"""Annotation: each new value replaces the cluster's authority, and then all certificates."""


class Step(enum.Enum):
    """The next step of an authority."""

    FIRST = "first"
    ADD = "add"
    SWITCH = "switch"
    DROP = "drop"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class AuthorityState:
    """The authorities of a cluster and the times of the next steps."""

    current: CertificateInfo | None
    following: CertificateInfo | None = None
    """The authority that signs after the switch."""
    former: CertificateInfo | None = None
    """The authority that signed before the switch."""
    switch_at: datetime | None = None
    drop_at: datetime | None = None
    asked: str = ""
    """The last request for a renewal that was followed."""


def renewal_time(facts: CertificateInfo) -> datetime:
    return facts.made + (facts.not_after - facts.made) * RENEWED_AT


def authority_step(state: AuthorityState, request: str, now: datetime) -> Step:
    """Return the next step. Call it again after each step."""
    current = state.current
    if current is None:
        return Step.FIRST
    if state.following is not None:
        due = state.switch_at is None or now >= state.switch_at or now >= current.not_after
        return Step.SWITCH if due else Step.NONE
    if now >= current.not_after:
        return Step.FIRST
    if state.former is not None and (state.drop_at is None or now >= state.drop_at or now >= state.former.not_after):
        return Step.DROP
    if state.former is None and (now >= renewal_time(current) or request not in ("", state.asked)):
        return Step.ADD
    return Step.NONE


def overlap(state: AuthorityState, request: str) -> timedelta:
    """How long both authorities are trusted before a switch, and again after it."""
    return SPREAD if request not in ("", state.asked) else OVERLAP


def leaf_reason(
    leaf: CertificateInfo | None, names: frozenset[str], signer: str, request: str, followed: str, now: datetime
) -> str:
    """Why a leaf certificate must be made again; empty: it is good. `signer`: the key id of the present authority."""
    if leaf is None:
        return "there was none"
    if leaf.signer != signer:
        return "another authority signs"
    if not names <= leaf.names:
        return f"it lacked {', '.join(sorted(names - leaf.names)[:3])}"
    if leaf.names - names:
        return f"it also named {', '.join(sorted(leaf.names - names)[:3])}"
    if request not in ("", followed):
        return "its renewal was requested"
    if now >= renewal_time(leaf):
        return "two thirds of its time are over"
    if now < leaf.made - BACKDATED:  # The clock was ahead, and was set back: everybody refuses the certificate.
        return "it was made in the future"
    return ""


def next_look(state: AuthorityState, leaves: Sequence[CertificateInfo]) -> datetime | None:
    """Return the earliest time at which anything is due; None: there is nothing yet."""
    times = [renewal_time(leaf) for leaf in leaves]
    if state.following is not None:
        times += [t for t in (state.switch_at,) if t is not None]
    elif state.former is not None:
        times += [t for t in (state.drop_at,) if t is not None]
    elif state.current is not None:
        times.append(renewal_time(state.current))
    return min(times, default=None)
