"""RocketMQ's plain_acl.yml as users: accounts with permissions by topic and group."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

MAX_FILE = 4_194_304
MAX_ACCOUNTS = 2_000
_ACTIONS = {"PUB": ["Pub"], "SUB": ["Sub"], "PUB|SUB": ["Pub", "Sub"], "SUB|PUB": ["Pub", "Sub"], "DENY": []}


class PlainAclError(ValueError):
    """The file cannot be imported. The text names the account, the field and what to write."""


@dataclass(frozen=True, slots=True)
class Account:
    """One account as a user. `name` is that of the BrokerUser."""

    name: str
    access_key: str
    secret: str
    admin: bool
    rules: Sequence[dict[str, Any]]


def read_plain_acl(path: Path) -> tuple[list[Account], list[str]]:
    """The accounts, and remarks about what is not imported. Raises PlainAclError."""
    try:
        if path.stat().st_size > MAX_FILE:
            raise PlainAclError(f"{path} has more than {MAX_FILE} bytes: that is no plain_acl.yml")
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PlainAclError(f"{path} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        # The text of the error may show a line of the file, with a secret.
        raise PlainAclError(f"{path} is not YAML: {type(error).__name__}") from None
    accounts = found.get("accounts") if isinstance(found, dict) else None
    if not isinstance(accounts, list) or len(accounts) > MAX_ACCOUNTS:
        raise PlainAclError(f"{path} has no list of accounts with at most {MAX_ACCOUNTS} entries")
    notes = []
    if found.get("globalWhiteRemoteAddresses"):
        notes.append(
            "globalWhiteRemoteAddresses is not imported: no address may do everything without a key; use "
            "NetworkPolicies, or give these clients a user"
        )
    free = [str(e.get("accessKey")) for e in accounts if isinstance(e, dict) and e.get("whiteRemoteAddress")]
    if free:
        notes.append(
            f"whiteRemoteAddress of {', '.join(free)} is not imported: every request needs a signature, from everywhere"
        )
    made = [_account(entry, number) for number, entry in enumerate(accounts)]
    names = [a.name for a in made]
    twice = next((n for n in names if names.count(n) > 1), None)
    if twice is not None:
        raise PlainAclError(f"two accounts would be BrokerUser {twice}: write other access keys")
    return made, notes


def _account(entry: Any, number: int) -> Account:
    where = f"accounts[{number}]"
    if not isinstance(entry, dict):
        raise PlainAclError(f"{where} is no account: write accessKey and secretKey")
    access, secret = str(entry.get("accessKey") or ""), str(entry.get("secretKey") or "")
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,128}", access):
        raise PlainAclError(f"{where}.accessKey is not usable: write 1 to 128 letters, digits, '.', '_' and '-'")
    where = f"account {access}"
    if not 8 <= len(secret) <= 256:
        raise PlainAclError(f"{where}: secretKey has {len(secret)} characters: write 8 to 256")
    rules: list[dict[str, Any]] = []
    for kind, perms, default in (
        ("Topic", entry.get("topicPerms"), entry.get("defaultTopicPerm")),
        ("Group", entry.get("groupPerms"), entry.get("defaultGroupPerm")),
    ):
        rules += [r for text in perms or [] for r in _rule(kind, str(text), where)]
        if default:
            rules += _permission(kind, "", "Any", str(default), where)
    name = re.sub(r"[^a-z0-9.-]+", "-", access.lower()).strip("-.")[:63].strip("-.")
    if not name:
        raise PlainAclError(f"{where}: no BrokerUser can have a name from this accessKey: write letters or digits")
    return Account(name, access, secret, entry.get("admin") is True, rules)


def _rule(kind: str, text: str, where: str) -> list[dict[str, Any]]:
    name, separator, permission = text.partition("=")
    if not separator or not name:
        raise PlainAclError(f"{where}: {text!r} is no permission: write NAME=PUB|SUB")
    return _permission(kind, name, "Literal", permission, where)


def _permission(
    kind: str, name: str, pattern: str, text: str, where: str
) -> list[dict[str, Any]]:  # fmt: skip
    wanted = text.replace(" ", "").upper()
    if wanted not in _ACTIONS:
        raise PlainAclError(f"{where}: permission {text!r} is unknown: write DENY, PUB, SUB or PUB|SUB")
    actions = _ACTIONS[wanted]
    rule = {"type": kind, "name": name, "pattern": pattern}
    if not actions:
        # Without a rule everything is refused already; a name outweighs the default.
        return [] if pattern == "Any" else [rule | {"actions": ["Any"], "decision": "Deny"}]
    # RocketMQ 4 asks for Sub where a client reads the state of a topic or a group.
    return [rule | {"actions": [*actions, "Get"], "decision": "Allow"}]
