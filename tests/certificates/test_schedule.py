"""When certificates and authorities are renewed, and that no member ever meets one that it does not trust."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509 as lib
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError
from gantry_operator.certificates import x509
from gantry_operator.certificates.renewal import Asked, Certificates, next_look, renew, trusted
from gantry_operator.certificates.schedule import (
    AUTHORITY_LIFETIME,
    LEAF_LIFETIME,
    OVERLAP,
    SPREAD,
    AuthorityState,
    Step,
    authority_step,
    leaf_reason,
)
from gantry_operator.certificates.x509 import KeyPair, Names

START = datetime(2026, 3, 1, tzinfo=UTC)
OWNER = ("mq", "demo")
A, B = (Names(f"demo-{g}", (f"demo-{g}.mq.svc", "127.0.0.1"), (f"gantry://demo/{g}",)) for g in "ab")
HOLDERS = {"a": A, "b": B}


def verified(bundle: bytes, leaf: KeyPair, host: str, now: datetime) -> bool:
    """Whether a verifier with these authorities accepts the certificate."""
    store = Store(lib.load_pem_x509_certificates(bundle))
    try:
        verifier = PolicyBuilder().store(store).time(now).build_server_verifier(lib.DNSName(host))
        verifier.verify(lib.load_pem_x509_certificate(leaf.certificate), [])
    except VerificationError:
        return False
    return True


def test_everything_is_made_once() -> None:
    held, notes = renew(Certificates(), HOLDERS, OWNER, Asked(), START)
    assert [n.reason for n in notes] == ["AuthorityChanged", "CertificateIssued", "CertificateIssued"]
    assert renew(held, HOLDERS, OWNER, Asked(), START) == (held, [])
    assert held.authority is not None
    for holder, names in HOLDERS.items():
        leaf = held.leaves[holder]
        assert x509.read(leaf).names == x509.names_of(names)
        assert verified(trusted(held.authority), leaf, names.hosts[0], START)
        assert not verified(trusted(held.authority), leaf, "other.mq.svc", START)


def test_a_certificate_is_made_again_at_two_thirds_of_its_time() -> None:
    held, _ = renew(Certificates(), HOLDERS, OWNER, Asked(), START)
    due = START + LEAF_LIFETIME * 2 / 3
    assert next_look(held) is not None
    assert abs((next_look(held) or START) - due) < timedelta(seconds=2)
    assert renew(held, HOLDERS, OWNER, Asked(), due - timedelta(minutes=1))[1] == []
    later, notes = renew(held, HOLDERS, OWNER, Asked(), due + timedelta(minutes=1))
    assert [n.reason for n in notes] == ["CertificateIssued"] * 2
    assert later.authority == held.authority


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (Names("demo-a", (*A.hosts, "mq.example.com"), A.uris), "it lacked mq.example.com"),
        (Names("demo-a", A.hosts[:1], A.uris), "it also named 127.0.0.1"),
        (Names("demo-a", A.hosts, ("gantry://demo/b",)), "it lacked gantry://demo/b"),
    ],
)
def test_other_names_need_another_certificate(names: Names, words: str) -> None:
    held, _ = renew(Certificates(), HOLDERS, OWNER, Asked(), START)
    changed, notes = renew(held, HOLDERS | {"a": names}, OWNER, Asked(), START)
    assert len(notes) == 1
    assert words in notes[0].message
    assert changed.leaves["b"] == held.leaves["b"]


def test_the_form_of_an_address_makes_no_difference() -> None:
    names = replace(A, hosts=("DEMO-a.mq.svc", "0:0:0:0:0:0:0:1"))
    held, _ = renew(Certificates(), {"a": names}, OWNER, Asked(), START)
    assert renew(held, {"a": replace(A, hosts=("demo-a.mq.svc", "::1"))}, OWNER, Asked(), START)[1] == []


def test_damaged_parts_are_made_again() -> None:
    held, _ = renew(Certificates(), HOLDERS, OWNER, Asked(), START)
    a, b = held.leaves["a"], held.leaves["b"]
    foreign = replace(held, leaves={"a": KeyPair(a.certificate, b.key), "b": KeyPair(b"", b"")})
    healed, notes = renew(foreign, HOLDERS, OWNER, Asked(), START)
    assert len(notes) == 2
    assert healed.authority == held.authority
    assert held.authority is not None
    broken = replace(held, authority=replace(held.authority, current=KeyPair(b"x", b"y")))
    fresh, notes = renew(broken, HOLDERS, OWNER, Asked(), START)
    assert [n.reason for n in notes] == ["AuthorityChanged", "CertificateIssued", "CertificateIssued"]
    assert fresh.authority is not None
    assert verified(trusted(fresh.authority), fresh.leaves["a"], A.hosts[0], START)


def test_a_request_renews_all_certificates_once() -> None:
    held, _ = renew(Certificates(), HOLDERS, OWNER, Asked(), START)
    first, notes = renew(held, HOLDERS, OWNER, Asked(certificates="1"), START)
    assert [n.reason for n in notes] == ["CertificateIssued"] * 2
    assert renew(first, HOLDERS, OWNER, Asked(certificates="1"), START)[1] == []
    assert renew(first, HOLDERS, OWNER, Asked(), START)[1] == [], "the request was withdrawn"
    assert len(renew(first, HOLDERS, OWNER, Asked(certificates="2"), START)[1]) == 2


def test_a_requested_authority_takes_over_in_three_steps() -> None:
    held, _ = renew(Certificates(), HOLDERS, OWNER, Asked(), START)
    asked = Asked(authority="leaked")
    added, notes = renew(held, HOLDERS, OWNER, asked, START)
    assert [n.reason for n in notes] == ["AuthorityAdded"]
    assert added.leaves == held.leaves
    assert added.authority is not None
    assert trusted(added.authority).count(b"BEGIN") == 2
    assert renew(added, HOLDERS, OWNER, asked, START + SPREAD - timedelta(seconds=1))[1] == []
    switched, notes = renew(added, HOLDERS, OWNER, asked, START + SPREAD)
    assert [n.reason for n in notes] == ["AuthorityChanged", "CertificateIssued", "CertificateIssued"]
    assert switched.authority is not None
    assert trusted(switched.authority).count(b"BEGIN") == 2
    dropped, notes = renew(switched, HOLDERS, OWNER, asked, START + 2 * SPREAD)
    assert [n.reason for n in notes] == ["AuthorityDropped"]
    assert dropped.authority is not None
    assert trusted(dropped.authority) == dropped.authority.current.certificate
    assert not verified(trusted(dropped.authority), held.leaves["a"], A.hosts[0], START + 2 * SPREAD)
    assert renew(dropped, HOLDERS, OWNER, asked, START + 3 * SPREAD)[1] == []


def test_steps_by_the_clock() -> None:
    facts = x509.CertificateInfo(START, START + AUTHORITY_LIFETIME, frozenset(), "1", "")
    state = AuthorityState(facts)
    assert authority_step(AuthorityState(None), "", START) is Step.FIRST
    assert authority_step(state, "", START) is Step.NONE
    assert authority_step(state, "", START + AUTHORITY_LIFETIME * 2 / 3) is Step.ADD
    assert authority_step(state, "", START + AUTHORITY_LIFETIME) is Step.FIRST
    pending = replace(state, following=facts, switch_at=START + OVERLAP)
    assert authority_step(pending, "again", START) is Step.NONE, "one replacement at a time"
    assert authority_step(pending, "", START + OVERLAP) is Step.SWITCH
    former = replace(state, former=facts, drop_at=START + OVERLAP)
    assert authority_step(former, "again", START) is Step.NONE
    assert authority_step(former, "", START + OVERLAP) is Step.DROP


def test_a_certificate_from_the_future_is_made_again() -> None:
    """The clock was wrong when it was made. Others refuse it as not valid yet, and it would be renewed too late."""
    leaf = x509.CertificateInfo(START, START + LEAF_LIFETIME, frozenset(), "1", "s")
    assert leaf_reason(leaf, frozenset(), "s", "", "", START - timedelta(days=365)) == "it was made in the future"
    assert leaf_reason(leaf, frozenset(), "s", "", "", START - timedelta(hours=1)) == "it was made in the future"
    assert leaf_reason(leaf, frozenset(), "s", "", "", START - timedelta(minutes=5)) == "", "clocks differ a little"


@pytest.mark.parametrize("seed", range(6))
def test_every_member_trusts_every_other_one_at_all_times(seed: int) -> None:
    """Twelve years with requests, gaps of the operator and other names. Secrets reach a member late by up to SPREAD, so
    each certificate of that span must be good for the authorities of that span.
    """
    dice = random.Random(seed)
    now, held, asked, holders = START, Certificates(), Asked(), dict(HOLDERS)
    spans: deque[tuple[datetime, bytes, dict[str, KeyPair]]] = deque()
    changes = 0
    while now < START + timedelta(days=12 * 365):
        kind = dice.random()
        if kind < 0.02:
            asked = replace(asked, authority=f"{now}")
        elif kind < 0.04:
            asked = replace(asked, certificates=f"{now}")
        elif kind < 0.06:
            holders["a"] = replace(A, hosts=(*A.hosts, f"h{dice.randrange(3)}.example.com"))
        held, notes = renew(held, holders, OWNER, asked, now)
        changes += sum(n.reason == "AuthorityChanged" for n in notes)
        assert held.authority is not None
        spans.append((now, trusted(held.authority), dict(held.leaves)))
        while len(spans) > 1 and spans[1][0] <= now - SPREAD:
            spans.popleft()
        for _, bundle, _ in spans:
            for _, _, leaves in spans:
                for holder, leaf in leaves.items():
                    assert verified(bundle, leaf, HOLDERS[holder].hosts[0], now), (now, holder)
        # The next look: at the time that is due, a little later, or after days without an operator.
        due = next_look(held)
        pause = dice.choice(
            [timedelta(seconds=30), timedelta(minutes=2), SPREAD, timedelta(days=7), timedelta(days=25)]
        )
        now = max(now + timedelta(seconds=1), min(now + pause, due)) if due and dice.random() < 0.9 else now + pause
    assert changes > 3
