"""RocketMQ's plain_acl.yml as BrokerUsers: each account with its keys and permissions."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gantry_broker.access.plain_acl import MAX_BYTES, load_plain_acl, read_plain_acl
from gantry_broker.access.table import User

from gantry_operator.access.wanted import ADMIN
from gantry_operator.api.user import MAX_USER_NAME


class PlainAclError(ValueError):
    """The file cannot be imported. The text names the account, the field and what to write."""


@dataclass(frozen=True, slots=True)
class Account:
    """One account as a user. `name` is that of the BrokerUser."""

    name: str
    access_key: str
    secret: str = field(repr=False)
    admin: bool
    rules: Sequence[dict[str, Any]]
    enabled: bool = True


def read_accounts(path: Path) -> tuple[list[Account], list[str]]:
    """Return the accounts, and remarks about what is not imported. Raises PlainAclError."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise PlainAclError(f"{path} has more than {MAX_BYTES} bytes: that is no plain_acl.yml")
        text = path.read_text(encoding="utf-8")
        users = read_plain_acl(text)
    except OSError as error:
        raise PlainAclError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise PlainAclError(f"{path} is not UTF-8") from None
    except ValueError as error:
        raise PlainAclError(f"{path}: {error}") from None
    accounts = [account_of(u) for u in users]
    names = [a.name for a in accounts]
    twice = next((n for n in names if names.count(n) > 1), None)
    if twice is not None:
        raise PlainAclError(f"{path}: two accounts would be BrokerUser {twice}: write other access keys")
    return accounts, _not_imported(load_plain_acl(text))


def account_of(user: User) -> Account:
    """Return a user as an account, with the name of its BrokerUser. Raises PlainAclError."""
    name = re.sub(r"[^a-z0-9.-]+", "-", user.name.lower()).strip("-.")[:MAX_USER_NAME].strip("-.")
    if not name:
        raise PlainAclError(f"account {user.name}: no BrokerUser can have this name: write letters or digits")
    rules = [r.model_dump(mode="json") | ({"name": ""} if r.pattern == "Any" else {}) for r in user.rules]
    return Account(name, user.name, user.keys[0], user.super, rules, user.enabled)


def accounts_of(
    users: Mapping[str, User], broker_users: Mapping[str, str], taken: Collection[str]
) -> tuple[list[Account], dict[str, str]]:
    """Return users as accounts, and by name why others cannot be some.

    `broker_users`: the BrokerUsers that are there, by access key. `taken`: names that no new one can have. Those whose
    names differ by their case only get a number.
    """
    accounts: dict[str, Account] = {}
    left_out: dict[str, str] = {}
    used = {ADMIN, *taken, *broker_users.values()}
    for _, user in sorted(users.items()):
        try:
            account, number = account_of(user), 2
        except PlainAclError as error:
            left_out[user.name] = str(error)
            continue
        name = broker_users.get(user.name, account.name)
        while user.name not in broker_users and name in used:
            name = f"{account.name[:55]}-{number}"
            number += 1
        used.add(name)
        accounts[name] = replace(account, name=name)
    return list(accounts.values()), left_out


def _not_imported(content: dict[str, Any]) -> list[str]:
    notes = []
    if content.get("globalWhiteRemoteAddresses"):
        notes.append(
            "globalWhiteRemoteAddresses is not imported: every request needs a signature, from everywhere; limit who "
            "may connect by a NetworkPolicy"
        )
    free = [str(a["accessKey"]) for a in content["accounts"] if a.get("whiteRemoteAddress")]
    if free:
        notes.append(f"whiteRemoteAddress of {', '.join(free)} is not imported: every request needs a signature")
    return notes
