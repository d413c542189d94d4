"""The certificate authority of one cluster: what to issue, when to renew, and the certificates themselves.

`schedule` decides (pure), `x509` makes and reads certificates, `renewal` connects the two. The platforms store the
result: as Secrets, or as files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantry_broker.lazily import lazily

if TYPE_CHECKING:
    from gantry_operator.certificates.renewal import (
        Asked,
        Authority,
        Certificates,
        Note,
        due_s,
        expiry_of,
        is_due,
        next_look,
        renew,
        renewal_of,
        trusted,
    )
    from gantry_operator.certificates.schedule import EXPIRING, RENEW_AUTHORITY, RENEW_CERTIFICATES
    from gantry_operator.certificates.x509 import KeyPair, Names, UnusableCertificate

__all__ = [
    "EXPIRING",
    "RENEW_AUTHORITY",
    "RENEW_CERTIFICATES",
    "Asked",
    "Authority",
    "Certificates",
    "KeyPair",
    "Names",
    "Note",
    "UnusableCertificate",
    "due_s",
    "expiry_of",
    "is_due",
    "next_look",
    "renew",
    "renewal_of",
    "trusted",
]

__getattr__ = lazily(
    __name__,
    {
        "gantry_operator.certificates.renewal": (
            "Asked Authority Certificates Note due_s expiry_of is_due next_look renew renewal_of trusted"
        ),
        "gantry_operator.certificates.schedule": "EXPIRING RENEW_AUTHORITY RENEW_CERTIFICATES",
        "gantry_operator.certificates.x509": "KeyPair Names UnusableCertificate",
    },
)
