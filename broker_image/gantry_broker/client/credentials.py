"""Who a client is: its access key and secret key, with which it signs each request."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from gantry_broker.access.signature import ACCESS_KEY, SECURITY_TOKEN, SIGNATURE, sign
from gantry_broker.protocol.frame import Frame


class Signer(Protocol):
    """Signs requests."""

    def sign(self, frame: Frame) -> None:
        """Add the fields of a signed request, or replace those of an earlier attempt."""
        ...


@dataclass(frozen=True, slots=True)
class Credentials:
    """The keys of one user, as RocketMQ's `SessionCredentials`. Neither the secret key nor the token is ever shown."""

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not self.access_key or not self.secret_key:
            raise ValueError("credentials need an access key and a secret key; one of them is empty")

    def sign(self, frame: Frame) -> None:
        """Add the fields of a signed request, or replace those of an earlier attempt."""
        ext = frame.ext
        ext[ACCESS_KEY] = self.access_key
        if self.security_token is not None:
            ext[SECURITY_TOKEN] = self.security_token
        ext[SIGNATURE] = sign(ext, frame.body, self.secret_key)
