"""The next access table, from the users, their Secrets and the changes that mqadmin made at members."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gantry_broker.access.table import MAX_ALL_RULES, MAX_USERS

from gantry_operator.access import changes
from gantry_operator.access.keys import KeyPlan, expires_at, next_keys, valid_keys
from gantry_operator.access.state import MAX_VERSION, AccessState, Keys
from gantry_operator.access.wanted import ACCESS_KEY, ADMIN, ADMIN_NAME, PROXY, PROXY_NAME, SECRET_KEY, WantedUser
from gantry_operator.api.security import Authentication, Security

NEW_KEY_BYTES = 24


@dataclass(frozen=True, slots=True)
class Observed:
    """What the decision depends on, besides the state and the time."""

    cluster: str
    mode: Authentication
    security: Security
    wanted: Sequence[WantedUser]
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
    for user in sorted(seen.wanted, key=lambda w: _precedence(w, state)):
        first = owners.setdefault(user.access_key, user.name)
        stored = state.users.get(user.name)
        refusal = _refusal(seen.cluster, user, first, users)
        if refusal is not None:
            results[user.name] = UserResult(False, refusal.reason, refusal.message, user.secret)
            continue
        plan = next_keys(stored, user, _key_in(seen.secrets, user), now, new_key)
        if plan.keys is None:
            results[user.name] = UserResult(False, "SecretNotUsable", plan.problem, user.secret)
            continue
        keys[user.name] = plan.keys
        if plan.changed:
            notes.append(("Normal", "KeyRotated", _rotated(user), user.name))
        if plan.write or (user.own_secret and _names_another(seen.secrets, user)):
            writes[user.secret] = {ACCESS_KEY: user.access_key, SECRET_KEY: plan.keys.current}
        valid = valid_keys(plan.keys, user.overlap_s, now)
        end = expires_at(plan.keys, user.overlap_s) if len(valid) == 2 else None
        if end is not None:
            ends.append(end)
        row = _user(user, valid)
        why = changes.refused(row)
        if why:
            results[user.name] = UserResult(False, "InvalidSpec", why, user.secret)
            continue
        users.append(row)
        results[user.name] = _accepted(user, plan, len(valid), end)
    made, merged, unmerged = changes.merge(state.made, state.merged, seen.changes, set(owners))
    notes += [("Warning", "ChangeNotMerged", text, "") for text in unmerged]
    users.sort(key=lambda u: str(u["name"]))  # So that the order in which users came changes no table.
    left_out = _add_fitting(users, made)
    if left_out:
        text = f"users of mqadmin are not in the table, since it has no room for them: {', '.join(left_out)[:500]}"
        notes.append(("Warning", "ChangeNotMerged", text, ""))
    body = {
        "mode": seen.mode,
        "users": users,
        "topicQuotas": [q.model_dump(mode="json") for q in seen.security.topicQuotas],
        "merged": merged,
    }
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    # A new state begins above every table of a former cluster of this name, which members may hold on their volumes:
    # two tables of one version must never differ.
    version = state.version or int(now * 1000)
    if digest != state.digest or seen.member_version > version:
        version = min(MAX_VERSION, max(version, seen.member_version) + 1)
    following = AccessState(version=version, digest=digest, users=keys, made=made, merged=merged)
    return Decision(following, {"version": version, **body}, writes, results, notes, min(ends, default=None))


def _add_fitting(users: list[dict[str, Any]], created: Sequence[dict[str, Any]]) -> list[str]:
    """Add the users of mqadmin that the table has room for; return the names of the others.

    Members refuse a larger table as a whole, and no later change would reach them.
    """
    left_out = []
    rules = sum(len(user["rules"]) for user in users)
    for user in created:
        if len(users) >= MAX_USERS or rules + len(user["rules"]) > MAX_ALL_RULES:
            left_out.append(str(user["name"]))
        else:
            users.append(user)
            rules += len(user["rules"])
    return left_out


def _precedence(user: WantedUser, state: AccessState) -> tuple[bool, bool, str, str]:
    """Of two users with one AccessKey the first keeps it: the cluster itself, the one that had it, the older one."""
    former = state.users.get(user.name)
    had = former is not None and former.access_key == user.access_key
    return user.name not in (ADMIN_NAME, PROXY_NAME), not had, user.created, user.name


class _Refusal(NamedTuple):
    reason: str
    message: str


def _refusal(cluster: str, user: WantedUser, first: str, users: Sequence[Mapping[str, Any]]) -> _Refusal | None:
    """Why the user is left out of the table. `first`: the owner of its AccessKey; `users`: those in the table."""
    if first != user.name and first == ADMIN_NAME:
        return _Refusal(
            "AccessKeyTaken", f"accessKey {ADMIN} is the super user's of {cluster}: write another accessKey"
        )
    if first != user.name and first == PROXY_NAME:
        return _Refusal("AccessKeyTaken", f"accessKey {PROXY} is that of {cluster}'s proxies: write another accessKey")
    if first != user.name:
        message = f"accessKey {user.access_key} belongs to BrokerUser {first}: write another accessKey"
        return _Refusal("AccessKeyTaken", message)
    if len(users) >= MAX_USERS:
        return _Refusal("TooManyUsers", f"the cluster has {MAX_USERS} users: delete another one first")
    if sum(len(u["rules"]) for u in users) + len(user.rules) > MAX_ALL_RULES:
        return _Refusal("TooManyRules", f"all users together have more than {MAX_ALL_RULES} rules: delete some first")
    return None


def _key_in(secrets: Mapping[str, Mapping[str, str]], user: WantedUser) -> str | None:
    value = secrets.get(user.secret, {}).get(user.secret_key)
    return None if value is None else value.rstrip("\r\n")


def _names_another(secrets: Mapping[str, Mapping[str, str]], user: WantedUser) -> bool:
    secret = secrets.get(user.secret)
    return secret is not None and secret.get(ACCESS_KEY) != user.access_key


def _rotated(user: WantedUser) -> str:
    return (
        f"accessKey {user.access_key} has a new secret key in Secret {user.secret}; the former one stays valid for "
        f"{user.overlap_s:g} s"
    )


def _accepted(user: WantedUser, plan: KeyPlan, valid: int, end: float | None) -> UserResult:
    if plan.problem:
        # The members keep the last key: a Secret that disappears for a moment must not stop clients.
        return UserResult(True, "SecretNotUsable", f"{plan.problem}; the last key stays valid", user.secret, valid, end)
    message = plan.waits or ("the user is disabled: its requests are refused" if not user.enabled else "")
    return UserResult(True, "Accepted", message, user.secret, valid, end)


def _user(user: WantedUser, keys: Sequence[str]) -> dict[str, Any]:
    """Return the user in the form of the table."""
    quotas = user.quotas
    return {
        "name": user.access_key,
        "keys": list(keys),
        "super": user.super_user,
        "enabled": user.enabled,
        "bytesPerSecond": quotas.get("bytesPerSecond"),
        "messagesPerSecond": quotas.get("messagesPerSecond"),
        "connections": quotas.get("connections"),
        "rules": [dict(r) for r in user.rules],
    }
