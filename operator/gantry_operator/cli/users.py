"""`gantry user`: the users of a cluster, on this machine and on Kubernetes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gantry_operator.access import ADMIN
from gantry_operator.access.wanted import ACCESS_KEY, SECRET_KEY
from gantry_operator.api import BrokerUser
from gantry_operator.api.manifest import problems_of
from gantry_operator.cli.errors import CliError, Exit
from gantry_operator.cli.output import note, print_json, print_table, say
from gantry_operator.cli.plain_acl import Account, PlainAclError, read_accounts
from gantry_operator.cli.target import Target, run_async

IN_FORCE_S = 10.0
"""Seconds to wait until the members know a change."""
POLL_S = 0.1


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
    """A rule from `TYPE:NAME:ACTIONS`: Topic:orders-*:Pub,Sub. A `*` at the end is a prefix, alone every name.

    Raises CliError.
    """
    parts = text.split(":")
    if len(parts) != 3 or not all(parts):
        raise CliError(f"{text!r} is no rule: write TYPE:NAME:ACTIONS, for example Topic:orders-*:Pub,Sub", Exit.USAGE)
    kind, name, actions = parts
    pattern = "Any" if name == "*" else "Prefix" if name.endswith("*") else "Literal"
    return {
        "type": kind,
        "name": "" if pattern == "Any" else name.removesuffix("*"),
        "pattern": pattern,
        "actions": [a.strip() for a in actions.split(",") if a.strip()],
        "decision": decision,
    }


def made_user(wanted: NewUser, cluster: str, namespace: str) -> BrokerUser:
    """Raises CliError."""
    spec: dict[str, Any] = {
        "superUser": wanted.super_user,
        "rules": [rule_of(t, "Allow") for t in wanted.allow] + [rule_of(t, "Deny") for t in wanted.deny],
    }
    if wanted.access_key is not None:
        spec["accessKey"] = wanted.access_key
    if wanted.existing_secret is not None:
        spec["secret"] = {"name": wanted.existing_secret}
    try:
        return BrokerUser.make(wanted.name, cluster, namespace, **spec)
    except ValidationError as error:
        raise CliError("; ".join(map(str, problems_of(error.errors(), BrokerUser))), Exit.USAGE) from None


def create(target: Target, wanted: NewUser, as_json: bool) -> None:
    """Create a user and say where its key lies. Raises CliError."""
    place = run_async(create_user(target, wanted))
    if as_json:
        print_json({"user": wanted.name, "key": place})
        return
    say(f"{wanted.name}: its keys are in {place}")
    note(f"Show the secret key: gantry user key {wanted.name}")


async def create_user(target: Target, wanted: NewUser) -> str:
    if wanted.name == ADMIN:
        raise CliError(f"{ADMIN} is the super user that every cluster has: write another name", Exit.USAGE)
    async with target.users() as found:
        user = made_user(wanted, found.cluster, found.namespace)
        await found.create(user)
        await _in_force(found, wanted.name)
        place: str = await found.key_place(wanted.name)
        return place


def show(target: Target, as_json: bool) -> None:
    """List the users. Raises CliError."""
    rows = run_async(list_users(target))
    if as_json:
        print_json(rows)
        return
    if not rows:
        note("no user was created; the super user admin exists: gantry user key admin")
        return
    cells = []
    for row in rows:
        status = row.get("status") or {}
        ready: dict[str, Any] = next((c for c in status.get("conditions") or [] if c["type"] == "Ready"), {})
        shown = "yes" if ready.get("status") == "True" else "no"
        cells.append((
            row["metadata"]["name"], status.get("accessKey") or row["metadata"]["name"],
            "yes" if row["spec"].get("superUser") else "no", shown, str(status.get("keys", 0)),
            str(ready.get("message") or ""),
        ))  # fmt: skip
    print_table(("USER", "ACCESS KEY", "SUPER", "READY", "KEYS", "MESSAGE"), cells)


async def list_users(target: Target) -> list[dict[str, Any]]:
    """The BrokerUsers by name, without their keys. Raises CliError."""
    async with target.users() as found:
        return sorted(await found.list(), key=lambda u: str(u["metadata"]["name"]))


def delete(target: Target, name: str, as_json: bool) -> None:
    """Raises CliError."""
    run_async(delete_user(target, name))
    print_json({"deleted": name}) if as_json else say(f"{name} is deleted")


async def delete_user(target: Target, name: str) -> None:
    """Raises CliError."""
    if name == ADMIN:
        raise CliError(f"{ADMIN} is the super user that every cluster has: it cannot be deleted", Exit.USAGE)
    async with target.users() as found:
        await found.delete(name)


def rotate(target: Target, name: str, as_json: bool) -> None:
    """Ask for a new key. Raises CliError."""
    place = run_async(_rotate(target, name))
    if as_json:
        print_json({"rotated": name, "key": place})
    else:
        say(f"{name}: a new secret key is in {place}; the former one stays valid for the overlap")


async def _rotate(target: Target, name: str) -> str:
    async with target.users() as found:
        before = await found.key(name)
        await found.rotate(name, f"{time.time_ns()}")
        deadline = time.monotonic() + IN_FORCE_S
        while await found.key(name) == before:
            if time.monotonic() > deadline:
                why = await found.why_not(name)
                raise CliError(
                    f"the key of {name} has not changed: {why or 'is the operator running?'}", Exit.NOT_IN_TIME
                )
            await asyncio.sleep(POLL_S)
        place: str = await found.key_place(name)
        return place


def key(target: Target, name: str, as_json: bool) -> None:
    """Print the secret key of a user. Raises CliError."""
    access, secret = run_async(_key(target, name))
    if as_json:
        print_json({ACCESS_KEY: access, SECRET_KEY: secret})
    else:
        print(secret)


async def _key(target: Target, name: str) -> tuple[str, str]:
    async with target.users() as found:
        keys: tuple[str, str] = await found.key(name)
        return keys


def import_file(target: Target, file: Path, as_json: bool) -> None:
    """Create the users of a plain_acl.yml. Raises CliError."""
    try:
        accounts, notes = read_accounts(file)
    except PlainAclError as error:
        raise CliError(str(error), Exit.USAGE) from None
    for text in notes:
        note(text)
    names = run_async(_import(target, accounts))
    print_json({"imported": names}) if as_json else say(f"imported: {', '.join(names) or 'no account'}")


async def _import(target: Target, accounts: Sequence[Account]) -> list[str]:
    names = []
    async with target.users() as found:
        known = {str(u["metadata"]["name"]) for u in await found.list()}
        twice = sorted(known & {a.name for a in accounts})
        if twice:
            raise CliError(f"{', '.join(twice)} exists already: delete it first, or take it out of the file")
        users = [_imported(a, found.cluster, found.namespace) for a in accounts]
        for account, user in zip(accounts, users, strict=True):
            assert user.spec.secret is not None
            await found.put_secret(user.spec.secret.name, {ACCESS_KEY: account.access_key, SECRET_KEY: account.secret})
            await found.create(user)
            names.append(account.name)
        for name in names:
            await _in_force(found, name)
    return names


def _imported(account: Account, cluster: str, namespace: str) -> BrokerUser:
    spec: dict[str, Any] = {
        "accessKey": account.access_key, "superUser": account.admin, "rules": list(account.rules),
        "secret": {"name": f"{cluster}-key-{account.name}"},
    }  # fmt: skip
    try:
        return BrokerUser.make(account.name, cluster, namespace, **spec)
    except ValidationError as error:
        said = "; ".join(map(str, problems_of(error.errors(), BrokerUser)))
        raise CliError(f"account {account.access_key}: {said}", Exit.USAGE) from None


async def _in_force(found: Any, name: str) -> None:
    """Wait until the members know the user, and say why if they do not. Raises CliError for a refused user."""
    deadline = time.monotonic() + IN_FORCE_S
    why = "is the operator running?"
    while time.monotonic() < deadline:
        state = await found.state(name)
        if state is None:
            note(f"no `gantry up` runs: {name} is known to the brokers once one does")
            return
        status, reason, message = state
        if status == "True":
            return
        if reason not in ("", "Waiting"):
            raise CliError(f"{name} is refused: {message}")
        why = message or why
        await asyncio.sleep(POLL_S)
    raise CliError(f"{name} is not in force after {IN_FORCE_S:.0f} s: {why}", Exit.NOT_IN_TIME)
