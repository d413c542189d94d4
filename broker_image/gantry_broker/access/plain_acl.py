"""Users from RocketMQ 4.9's `plain_acl.yml`, and its permissions as rules.

`defaultTopicPerm` and `defaultGroupPerm` become rules for every name; DENY needs no rule of its own there, for what no
rule allows is not allowed. `topicPerms` and `groupPerms` become literal rules; an entry decides alone for its name, so
what only the default would give there is denied. White lists are not taken over: with RocketMQ 4.9 a request from such
an address needs no signature, here each request does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import ValidationError

from gantry_broker.access.strict_yaml import load_all
from gantry_broker.access.table import MAX_USERS, Rule, User
from gantry_broker.protocol.codes import RETRY_PREFIX

MAX_BYTES: Final = 1 << 20
_PERMS: Final[Mapping[str, tuple[str, ...]]] = {
    "DENY": (),
    "PUB": ("Pub",),
    "SUB": ("Sub",),
    "PUB|SUB": ("Pub", "Sub"),
    "SUB|PUB": ("Pub", "Sub"),
}
"""Every other text is DENY to RocketMQ, whose permissions know no small letters. Source:
`Permission.parsePermFromString` of 4.9.7.
"""


def read_plain_acl(text: str) -> list[User]:
    """Return the users of the file. Raises ValueError, which names the account, the field and what is expected."""
    if len(text) > MAX_BYTES:
        raise ValueError(f"the file has {len(text)} characters, the limit is {MAX_BYTES}")
    value = load_plain_acl(text)
    if not isinstance(value, dict) or not isinstance(accounts := value.get("accounts"), list):
        raise ValueError("accounts is not a list: this is no plain_acl.yml")
    if len(accounts) > MAX_USERS:
        raise ValueError(f"accounts has {len(accounts)} entries, the limit is {MAX_USERS}")
    users = [account_user(f"accounts[{number}]", account) for number, account in enumerate(accounts)]
    names = [user.name for user in users]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"accounts has the accessKey {name} twice")
    return users


def load_plain_acl(text: str) -> Any:
    """Return the content of the file. Raises ValueError."""
    documents = load_all(text)
    return documents[0] if len(documents) == 1 else None


def account_user(where: str, account: Any) -> User:
    """Return the user of one entry of accounts. `where`: its place. Raises ValueError, whose text never has the key."""
    if not isinstance(account, dict):
        raise ValueError(f"{where} is not a mapping; accessKey, secretKey and permissions are expected")
    name = account.get("accessKey")
    if not isinstance(name, str | int):
        raise ValueError(f"{where}.accessKey is absent; a name is expected")
    where = f"{where} ({str(name)[:128]})"
    admin = account.get("admin", False)
    if not isinstance(admin, bool):
        raise ValueError(f"{where}: admin is {str(admin)[:40]!r}; true or false is expected")
    key = account.get("secretKey")
    if not isinstance(key, str | int):
        raise ValueError(f"{where}: secretKey is absent; a text of 8 to 256 characters is expected")
    try:
        rules = rules_of(
            topics=_names(account, "topicPerms", where),
            groups=_names(account, "groupPerms", where),
            every_topic=str(account.get("defaultTopicPerm") or "DENY"),
            every_group=str(account.get("defaultGroupPerm") or "DENY"),
        )
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    return user_of(str(name), str(key), admin, rules, where)


def user_of(name: str, key: str, admin: bool, rules: Sequence[Rule], where: str) -> User:
    """Return the user. Raises ValueError, whose text never has the key."""
    try:
        return User(name=name, keys=(key,), super=admin, rules=tuple(rules))
    except ValidationError as error:
        field = str(error.errors()[0]["loc"][0])
        expected = {
            "name": "accessKey must have 1 to 128 of A-Z, a-z, 0-9, '.', '_' and '-'",
            "keys": "secretKey must have 8 to 256 characters",
        }
        raise ValueError(f"{where}: {expected.get(field, f'{field}: ' + error.errors()[0]['msg'])}") from None


def _names(account: Mapping[str, Any], field: str, where: str) -> list[str]:
    entries = account.get(field) or []
    if not isinstance(entries, list):
        raise ValueError(f"{where}: {field} is not a list; entries as 'name=PUB|SUB' are expected")
    return [str(item) for item in entries]


def rules_of(*, topics: Sequence[str], groups: Sequence[str], every_topic: str, every_group: str) -> list[Rule]:
    """Return the rules of one account. `topics`, `groups`: entries as "name=PUB|SUB". Raises ValueError."""
    own: dict[str, dict[str, tuple[str, ...]]] = {"Topic": {}, "Group": {}}
    for kind, entries in (("Group", groups), ("Topic", topics)):  # In this order a later entry replaces a former one.
        for entry in entries:
            name, equals, perm = entry.partition("=")
            name = name.strip()
            if not equals or not name:
                raise ValueError(f"{entry[:80]!r} is no permission; 'name=PUB|SUB' is expected")
            of_group = kind == "Group" or name.startswith(RETRY_PREFIX)
            own["Group" if of_group else "Topic"][name.removeprefix(RETRY_PREFIX)] = _actions(perm, entry)
    rules = []
    for kind, every in (("Topic", every_topic), ("Group", every_group)):
        rules += [_rule(kind, name, "Literal", actions) for name, actions in own[kind].items()]
        if actions := _actions(every, every):
            rules.append(_rule(kind, "*", "Any", actions))
    return rules + narrowed(rules)


def narrowed(rules: Sequence[Rule]) -> list[Rule]:
    """Return what keeps the defaults among these rules from the names with an entry of their own, as in 4.9.

    Source: `PlainPermissionManager.checkPerm` of 4.9.7, which looks at a default only for a name without an entry.
    """
    defaults: dict[str, set[str]] = {}
    own: dict[tuple[str, str], set[str]] = {}
    for rule in rules:
        if rule.pattern == "Any" and rule.decision == "Allow":
            defaults.setdefault(rule.type, set()).update(rule.actions)
        elif rule.pattern == "Literal":
            own.setdefault((rule.type, rule.name), set()).update(rule.actions)
    denials = []
    for (kind, name), actions in own.items():
        missing = () if "Any" in actions else tuple(sorted(defaults.get(kind, set()) - actions))
        if missing:
            denials.append(_rule(kind, name, "Literal", missing, deny=True))
    return denials


def _actions(perm: str, entry: str) -> tuple[str, ...]:
    actions = _PERMS.get(perm.strip())
    if actions is None:
        raise ValueError(f"{entry[:80]!r} has no permission of DENY, PUB, SUB and PUB|SUB")
    return actions


def _rule(kind: str, name: str, pattern: str, actions: tuple[str, ...], deny: bool = False) -> Rule:
    value = {
        "type": kind,
        "name": name,
        "pattern": pattern,
        "actions": list(actions) or ["Any"],
        "decision": "Deny" if deny or not actions else "Allow",
    }
    try:
        return Rule.model_validate(value)
    except ValidationError as error:
        raise ValueError(f"{name[:80]!r}: {error.errors()[0]['msg']}") from None
