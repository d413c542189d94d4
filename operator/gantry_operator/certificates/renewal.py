"""Renews the certificates of one cluster: the present ones in, those to store out. The clock is an argument."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final, Literal

from gantry_operator.certificates import schedule, x509
from gantry_operator.certificates.schedule import AuthorityState, Step
from gantry_operator.certificates.x509 import CertificateInfo, KeyPair, Names, UnusableCertificate

MAX_STEPS = 4
"""Steps of an authority in one pass; more would be an error of the schedule."""
LOOK_S: Final = 600.0
"""Longest pause in seconds between two looks at the certificates. A Secret of a user is read then, too."""


@dataclass(frozen=True, slots=True)
class Authority:
    """The authority as it is stored. `following` signs after the switch, `former` signed before it."""

    current: KeyPair
    following: KeyPair | None = None
    former: bytes | None = None
    """The certificate alone: its key is not needed again."""
    switch_at: datetime | None = None
    drop_at: datetime | None = None
    asked: str = ""
    """The last request for a renewal that was followed."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Requests for renewals, as annotations. Each new text is a new request."""

    certificates: str = ""
    authority: str = ""


@dataclass(frozen=True, slots=True)
class Note:
    """What happened, for an event."""

    reason: Literal["CertificateIssued", "AuthorityAdded", "AuthorityChanged", "AuthorityDropped"]
    message: str


@dataclass(frozen=True, slots=True)
class Certificates:
    """All certificates of one cluster, as they are stored. `followed`: by holder, the last request for a renewal."""

    authority: Authority | None = None
    leaves: Mapping[str, KeyPair] = field(default_factory=dict)
    followed: Mapping[str, str] = field(default_factory=dict)


def renew(
    held: Certificates, holders: Mapping[str, Names], owner: tuple[str, str], requests: Asked, now: datetime
) -> tuple[Certificates, list[Note]]:
    """Return the certificates that should exist now, and what changed. `owner`: namespace (or "") and name of the
    cluster.

    A second call with the result changes nothing. Leaves of unknown holders are dropped.
    """
    notes: list[Note] = []
    authority = _usable(held.authority)
    for _ in range(MAX_STEPS):
        step = schedule.authority_step(_state(authority), requests.authority, now)
        if step is Step.NONE:
            break
        authority = _after(step, authority, requests.authority, owner, now, notes)
    assert authority is not None
    signer = x509.read(authority.current).key_id
    leaves: dict[str, KeyPair] = {}
    followed: dict[str, str] = {}
    for holder, names in sorted(holders.items()):
        present = held.leaves.get(holder)
        reason = schedule.leaf_reason(
            _facts(present), x509.names_of(names), signer, requests.certificates, held.followed.get(holder, ""), now
        )
        followed[holder] = requests.certificates or held.followed.get(holder, "")
        if not reason:
            assert present is not None
            leaves[holder] = present
            continue
        leaves[holder] = x509.sign(authority.current, names, owner[0], now, schedule.LEAF_LIFETIME)
        notes.append(Note("CertificateIssued", f"the certificate of {holder} was made: {reason}"))
    return Certificates(authority, leaves, followed), notes


def _after(
    step: Step, authority: Authority | None, request: str, owner: tuple[str, str], now: datetime, notes: list[Note]
) -> Authority:
    """Return the authority after a step."""
    if step is Step.FIRST or authority is None:
        notes.append(
            Note("AuthorityChanged", "the cluster's certificate authority was made: there was none that is valid")
        )
        return Authority(_make(owner, now), asked=request)
    if step is Step.ADD:
        pause = schedule.overlap(_state(authority), request)
        until = x509.read(authority.current).not_after
        switch_at = min(now + pause, max(now, until - timedelta(days=1)))
        notes.append(
            Note(
                "AuthorityAdded", f"a new certificate authority is trusted; it signs from {switch_at:%Y-%m-%d %H:%M} on"
            )
        )
        return replace(
            authority,
            following=_make(owner, now),
            switch_at=switch_at,
            drop_at=switch_at + pause,
            asked=request or authority.asked,
        )
    if step is Step.SWITCH:
        assert authority.following is not None
        notes.append(Note("AuthorityChanged", "the new certificate authority signs; the former one stays trusted"))
        pause = timedelta(0)
        if authority.drop_at is not None and authority.switch_at is not None:
            pause = authority.drop_at - authority.switch_at
        return replace(
            authority,
            current=authority.following,
            following=None,
            former=authority.current.certificate,
            switch_at=None,
            drop_at=now + max(pause, schedule.SPREAD),
        )
    notes.append(Note("AuthorityDropped", "the former certificate authority is no longer trusted"))
    return replace(authority, former=None, drop_at=None)


def _make(owner: tuple[str, str], now: datetime) -> KeyPair:
    return x509.make_authority(owner[1], owner[0], now, schedule.AUTHORITY_LIFETIME)


def trusted(authority: Authority) -> bytes:
    """Return the authorities that every member and client should trust, as PEM. The present one comes first."""
    parts = [authority.current.certificate]
    if authority.following is not None:
        parts.append(authority.following.certificate)
    if authority.former is not None:
        parts.append(authority.former)
    return b"".join(part if part.endswith(b"\n") else part + b"\n" for part in parts)


def next_look(held: Certificates) -> datetime | None:
    """Return the earliest time at which anything is due; None: there is nothing yet."""
    leaves = [facts for facts in map(_facts, held.leaves.values()) if facts is not None]
    return schedule.next_look(_state(held.authority), leaves)


def due_s(held: Certificates, now: datetime) -> float:
    """Seconds until the next look: at least one, at most `LOOK_S`."""
    due = next_look(held)
    return LOOK_S if due is None else min(LOOK_S, max(1.0, (due - now).total_seconds()))


def is_due(held: Certificates, now: datetime) -> bool:
    """Whether something must be renewed now."""
    due = next_look(held)
    return due is not None and due <= now


def expiry_of(pem: bytes) -> datetime:
    """Return the end of a certificate's validity. Raises UnusableCertificate."""
    return x509.read_certificate(pem).not_after


def renewal_of(pair: KeyPair) -> datetime:
    """Return the time at which it is made again. Raises UnusableCertificate."""
    return schedule.renewal_time(x509.read(pair))


def _usable(authority: Authority | None) -> Authority | None:
    """Return the authority without parts that cannot be read."""
    if authority is None or _facts(authority.current) is None:
        return None
    if authority.following is not None and _facts(authority.following) is None:
        authority = replace(authority, following=None, switch_at=None)
    if authority.former is not None and _certificate_facts(authority.former) is None:
        authority = replace(authority, former=None, drop_at=None)
    return authority


def _state(authority: Authority | None) -> AuthorityState:
    if authority is None:
        return AuthorityState(None)
    return AuthorityState(
        current=_facts(authority.current),
        following=_facts(authority.following),
        former=None if authority.former is None else _certificate_facts(authority.former),
        switch_at=authority.switch_at,
        drop_at=authority.drop_at,
        asked=authority.asked,
    )


def _facts(pair: KeyPair | None) -> CertificateInfo | None:
    if pair is None:
        return None
    try:
        return x509.read(pair)
    except UnusableCertificate:
        return None


def _certificate_facts(pem: bytes) -> CertificateInfo | None:
    try:
        return x509.read_certificate(pem)
    except UnusableCertificate:
        return None
