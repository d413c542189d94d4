"""Create, change, list, import and delete users, and rotate their keys."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

from gantry_operator.access.wanted import ACCESS_KEY, ADMIN, SECRET_KEY
from gantry_operator.actions.errors import ActionError, Cause
from gantry_operator.actions.managed import digest_of, refuse_changed
from gantry_operator.actions.managed_changes import validated
from gantry_operator.actions.plain_acl import Account
from gantry_operator.actions.target import Remarks, Target
from gantry_operator.api.manifest import problems_of
from gantry_operator.api.user import BrokerUser

IN_FORCE_S: Final = 10.0
"""Seconds to wait until the members know a change."""

POLL_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class NewUser:
    """The options of `gantry user create`."""

    name: str
    access_key: str | None
    super_user: bool
    allow: Sequence[str]
    deny: Sequence[str]
    existing_secret: str | None = None


def rule_of(text: str, decision: str) -> dict[str, Any]:
    """Return a rule from `TYPE:NAME:ACTIONS`: Topic:orders-*:Pub,Sub. A `*` at the end is a prefix, alone every name.

    `@NETWORKS` behind it: only from there, as Topic:orders-*:Pub@10.0.0.0/8,192.168.1.7. Raises ActionError.
    """
    before, at, networks = text.partition("@")
    parts = before.split(":")
    sources = [s.strip() for s in networks.split(",") if s.strip()]
    if len(parts) != 3 or not all(parts) or bool(at) != bool(sources):
        raise ActionError(
            f"{text!r} is no rule: write TYPE:NAME:ACTIONS, for example Topic:orders-*:Pub,Sub, with @NETWORKS behind "
            "it where the rule is for some addresses only",
            Cause.BAD_INPUT,
        )
    kind, name, actions = parts
    pattern = "Any" if name == "*" else "Prefix" if name.endswith("*") else "Literal"
    return ({"sources": sources} if sources else {}) | {
        "type": kind,
        "name": "" if pattern == "Any" else name.removesuffix("*"),
        "pattern": pattern,
        "actions": [a.strip() for a in actions.split(",") if a.strip()],
        "decision": decision,
    }


def rule_text(rule: Mapping[str, Any]) -> str:
    """Return the text of a rule as `rule_of` reads it."""
    pattern = rule.get("pattern") or "Literal"
    name = {"Any": "*", "Prefix": f"{rule.get('name', '')}*"}.get(pattern, rule.get("name", ""))
    sources = ",".join(rule.get("sources") or ())
    return f"{rule['type']}:{name}:{','.join(rule['actions'])}" + (f"@{sources}" if sources else "")


def user_of(new: NewUser, cluster: str, namespace: str) -> BrokerUser:
    """Build the BrokerUser. Raises ActionError."""
    spec: dict[str, Any] = {
        "superUser": new.super_user,
        "rules": [rule_of(t, "Allow") for t in new.allow] + [rule_of(t, "Deny") for t in new.deny],
    }
    if new.access_key is not None:
        spec["accessKey"] = new.access_key
    if new.existing_secret is not None:
        spec["secret"] = {"name": new.existing_secret}
    try:
        return BrokerUser.make(new.name, cluster, namespace, **spec)
    except ValidationError as error:
        raise ActionError("; ".join(map(str, problems_of(error.errors(), BrokerUser))), Cause.BAD_INPUT) from None


async def create_user(target: Target, new: NewUser) -> str:
    """Create a user. Returns where its key lies. Raises ActionError."""
    if new.name == ADMIN:
        raise ActionError(f"{ADMIN} is the super user that every cluster has: write another name", Cause.BAD_INPUT)
    async with target.users() as users:
        user = user_of(new, users.cluster, users.namespace)
        await users.create(user)
        await _in_force(users, new.name, target.remarks)
        place: str = await users.key_place(new.name)
        return place


async def list_users(target: Target) -> list[dict[str, Any]]:
    """Return the BrokerUsers by name, without their keys. Raises ActionError."""
    async with target.users() as users:
        return sorted(await users.list(), key=lambda u: str(u["metadata"]["name"]))


async def user_settings(target: Target, name: str) -> dict[str, Any]:
    """Return what `change_user` changes, as it is now. Raises ActionError.

    `superUser`, `allow` and `deny` (rules as text), `generation`, and `digest` for `change_user`.
    """
    if name == ADMIN:
        raise ActionError(f"{ADMIN} is the super user that every cluster has: it cannot be changed", Cause.BAD_INPUT)
    named = [u for u in await list_users(target) if u["metadata"]["name"] == name]
    if not named:
        raise ActionError(f"there is no user {name}: `gantry user list` shows those that exist")
    spec = named[0]["spec"]
    by_decision: dict[str, list[str]] = {"Allow": [], "Deny": []}
    for rule in spec.get("rules") or ():
        by_decision[rule.get("decision") or "Allow"].append(rule_text(rule))
    settings = {"superUser": bool(spec.get("superUser")), "allow": by_decision["Allow"], "deny": by_decision["Deny"]}
    return settings | {"digest": digest_of(settings)}


async def change_user(
    target: Target,
    name: str,
    *,
    super_user: bool | None = None,
    allow: Sequence[str] | None = None,
    deny: Sequence[str] | None = None,
    digest: str = "",
) -> str:
    """Change what a user may do; None: it stays. Returns a sentence. `digest`: of the `user_settings` that the person
    saw; empty: it does not matter. Raises ActionError, also when others have changed it meanwhile.
    """
    before = await user_settings(target, name)
    refuse_changed(digest, before["digest"], name)
    changes: dict[str, Any] = {} if super_user is None else {"superUser": super_user}
    if allow is not None or deny is not None:
        allowed, denied = before["allow"] if allow is None else allow, before["deny"] if deny is None else deny
        changes["rules"] = [rule_of(t, "Allow") for t in allowed] + [rule_of(t, "Deny") for t in denied]
    if not changes:
        raise ActionError("nothing to change: write what the user may do, or may not do", Cause.BAD_INPUT)
    validated(BrokerUser, changes)
    async with target.users() as users:
        await users.change(name, changes)
        await _in_force(users, name, target.remarks)
    return f"{name} is changed"


async def delete_user(target: Target, name: str) -> str:
    """Delete a user. Returns a sentence. Raises ActionError."""
    if name == ADMIN:
        raise ActionError(f"{ADMIN} is the super user that every cluster has: it cannot be deleted", Cause.BAD_INPUT)
    async with target.users() as users:
        await users.delete(name)
    return f"{name} is deleted"


async def rotate_key(target: Target, name: str) -> str:
    """Ask for a new key and wait for it. Returns where it lies. Raises ActionError."""
    async with target.users() as users:
        before = await users.key(name)
        await users.rotate(name, f"{time.time_ns()}")
        deadline = time.monotonic() + IN_FORCE_S
        while await users.key(name) == before:
            if time.monotonic() > deadline:
                why = await users.why_not(name)
                raise ActionError(
                    f"the key of {name} has not changed: {why or 'is the operator running?'}", Cause.NOT_IN_TIME
                )
            await asyncio.sleep(POLL_S)
        place: str = await users.key_place(name)
        return place


async def key_of(target: Target, name: str) -> tuple[str, str]:
    """Return the access key and the secret key of a user. Raises ActionError."""
    async with target.users() as users:
        keys: tuple[str, str] = await users.key(name)
        return keys


async def known_users(target: Target, cluster: str) -> tuple[dict[str, str], set[str]]:
    """Return the names of the BrokerUsers by access key, and the names that no new one can have. `cluster`: the
    target's name has to be this one. Raises ActionError.
    """
    async with target.users() as users:
        if users.cluster != cluster:
            raise ActionError(f"the manifest is of {cluster}, and the cluster here is {users.cluster}", Cause.BAD_INPUT)
        resources = await users.list()
        keys = {str(u["spec"].get("accessKey") or u["metadata"]["name"]): str(u["metadata"]["name"]) for u in resources}
        return keys, set(await users.taken())


def importable(accounts: Sequence[Account], cluster: str) -> tuple[list[Account], dict[str, str]]:
    """Return the accounts that can be BrokerUsers, and by access key why others cannot."""
    fit, left_out = [], {}
    for account in accounts:
        try:
            _imported(account, cluster, "default")
        except ActionError as error:
            left_out[account.access_key] = str(error).removeprefix(f"account {account.access_key}: ")
        else:
            fit.append(account)
    return fit, left_out


async def import_accounts(target: Target, accounts: Sequence[Account], *, wait: bool = True) -> list[str]:
    """Create a user for each account. Returns their names. `wait`: until the members know them, which those that
    follow a RocketMQ do not before they lead. Raises ActionError.
    """
    names = []
    async with target.users() as store:
        existing = {str(u["metadata"]["name"]) for u in await store.list()}
        twice = sorted(existing & {a.name for a in accounts})
        if twice:
            raise ActionError(f"{', '.join(twice)} exists already: delete it first, or take it out of the file")
        users = [_imported(a, store.cluster, store.namespace) for a in accounts]
        for account, user in zip(accounts, users, strict=True):
            assert user.spec.secret is not None
            await store.put_secret(user.spec.secret.name, {ACCESS_KEY: account.access_key, SECRET_KEY: account.secret})
            await store.create(user)
            names.append(account.name)
        for name in names if wait else ():
            await _in_force(store, name, target.remarks)
    return names


def _imported(account: Account, cluster: str, namespace: str) -> BrokerUser:
    spec: dict[str, Any] = {
        "accessKey": account.access_key, "superUser": account.admin, "rules": list(account.rules),
        "secret": {"name": f"{cluster}-key-{account.name}"}, "enabled": account.enabled,
    }  # fmt: skip
    try:
        return BrokerUser.make(account.name, cluster, namespace, **spec)
    except ValidationError as error:
        problems = "; ".join(map(str, problems_of(error.errors(), BrokerUser)))
        raise ActionError(f"account {account.access_key}: {problems}", Cause.BAD_INPUT) from None


async def _in_force(store: Any, name: str, remarks: Remarks) -> None:
    """Wait until the members know the user, and say why if they do not. Raises ActionError for a refused user."""
    deadline = time.monotonic() + IN_FORCE_S
    why = "is the operator running?"
    while time.monotonic() < deadline:
        state = await store.state(name)
        if state is None:
            remarks.note(f"no `gantry up` runs: {name} is known to the brokers once one does")
            return
        status, reason, message = state
        if status == "True":
            return
        if reason not in ("", "Waiting"):
            raise ActionError(f"{name} is refused: {message}")
        why = message or why
        await asyncio.sleep(POLL_S)
    raise ActionError(f"{name} is not in force after {IN_FORCE_S:.0f} s: {why}", Cause.NOT_IN_TIME)
