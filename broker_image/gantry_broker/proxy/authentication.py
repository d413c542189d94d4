"""Who a client of the proxy is, and what it may do: the same users and rules as for remoting.

A client signs the field `x-mq-date-time` with its secret key: HMAC-SHA1, in hexadecimal digits of either case, as
`authorization: MQv2-HMAC-SHA1 Credential=KEY, SignedHeaders=x-mq-date-time, Signature=...`.
"""

from __future__ import annotations

import hmac
import logging
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from gantry_broker.access.decide import DISABLED, PERMISSIVE, Policy, User
from gantry_broker.access.guesses import Guesses
from gantry_broker.access.quota import Meter
from gantry_broker.access.table import read_table
from gantry_broker.protocol.grpc_contract import Code
from gantry_broker.protocol.limits import MAX_ACCESS
from gantry_broker.proxy.answers import Refusal
from gantry_broker.proxy.rpc import Call
from gantry_broker.watching import WatchedFiles

log = logging.getLogger(__name__)

MAX_DECISIONS: Final = 50_000
MAX_AUTHORIZATION: Final = 1_024
WRONG: Final = "the access key is unknown or disabled, or the signature is wrong"
_FORM: Final = re.compile(
    r"^MQv2-HMAC-SHA1 +Credential=([^,/ ]{1,128})[^,]{0,200}, *SignedHeaders=([^,]{1,200}), *"
    r"Signature=([0-9A-Fa-f]{40})$"
)
_DATE: Final = "x-mq-date-time"


class Need(NamedTuple):
    """One of the actions with the resource is needed."""

    kind: str
    name: str
    actions: tuple[str, ...]


class TooManyGuesses(Refusal):
    """The signature is wrong, as too many others of this address. The answer has to wait for `guesses.HOLD_S`."""


class Caller:
    """Who made a call."""

    __slots__ = ("call", "client_id", "policy", "user")

    def __init__(self, call: Call, client_id: str, user: User | None, policy: Policy | None = None) -> None:
        """`policy`: what was in force when the signature was checked."""
        self.call = call
        self.client_id = client_id
        self.user = user
        self.policy = policy

    @property
    def user_name(self) -> str:
        """Empty: anybody."""
        return "" if self.user is None else self.user.name


class Authentication:
    """The policy in force, and what was decided by it."""

    def __init__(self, mode: str) -> None:
        """`mode` counts until there is a policy."""
        self._default = mode
        self.policy: Policy | None = None
        self.refused: dict[str, int] = {}
        """Refused requests by reason."""
        self.guesses = Guesses()
        self.on_changed: list[Callable[[], object]] = []
        """Called by `changed`."""
        self._decisions: dict[tuple[str, str, Need], bool] = {}
        self._meters: dict[str, Meter] = {}

    @property
    def mode(self) -> str:
        return self._default if self.policy is None else self.policy.mode

    def set_policy(self, policy: Policy) -> None:
        self.policy = policy
        self._decisions.clear()
        self._meters.clear()

    def changed(self) -> None:
        """Another policy is in force. For the event loop's thread."""
        for call in self.on_changed:
            call()

    def user(self, metadata: Mapping[str, str], peer: str) -> User | None:
        """Return who a call is from; None: anybody. Raises Refusal."""
        mode = self.mode
        if mode == DISABLED:
            return None
        given = metadata.get("authorization")
        if given is None:
            if mode == PERMISSIVE:
                return None
            raise self._refuse("anonymous", Code.UNAUTHORIZED, "the request is not signed")
        policy = self.policy
        if policy is None:
            raise self._refuse("no-table", Code.TOO_MANY_REQUESTS, "the users of the cluster are not known yet")
        form = _FORM.match(given) if len(given) <= MAX_AUTHORIZATION else None
        if form is None or form[2].strip().lower() != _DATE:
            raise self._refuse(
                "malformed",
                Code.UNAUTHORIZED,
                "authorization is not 'MQv2-HMAC-SHA1 Credential=KEY, SignedHeaders=x-mq-date-time, Signature=HEX'",
            )
        user = policy.users.get(form[1])
        keys = user.keys if user is not None and user.enabled else ()
        text = metadata.get(_DATE, "").encode("latin-1", "replace")
        signature = form[3].lower()
        valid = False
        for key in keys or (b"\0" * 32,):
            valid |= hmac.compare_digest(hmac.digest(key, text, "sha1").hex(), signature)
        if not valid or not keys:
            refusal = self._refuse("signature", Code.UNAUTHORIZED, WRONG)
            if self.guesses.too_many(peer, time.monotonic()):
                raise TooManyGuesses(refusal.code, refusal.text)
            raise refusal
        return user

    def check(self, user: User | None, peer: str, needs: tuple[Need, ...]) -> None:
        """Raise Refusal when the user lacks one of the rights."""
        if user is None or user.super:
            return
        for need in needs:
            place = (user.name, peer, need)
            allowed = self._decisions.get(place)
            if allowed is None:
                if len(self._decisions) >= MAX_DECISIONS:
                    self._decisions.clear()
                allowed = self._decisions[place] = user.may(need.kind, need.name, need.actions, peer)
            if not allowed:
                raise self._refuse(
                    "permission",
                    Code.FORBIDDEN,
                    f"user {user.name} has no permission ({' or '.join(need.actions)}) for {need.kind} {need.name}",
                )

    def take(self, user: User | None, size: int, messages: int, now: float) -> None:
        """Count what a user sends. Raises Refusal when its quota is used up."""
        if user is None or not user.quota:
            return
        meter = self._meters.get(user.name)
        if meter is None:
            quota = user.quota
            meter = self._meters[user.name] = Meter(quota.bytes_per_second, quota.messages_per_second, now)
        if not meter.has_some(now):
            raise self._refuse("user-quota", Code.TOO_MANY_REQUESTS, f"the quota of user {user.name} is used up")
        meter.take(size, messages)

    def _refuse(self, reason: str, code: Code, text: str) -> Refusal:
        self.refused[reason] = self.refused.get(reason, 0) + 1
        return Refusal(code, text)


class TableFile(WatchedFiles):
    """Reads the access table again when its file changes; keeps the former table while the new one cannot be read."""

    def __init__(self, path: Path, authentication: Authentication) -> None:
        self._path = path
        self._authentication = authentication
        self._stamp: tuple[int, int, int] | None = None
        self._replaced = False

    def read(self) -> None:
        """Blocks for a read of the file."""
        try:
            stat = self._path.stat()
            stamp = stat.st_ino, stat.st_size, stat.st_mtime_ns
            if stamp == self._stamp:
                return
            if stat.st_size > MAX_ACCESS:
                raise ValueError(f"it has {stat.st_size} bytes, the limit is {MAX_ACCESS}")
            table = read_table(self._path.read_bytes())
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            log.error("%s: %s; the former users stay in force", self._path, error)
            return
        self._stamp = stamp
        self._authentication.set_policy(Policy.of(table.model_dump()))
        log.info("%s: users of version %d are in force", self._path, table.version)

    def look(self) -> None:
        before = self._authentication.policy
        self.read()
        self._replaced = self._authentication.policy is not before

    def looked(self) -> None:
        if self._replaced:
            self._authentication.changed()
