"""The end of a certificate's validity, beside what `cryptography` reads."""

from __future__ import annotations

import base64
import random
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from gantry_broker.remoting.certificate_end import not_after
from gantry_operator.certificates.x509 import make_authority

BEGUN = datetime(1999, 12, 31, 23, 59, 59, tzinfo=UTC)
ENDS = (
    datetime(2000, 1, 1, tzinfo=UTC),
    datetime(2026, 2, 28, 1, 2, 3, tzinfo=UTC),
    datetime(2049, 12, 31, 23, 59, 59, tzinfo=UTC),
    datetime(2050, 1, 1, tzinfo=UTC),
    datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC),
)


def made(end: datetime) -> bytes:
    return make_authority("orders", "shop", BEGUN, end - BEGUN).certificate


def pem(der: bytes) -> bytes:
    return b"-----BEGIN CERTIFICATE-----\n" + base64.encodebytes(der) + b"-----END CERTIFICATE-----\n"


@pytest.mark.parametrize("end", ENDS)
def test_the_end_is_read_in_both_forms_of_a_time(end: datetime) -> None:
    assert not_after(made(end)) == end == x509.load_pem_x509_certificate(made(end)).not_valid_after_utc


def test_an_end_before_1950_reads_as_of_the_last_century() -> None:
    der = base64.b64decode(b"".join(made(ENDS[0]).splitlines()[1:-1]))
    old = der.replace(b"000101000000Z", b"500101000000Z")
    assert old != der
    assert not_after(pem(old)) == datetime(1950, 1, 1, tzinfo=UTC)


def test_the_first_certificate_of_a_file_counts() -> None:
    key = b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"
    text = b"Subject: orders\n" + key + made(ENDS[1]).replace(b"\n", b"\r\n") + made(ENDS[2])
    assert not_after(text) == ENDS[1]
    assert not_after(made(ENDS[1]).replace(b" CERTIFICATE", b" X509 CERTIFICATE")) == ENDS[1]


@pytest.mark.parametrize(
    "text", [b"", b"-----BEGIN CERTIFICATE-----\n", pem(b""), pem(b"\x30"), pem(b"\x30\xff\x01"), pem(b"\x31\x00"),
             b"-----BEGIN CERTIFICATE-----\n!!!!\n-----END CERTIFICATE-----\n"]
)  # fmt: skip
def test_what_is_no_certificate_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"certificate|base64"):
        not_after(text)


def test_changed_bytes_read_as_an_end_or_are_refused() -> None:
    """What `cryptography` takes has the same end here."""
    rng = random.Random(7)
    whole = base64.b64decode(b"".join(made(BEGUN + timedelta(days=9_000)).splitlines()[1:-1]))
    same = refused = 0
    for _ in range(5_000):
        changed = bytearray(whole)
        for _ in range(rng.choice((1, 1, 3))):
            changed[rng.randrange(min(len(whole), 220))] = rng.randrange(256)
        if rng.random() < 0.1:
            del changed[rng.randrange(len(changed)) :]
        try:
            found = not_after(pem(bytes(changed)))
        except ValueError:
            refused += 1
            continue
        try:
            expected = x509.load_der_x509_certificate(bytes(changed)).not_valid_after_utc
        except (ValueError, x509.InvalidVersion):
            continue
        assert found == expected
        same += 1
    assert min(same, refused) > 100, (same, refused)
