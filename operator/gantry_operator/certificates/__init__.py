"""The certificate authority of one cluster: what to issue, when to renew, and the certificates themselves.

`schedule` decides (pure), `x509` makes and reads certificates, `renewal` connects the two. The platforms store the
result: as Secrets, or as files.
"""

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
