"""The check of each request before anything else is done for it, for brokers and NameServers.

A `Gate` holds the policy in force; a `Caller` is what it remembers of one connection: the users that signed there and
what was decided for them. A new policy is another object, so everything remembered under the old one is void at once.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Final, NamedTuple

from gantry_core import SignatureKeys

from gantry_broker.access.audit import AuditLog
from gantry_broker.access.decide import DISABLED, PERMISSIVE, Policy, Quota, User
from gantry_broker.access.guesses import UNSIGNED_A_SECOND, Guesses
from gantry_broker.access.quota import Meter
from gantry_broker.access.signature import ACCESS_KEY, SIGNATURE, Check, is_valid, repeated
from gantry_broker.protocol.bad_field import BadField
from gantry_broker.protocol.codes import RequestCode, ResponseCode
from gantry_broker.protocol.fields import BodyError
from gantry_broker.protocol.frame import Frame, Sends
from gantry_broker.protocol.message import count_batch
from gantry_broker.protocol.requests import ADMINISTRATIVE, NAMED, NAMES, PLACES, RIGHTS, SENDS, USER_CODES
from gantry_broker.protocol.rights import MAX_NAME, Need, Records

MAX_USERS: Final = 32
"""Users that one connection remembers."""
MAX_DECISIONS: Final = 4_096
"""Decisions that one user of a connection remembers."""
MAX_METERS: Final = 4_096

REASONS: Final = (
    "no-table",  # authentication is on, and no table has come yet
    "anonymous",  # not signed
    "signature",  # unknown or disabled user, or another key
    "permission",  # no rule allows it
    "malformed",  # what the request is about cannot be read
    "connections",  # the user has too many connections at this member
    "user-quota",
    "topic-quota",
)
"""Why requests are refused; the label of `gantry_access_refused_total`."""

WRONG: Final = "the access key is unknown or disabled, or the signature is wrong"
"""One text for all of it: it does not reveal which users exist."""


class Refused(NamedTuple):
    """The answer to a request that is refused, and the reason for metrics."""

    code: int
    remark: str
    reason: str
    resource: str = ""
    ends: bool = False
    """The connection has to end: its address has sent too many requests without a signature or with a wrong one."""


class _SignedUser:
    """A user that signed a request on a connection."""

    __slots__ = ("_grants", "_keys", "decisions", "granted", "repeated", "user")

    def __init__(self, user: User) -> None:
        self.user = user
        self.repeated: dict[int, Check] = {}
        """By code: the check of requests with the header of the last one. Codes of `NAMED` alone; no quota counts."""
        self.decisions: dict[Need, bool] = {}
        self.granted: dict[int, set[Hashable]] = {}
        """By code: the names that `NAMES` reads of requests that were allowed."""
        self._grants = 0
        self._keys: SignatureKeys | None = None

    @property
    def keys(self) -> SignatureKeys:
        """The keys of the user. The first use prepares them."""
        if self._keys is None:
            self._keys = SignatureKeys(self.user.keys)
        return self._keys

    def grant(self, code: int, names: Hashable) -> None:
        """Remembers names that were allowed for this code."""
        if self._grants >= MAX_DECISIONS:
            self._grants = 0
            for of_code in self.granted.values():
                of_code.clear()
        self._grants += 1
        self.granted.setdefault(code, set()).add(names)

    def repeat(self, frame: Frame) -> None:
        """Remembers how a request was signed that was allowed."""
        code, user = frame.code, self.user
        names = NAMED[code]
        if not all(name in frame.ext for name in names):
            return
        if user.super:
            check = repeated(frame, user.name, user.keys, (ACCESS_KEY,), (user.name,))
        else:
            check = repeated(frame, user.name, user.keys, names, self.granted.setdefault(code, set()))
        if check is not None:
            self.repeated[code] = check


class Caller:
    """One connection. `address`: the peer's IP address."""

    __slots__ = ("_again", "_policy", "_signed", "address", "ends")

    def __init__(self, address: str) -> None:
        self.address = address
        self.ends = False
        """No request of it counts any more, and it closes in a moment."""
        self._policy: Policy | None = None
        self._signed: dict[str, _SignedUser] = {}
        self._again: dict[str, dict[int, Check]] = {}

    @property
    def user(self) -> str | None:
        """The first user that signed here under the policy in force; None: nobody has signed."""
        return next(iter(self._signed), None)

    def signed_users(self, policy: Policy) -> dict[str, _SignedUser]:
        """Return the users that signed here under this policy."""
        if self._policy is not policy:
            self._policy = policy
            self._signed = {}
            self._again = {}
        return self._signed

    def again(self, policy: Policy | None) -> dict[str, dict[int, Check]]:
        """Return, by access key and code, the checks of requests like those that were allowed here under this policy.

        Where none of them passes, `Gate.check` decides.
        """
        if policy is not None:
            self.signed_users(policy)
        return self._again


class Gate:
    """`cluster`: the name of the resource Cluster. `default_mode` counts until there is a policy."""

    def __init__(self, cluster: str, default_mode: str, records: Records, audit: AuditLog | None = None) -> None:
        self.cluster = cluster
        self.audit = audit or AuditLog()
        self._default_mode = default_mode
        self._records = records
        self.policy: Policy | None = None
        self.refused: dict[str, int] = {}
        """Refused requests by reason."""
        self.dropped = 0
        """Those of them that were one-way, which have no answer."""
        self.anonymous = 0
        """Requests without a signature that passed."""
        self.guesses = Guesses()
        self.unsigned = Guesses(UNSIGNED_A_SECOND)
        """Refused requests without a signature."""
        self._connections: dict[str, set[Caller]] = {}
        self._of_users: dict[str, Meter] = {}
        self._of_topics: dict[str, Meter] = {}
        self.active = default_mode != DISABLED
        """Whether requests are looked at: authentication or a quota is on."""

    @property
    def mode(self) -> str:
        return self._default_mode if self.policy is None else self.policy.mode

    def set_policy(self, policy: Policy) -> None:
        """From now on this counts. Quotas that did not change go on where they are."""
        before = self.policy
        self.policy = policy
        self._connections.clear()
        if before is None or before.topic_quotas != policy.topic_quotas:
            self._of_topics.clear()
        for name in list(self._of_users):
            old, new = before.users.get(name) if before else None, policy.users.get(name)
            if old is None or new is None or old.quota != new.quota:
                del self._of_users[name]
        self.active = policy.mode != DISABLED or bool(policy.topic_quotas)

    # ---- one request

    def check(self, caller: Caller, frame: Frame, now: float, time_ms: int) -> Refused | None:
        """Return the refusal, or None. `now`: seconds of a monotonic clock; `time_ms`: Unix, for the audit log."""
        refused = self._check(caller, frame, now)
        if refused is not None:
            self.refused[refused.reason] = self.refused.get(refused.reason, 0) + 1
            if frame.is_oneway:
                self.dropped += 1
        elif frame.code not in ADMINISTRATIVE or self.mode == DISABLED:
            return None
        self.audit.write(
            now,
            time_ms,
            reason="" if refused is None else refused.reason,
            user=frame.ext.get(ACCESS_KEY),
            address=caller.address,
            code=frame.code,
            resource=_named(frame, self._records) if refused is None else refused.resource,
        )
        return refused

    def takes_sends(self) -> bool:
        """Whether plain sends of one read may pass together: `passes` decides then."""
        policy = self.policy
        return policy is not None and policy.mode != DISABLED and not policy.topic_quotas

    def passes(self, caller: Caller, sends: Sends) -> bool:
        """Whether plain sends are all allowed. False: `check` has to look at each of them, and nothing has changed.

        They are when one user without a quota signed all of them, who sent to these topics on this connection before.
        """
        policy = self.policy
        if policy is None or not self.takes_sends():
            return False
        if sends.user is None:
            return policy.mode == PERMISSIVE
        signed = caller.signed_users(policy).get(sends.user)
        if signed is None or not signed.user.enabled or signed.user.quota is not None:
            return False
        granted = signed.granted.get(sends.code, ())
        if not signed.user.super and not all([topic[0] in granted for topic in sends.topics]):
            return False
        return signed.keys.signed(sends.signed)

    def _check(self, caller: Caller, frame: Frame, now: float) -> Refused | None:
        policy = self.policy
        mode = self._default_mode if policy is None else policy.mode
        if mode == DISABLED:
            return self._over_quota(None, frame, now)
        if frame.known_unsigned:
            return self._anonymous(caller, mode, frame, now)
        ext = frame.ext
        name = ext.get(ACCESS_KEY)
        if name is None:
            if SIGNATURE not in ext:
                return self._anonymous(caller, mode, frame, now)
            name = ""
        if policy is None:
            return _NO_TABLE
        signed_users = caller.signed_users(policy)
        signed = signed_users.get(name)
        user = policy.users.get(name) if signed is None else signed.user
        if not is_valid(ext, frame.body, user.keys if user is not None and user.enabled else ()) or user is None:
            return Refused(_NO_PERMISSION, WRONG, "signature", ends=self.guesses.too_many(caller.address, now))
        if signed is None:
            if not self._enter(caller, user):
                return Refused(
                    _BUSY, f"user {user.name} has {user.connections} connections, which is the limit", "connections"
                )
            if len(signed_users) >= MAX_USERS:
                self.closed(caller)
                signed_users.clear()
                caller.again(policy).clear()
                self._enter(caller, user)
            signed = signed_users[name] = _SignedUser(user)
            caller.again(policy)[name] = signed.repeated
        if not user.super:
            refused = self._without_right(caller, signed, frame)
            if refused is not None:
                return refused
        if user.quota is None and not policy.topic_quotas:
            if frame.code in NAMES and frame.code not in ADMINISTRATIVE:
                signed.repeat(frame)
            return None
        return self._over_quota(user, frame, now)

    def _anonymous(self, caller: Caller, mode: str, frame: Frame, now: float) -> Refused | None:
        if mode == PERMISSIVE and frame.code not in USER_CODES:
            self.anonymous += 1
            return self._over_quota(None, frame, now)
        if self.policy is None:
            return _NO_TABLE
        ends = self.unsigned.too_many(caller.address, now)
        return Refused(_NO_PERMISSION, "the request is not signed", "anonymous", ends=ends)

    def _without_right(self, caller: Caller, signed: _SignedUser, frame: Frame) -> Refused | None:
        names = NAMES.get(frame.code)
        named = None
        if names is not None:
            try:
                named = names(frame.ext)
            except KeyError:
                pass  # an absent name counts as an empty one
            else:
                if named in signed.granted.get(frame.code, ()):
                    return None
        right = RIGHTS.get(frame.code)
        if right is None:
            return Refused(
                _NO_PERMISSION, f"request {frame.code} is for super users, not for {signed.user.name}", "permission"
            )
        try:
            needs = right(frame, self._records)
        except (BodyError, BadField) as error:
            return Refused(int(ResponseCode.SYSTEM_ERROR), str(error), "malformed")
        decisions = signed.decisions
        for need in needs:
            if len(need.name) > MAX_NAME or (not need.name and frame.code in PLACES):
                return self._no_right(signed.user, need, frame)
            allowed = decisions.get(need)
            if allowed is None:
                if len(decisions) >= MAX_DECISIONS:
                    decisions.clear()
                name = self.cluster if need.kind == "Cluster" else need.name
                allowed = decisions[need] = signed.user.may(need.kind, name, need.actions, caller.address)
            if not allowed:
                return self._no_right(signed.user, need, frame)
        if named is not None:
            signed.grant(frame.code, named)
        return None

    def _no_right(self, user: User, need: Need, frame: Frame) -> Refused:
        """Return a remark. It names a resource only if the request did: the topic of a stored record is private."""
        name = self.cluster if need.kind == "Cluster" else need.name
        shown = name if need.kind == "Cluster" or name in frame.ext.values() else ""
        what = f"{need.kind} {shown[:255]}" if shown else "this"
        remark = f"user {user.name} has no permission ({' or '.join(need.actions)}) for {what}"
        return Refused(_NO_PERMISSION, remark, "permission", f"{need.kind}:{name}")

    # ---- connections

    def _enter(self, caller: Caller, user: User) -> bool:
        connections = self._connections.setdefault(user.name, set())
        if caller not in connections and user.connections is not None and len(connections) >= user.connections:
            return False
        connections.add(caller)
        return True

    def closed(self, caller: Caller) -> None:
        """Forget a connection that has ended."""
        policy = self.policy
        if policy is None:
            return
        for name in caller.signed_users(policy):
            connections = self._connections.get(name)
            if connections is not None:
                connections.discard(caller)
                if not connections:
                    del self._connections[name]

    # ---- what a broker asks of its clients

    def may_be_asked(self, caller: Caller | None, kind: str, name: str, actions: Iterable[str]) -> bool:
        """Whether the broker may send a client something about this resource: one of its users may do one of these."""
        policy = self.policy
        if self.mode == DISABLED:
            return True
        if policy is None:
            return False
        users = [signed.user for signed in caller.signed_users(policy).values()] if caller is not None else []
        if not users:
            return policy.mode == PERMISSIVE
        one_of = tuple(actions)
        return any(user.may(kind, name, one_of, caller.address) for user in users if caller is not None)

    # ---- quotas

    def _over_quota(self, user: User | None, frame: Frame, now: float) -> Refused | None:
        if frame.code not in SENDS:
            return None
        policy = self.policy
        of_user = self._meter(self._of_users, user.name, user.quota, now) if user is not None else None
        of_topic = None
        if policy is not None and policy.topic_quotas:
            topic = frame.ext.get(NAMED[frame.code][0], "")
            of_topic = self._meter(self._of_topics, topic, policy.topic_quotas.get(topic), now)
        if of_user is None and of_topic is None:
            return None
        if of_user is not None and not of_user.has_some(now):
            return Refused(_BUSY, f"{_FLOW}the quota of user {user.name if user else ''} is used up", "user-quota")
        if of_topic is not None and not of_topic.has_some(now):
            return Refused(_BUSY, f"{_FLOW}the quota of this topic is used up", "topic-quota")
        size, messages = len(frame.body), _count(frame)
        for meter in (of_user, of_topic):
            if meter is not None:
                meter.take(size, messages)
        return None

    @staticmethod
    def _meter(meters: dict[str, Meter], name: str, quota: Quota | None, now: float) -> Meter | None:
        if not quota:
            return None
        meter = meters.get(name)
        if meter is None:
            if len(meters) >= MAX_METERS:
                meters.clear()
            meter = meters[name] = Meter(quota.bytes_per_second, quota.messages_per_second, now)
        return meter


_NO_PERMISSION: Final = int(ResponseCode.NO_PERMISSION)
_BUSY: Final = int(ResponseCode.SYSTEM_BUSY)
_NO_TABLE: Final = Refused(_BUSY, "no access table yet: this process waits for the users of the cluster", "no-table")
_FLOW: Final = "[FLOW_CONTROL]broker busy, "
"""As remarks of RocketMQ's own flow control begin."""


def _count(frame: Frame) -> int:
    """Return the messages of a send: a batch has one after another, each with its length before it."""
    if frame.code != RequestCode.SEND_BATCH_MESSAGE and frame.ext.get("m", frame.ext.get("batch")) != "true":
        return 1
    return max(count_batch(frame.body), 1)


def _named(frame: Frame, records: Records) -> str:
    """Return the resources of an administrative request, for the audit log."""
    right = RIGHTS.get(frame.code)
    if right is None:
        return next(
            (f"User:{frame.ext[name]}" for name in ("username", "subject", "accessKey") if name in frame.ext), ""
        )
    try:
        needs = right(frame, records)
    except (BodyError, BadField):
        return ""
    return ",".join(f"{need.kind}:{need.name}" for need in needs[:10])
