"""Makes and reads X.509 certificates: ECDSA with P-256, signed by an authority of one cluster."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cryptography import x509

BACKDATED = timedelta(minutes=10)
"""Validity begins this long before a certificate is made, because clocks differ."""
MAX_COMMON_NAME = 64


class UnusableCertificate(ValueError):
    """The PEM text is no certificate, or its key does not belong to it."""


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate and its private key, as PEM."""

    certificate: bytes
    key: bytes


@dataclass(frozen=True, slots=True)
class Names:
    """The subject of a certificate: host names, addresses and URIs."""

    common_name: str
    hosts: tuple[str, ...] = ()
    """DNS names (also `*.name`) and IP addresses."""
    uris: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CertificateInfo:
    """The facts of a certificate that decisions depend on."""

    made: datetime
    not_after: datetime
    names: frozenset[str]
    """Host names, addresses and URIs."""
    key_id: str
    """Identifies its own key, and so the authority if it is one."""
    signer: str
    """Identifies the key that signed it; empty: unknown."""


def names_of(names: Names) -> frozenset[str]:
    """Return the names in the form of `CertificateInfo.names`."""
    return frozenset(_canonical(h) for h in names.hosts) | frozenset(names.uris)


def _canonical(host: str) -> str:
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host.lower()


def make_authority(cluster: str, namespace: str, now: datetime, lifetime: timedelta) -> KeyPair:
    """Return a new authority. Each has its own subject, so that verifiers can distinguish a former one."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    subject = _subject(f"{cluster} {identifier.digest.hex()[:12]}", namespace)
    usage = x509.KeyUsage(
        digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    certificate = (
        _builder(subject, subject, key.public_key(), now, lifetime)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(identifier, critical=False)
        .sign(key, hashes.SHA256())
    )
    return _pair(certificate, key)


def sign(authority: KeyPair, names: Names, namespace: str, now: datetime, lifetime: timedelta) -> KeyPair:
    """Return a new key with a certificate for both ends of a connection. It never outlives its authority."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID

    issuer = _certificate(authority.certificate)
    issuer_key: Any = serialization.load_pem_private_key(authority.key, None)
    key = ec.generate_private_key(ec.SECP256R1())
    alternatives: list[x509.GeneralName] = [_general_name(h) for h in names.hosts]
    alternatives += [x509.UniformResourceIdentifier(u) for u in names.uris]
    usage = x509.KeyUsage(
        digital_signature=True, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=False, crl_sign=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    lifetime = min(lifetime, issuer.not_valid_after_utc - now)
    purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    subject = _subject(names.common_name, namespace)
    certificate = (
        _builder(subject, issuer.subject, key.public_key(), now, lifetime)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
        .sign(issuer_key, hashes.SHA256())
    )
    return _pair(certificate, key)


def _builder(
    subject: x509.Name, issuer: x509.Name, public_key: Any, now: datetime, lifetime: timedelta
) -> x509.CertificateBuilder:
    from cryptography import x509

    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + lifetime)
    )


def _subject(common_name: str, organization: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    parts = [x509.NameAttribute(NameOID.COMMON_NAME, common_name[:MAX_COMMON_NAME])]
    if organization:
        parts.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization[:MAX_COMMON_NAME]))
    return x509.Name(parts)


def _general_name(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pair(certificate: x509.Certificate, key: Any) -> KeyPair:
    from cryptography.hazmat.primitives import serialization

    return KeyPair(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )


def _certificate(pem: bytes) -> x509.Certificate:
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificates(pem)[0]
    except ValueError as error:
        raise UnusableCertificate(f"no certificate can be read: {error}") from None


def read(pair: KeyPair) -> CertificateInfo:
    """Return the facts of a certificate with its key. Raises UnusableCertificate."""
    facts = read_certificate(pair.certificate)
    _check_key(pair)
    return facts


@lru_cache(maxsize=256)
def _check_key(pair: KeyPair) -> None:
    """Compare a certificate with its key. Raises UnusableCertificate unless the key belongs to the certificate."""
    from cryptography.hazmat.primitives import serialization

    try:
        key: Any = serialization.load_pem_private_key(pair.key, None)
    except (ValueError, TypeError) as error:
        raise UnusableCertificate(f"the key cannot be read: {error}") from None
    certificate = _certificate(pair.certificate)
    raw = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    if key.public_key().public_bytes(*raw) != certificate.public_key().public_bytes(*raw):
        raise UnusableCertificate("the key does not belong to the certificate")


def read_certificate(pem: bytes) -> CertificateInfo:
    """Return the facts of the first certificate. Raises UnusableCertificate."""
    from cryptography import x509

    certificate = _certificate(pem)
    try:
        extensions = certificate.extensions
    except ValueError as error:
        raise UnusableCertificate(f"the certificate's extensions cannot be read: {error}") from None
    names: set[str] = set()
    signer = ""
    for extension in extensions:
        value = extension.value
        if isinstance(value, x509.SubjectAlternativeName):
            names |= {n.lower() for n in value.get_values_for_type(x509.DNSName)}
            names |= {str(n) for n in value.get_values_for_type(x509.IPAddress)}
            names |= set(value.get_values_for_type(x509.UniformResourceIdentifier))
        elif isinstance(value, x509.AuthorityKeyIdentifier):
            signer = "" if value.key_identifier is None else value.key_identifier.hex()
    return CertificateInfo(
        made=certificate.not_valid_before_utc + BACKDATED,
        not_after=certificate.not_valid_after_utc,
        names=frozenset(names),
        key_id=x509.SubjectKeyIdentifier.from_public_key(certificate.public_key()).digest.hex(),
        signer=signer,
    )
