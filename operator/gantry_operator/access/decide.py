"""The next access table, from the users, their Secrets and the changes that mqadmin made at members."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gantry_operator.access import changes
from gantry_operator.access.keys import KeyPlan, expires_at, next_keys, valid_keys
from gantry_operator.access.state import MAX_VERSION, AccessState, Keys
from gantry_operator.access.wish import ACCESS_KEY, ADMIN, ADMIN_NAME, SECRET_KEY, Wish
from gantry_operator.api import Authentication, Security

MAX_USERS = 4096
"""Users of one cluster, those of mqadmin included."""
NEW_KEY_BYTES = 24


@dataclass(frozen=True, slots=True)
class Observed:
    """What the decision depends on, besides the state and the time."""

    cluster: str
    mode: Authentication
    security: Security
    wishes: Sequence[Wish]
    """With the cluster's super user."""
    secrets: Mapping[str, Mapping[str, str]]
    """The content of each Secret that exists, by its name."""
    changes: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    """By member: what mqadmin changed there."""
    member_version: int = 0
    """The highest version of a table that a member holds."""


@dataclass(frozen=True, slots=True)
class UserResult:
    """The outcome for one BrokerUser."""

    accepted: bool
    """The table contains the user."""
    reason: str
    message: str
    secret: str
    keys: int = 0
    old_key_expires: float | None = None
    """Unix time."""


@dataclass(frozen=True, slots=True)
class Decision:
    """`state` must be kept durably before the members get `table`, and `writes` come last."""

    state: AccessState
    table: dict[str, Any]
    writes: Mapping[str, Mapping[str, str]]
    """Secrets to write, by name."""
    results: Mapping[str, UserResult]
    """By name of the BrokerUser."""
    notes: Sequence[tuple[str, str, str, str]] = ()
    """Events: kind, reason, message, name of the BrokerUser."""
    next_at: float | None = None
    """Unix time of the next change by time alone."""


def new_secret_key() -> str:
    return secrets.token_urlsafe(NEW_KEY_BYTES)


def decide(state: AccessState, seen: Observed, now: float, new_key: Callable[[], str] = new_secret_key) -> Decision:
    """Return the next state and table. With an unchanged input it returns the same state again."""
    results: dict[str, UserResult] = {}
    keys: dict[str, Keys] = {}
    writes: dict[str, Mapping[str, str]] = {}
    notes: list[tuple[str, str, str, str]] = []
    users: list[dict[str, Any]] = []
    ends: list[float] = []
    owners: dict[str, str] = {}
    for wish in sorted(seen.wishes, key=lambda w: _precedence(w, state)):
        first = owners.setdefault(wish.access_key, wish.name)
        known = state.users.get(wish.name)
        if first != wish.name or len(users) >= MAX_USERS:
            results[wish.name] = UserResult(
                False, *(_taken(seen.cluster, wish, first) if first != wish.name else _too_many()), wish.secret
            )
            continue
        plan = next_keys(known, wish, _key_in(seen.secrets, wish), now, new_key)
        if plan.keys is None:
            results[wish.name] = UserResult(False, "SecretNotUsable", plan.problem, wish.secret)
            continue
        keys[wish.name] = plan.keys
        if plan.changed:
            notes.append(("Normal", "KeyRotated", _rotated(wish, plan.keys), wish.name))
        if plan.write or (wish.own_secret and _names_another(seen.secrets, wish)):
            writes[wish.secret] = {ACCESS_KEY: wish.access_key, SECRET_KEY: plan.keys.current}
        valid = valid_keys(plan.keys, wish.overlap_s, now)
        end = expires_at(plan.keys, wish.overlap_s) if len(valid) == 2 else None
        if end is not None:
            ends.append(end)
        user = _user(wish, valid)
        why = changes.refused(user)
        if why:
            results[wish.name] = UserResult(False, "InvalidSpec", why, wish.secret)
            continue
        users.append(user)
        results[wish.name] = _accepted(wish, plan, len(valid), end)
    made, merged, told = changes.merge(state.made, state.merged, seen.changes, set(owners))
    notes += [("Warning", "ChangeNotMerged", text, "") for text in told]
    users.sort(key=lambda u: str(u["name"]))  # So that the order in which users came changes no table.
    users += made[: max(0, MAX_USERS - len(users))]
    body = {
        "mode": seen.mode,
        "users": users,
        "topicQuotas": [q.model_dump(mode="json") for q in seen.security.topicQuotas],
        "merged": merged,
    }
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    version = state.version
    if digest != state.digest or seen.member_version > version:
        version = min(MAX_VERSION, max(version, seen.member_version) + 1)
    following = AccessState(version=version, digest=digest, users=keys, made=made, merged=merged)
    return Decision(following, {"version": version, **body}, writes, results, notes, min(ends, default=None))


def _precedence(wish: Wish, state: AccessState) -> tuple[bool, bool, str, str]:
    """Of two users with one AccessKey the first keeps it: the super user, the one that had it, the older one."""
    known = state.users.get(wish.name)
    had = known is not None and known.access_key == wish.access_key
    return wish.name != ADMIN_NAME, not had, wish.created, wish.name


def _taken(cluster: str, wish: Wish, first: str) -> tuple[str, str]:
    if first == ADMIN_NAME:
        return "AccessKeyTaken", f"accessKey {ADMIN} is the super user's of {cluster}: write another accessKey"
    return "AccessKeyTaken", f"accessKey {wish.access_key} belongs to BrokerUser {first}: write another accessKey"


def _too_many() -> tuple[str, str]:
    return "TooManyUsers", f"the cluster has {MAX_USERS} users: delete another one first"


def _key_in(secrets: Mapping[str, Mapping[str, str]], wish: Wish) -> str | None:
    value = secrets.get(wish.secret, {}).get(wish.secret_key)
    return None if value is None else value.rstrip("\r\n")


def _names_another(secrets: Mapping[str, Mapping[str, str]], wish: Wish) -> bool:
    found = secrets.get(wish.secret)
    return found is not None and found.get(ACCESS_KEY) != wish.access_key


def _rotated(wish: Wish, keys: Keys) -> str:
    return (
        f"accessKey {wish.access_key} has a new secret key in Secret {wish.secret}; the former one stays valid for "
        f"{wish.overlap_s:g} s"
    )


def _accepted(wish: Wish, plan: KeyPlan, valid: int, end: float | None) -> UserResult:
    if plan.problem:
        # The members keep the last key: a Secret that disappears for a moment must not stop clients.
        return UserResult(True, "SecretNotUsable", f"{plan.problem}; the last key stays valid", wish.secret, valid, end)
    message = plan.waits or ("the user is disabled: its requests are refused" if not wish.enabled else "")
    return UserResult(True, "Accepted", message, wish.secret, valid, end)


def _user(wish: Wish, keys: Sequence[str]) -> dict[str, Any]:
    """The user in the form of the table."""
    quotas = wish.quotas
    return {
        "name": wish.access_key,
        "keys": list(keys),
        "super": wish.super_user,
        "enabled": wish.enabled,
        "bytesPerSecond": quotas.get("bytesPerSecond"),
        "messagesPerSecond": quotas.get("messagesPerSecond"),
        "connections": quotas.get("connections"),
        "rules": [dict(r) for r in wish.rules],
    }
