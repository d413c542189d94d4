"""The users of a source and their rules, as users of the new cluster. `plain` and `managed` are pure.

RocketMQ 4.9 gives its accounts with their keys to an administrator (GET_BROKER_CLUSTER_ACL_CONFIG), 5.x its users and
their rules (AUTH_LIST_USER, AUTH_LIST_ACL). Each broker has its own. A user with one value that has no counterpart is
left out whole: a rule that is missing could be one that forbids. So is one whose rights would be greater than at one of
the brokers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from gantry_broker.access.administration import Wrong, acl_rules, created, subject_name
from gantry_broker.access.decide import Rule as Decided
from gantry_broker.access.plain_acl import account_user
from gantry_broker.access.table import MAX_USERS, Rule, User
from gantry_broker.broker.migration.errors import MigrationError
from gantry_broker.broker.migration.source import Source, guarded
from gantry_broker.protocol import fastjson
from gantry_broker.protocol.codes import RequestCode

from gantry_operator.access.wanted import ADMIN
from gantry_operator.migration.cutover_edge import FAILURES, SourcePlace

MAX_RULES: Final = 256
"""Rules of a BrokerUser."""
MAX_NAME: Final = 128


@dataclass(frozen=True, slots=True)
class Found:
    """Users of one broker, or of all. No text has a key."""

    users: Mapping[str, User] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    """By name: why a user has no counterpart."""
    notes: Sequence[str] = ()
    """What else has none."""
    guarded: bool = True
    """The broker asks for users."""


def settings_notes(settings: Mapping[str, str]) -> list[str]:
    """Return what the settings of a broker of 5.x let users do beyond their rules."""
    notes = []
    if settings.get("authorizationEnabled") != "true":
        notes.append("authorizationEnabled is not true: there every user may do everything, here what its rules allow")
    for name in ("authenticationWhitelist", "authorizationWhitelist"):
        if settings.get(name):
            notes.append(f"{name}: with Gantry these requests are checked as all others")
    return notes


def plain(body: bytes) -> Found:
    """Read the accounts of 4.9. Raises MigrationError for what is no answer of a broker."""
    try:
        value = fastjson.loads(body)
        accounts = value["plainAccessConfigs"] or []
        addresses = value.get("globalWhiteAddrs") or []
        if not isinstance(accounts, list) or not isinstance(addresses, list):
            raise TypeError("plainAccessConfigs or globalWhiteAddrs is no list")
    except (fastjson.JsonError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise MigrationError(f"the source's accounts cannot be read: {type(error).__name__}") from None
    users: dict[str, User] = {}
    left_out: dict[str, str] = {}
    notes = []
    if addresses:
        notes.append("globalWhiteRemoteAddresses: with Gantry a request from there needs a signature, too")
    for number, account in enumerate(accounts[:MAX_USERS]):
        name = str(account.get("accessKey"))[:MAX_NAME] if isinstance(account, dict) else f"account {number}"
        try:
            users[name] = account_user(name, account)
        except ValueError as error:
            left_out[name] = str(error).removeprefix(f"{name} ({name}): ").removeprefix(f"{name}: ")
        else:
            if account.get("whiteRemoteAddress"):
                notes.append(f"whiteRemoteAddress of {name}: with Gantry a request from there needs a signature, too")
            if users[name].super and (account.get("topicPerms") or account.get("groupPerms")):
                notes.append(f"topicPerms and groupPerms of {name}: it is an admin, and with Gantry may do everything")
    _drop_doubles(accounts, "accessKey", users, left_out)
    return _bounded(users, left_out, notes, len(accounts))


def _drop_doubles(entries: Sequence[Any], field: str, users: dict[str, User], left_out: dict[str, str]) -> None:
    """Leave out the users of whom there are several entries: which one counts at the source is not known."""
    count = Counter(str(one.get(field))[:MAX_NAME] for one in entries if isinstance(one, dict))
    for name in [name for name, times in count.items() if times > 1]:
        users.pop(name, None)
        left_out[name] = f"the source has {count[name]} entries of it"


def managed(users_body: bytes, acls_body: bytes) -> Found:
    """Read the users and rules of 5.x. Raises MigrationError for what is no answer of a broker."""
    try:
        infos = (fastjson.loads(users_body) if users_body else None) or []
        acls = (fastjson.loads(acls_body) if acls_body else None) or []
        if not isinstance(infos, list) or not isinstance(acls, list):
            raise TypeError("users or rules are no list")
    except (fastjson.JsonError, ValueError, TypeError) as error:
        raise MigrationError(f"the source's users cannot be read: {type(error).__name__}") from None
    users: dict[str, User] = {}
    left_out: dict[str, str] = {}
    notes = []
    usual: dict[str, Counter[Rule]] = {}
    """By user: the rules of default policies."""
    for number, info in enumerate(infos[:MAX_USERS]):
        name = str(info.get("username"))[:MAX_NAME] if isinstance(info, dict) else f"user {number}"
        try:
            users[name] = created({}, name, info)
        except (Wrong, AttributeError) as error:
            left_out[name] = str(error) if isinstance(error, Wrong) else "it is no JSON object"
    for acl in acls:
        try:
            name = subject_name(str(acl.get("subject")))
        except (Wrong, AttributeError):
            notes.append("a rule has no subject User:name")
            continue
        if name not in users:
            if name not in left_out:
                notes.append(f"rules of {name[:MAX_NAME]}: the source has no such user")
            continue
        try:
            rules = acl_rules(acl)
            policies = [policy for policy in acl["policies"] if isinstance(policy, dict)]
            last = [policy for policy in policies if str(policy.get("policyType")).lower() == "default"]
            resorts = acl_rules({"policies": last}) if any(policy.get("entries") for policy in last) else []
        except (Wrong, TypeError, AttributeError) as error:
            del users[name]
            left_out[name] = str(error) if isinstance(error, Wrong) else "its rules cannot be read"
            continue
        users[name] = users[name].model_copy(update={"rules": (*users[name].rules, *rules)})
        usual.setdefault(name, Counter()).update(resorts)
    for name, of_default in usual.items():
        if name not in users or not of_default:
            continue
        if _outranks(of_default, Counter(users[name].rules) - of_default):
            del users[name]
            left_out[name] = "one of its default policies could allow what a custom one denies"
        else:
            notes.append(f"default policies of {name}: they are rules as the others, and no last resort")
    _drop_doubles(infos, "username", users, left_out)
    return _bounded(users, left_out, notes, len(infos))


def _outranks(usual: Iterable[Rule], custom: Iterable[Rule]) -> bool:
    """Whether a default rule that allows could come before a custom one that denies. With RocketMQ the default ones
    count where no custom one matches. Source: `AclAuthorizationHandler.matchPolicyEntries` of 5.5.0.
    """
    allows = [Decided.of(rule.model_dump()).rank() for rule in usual if rule.decision == "Allow"]
    denies = [Decided.of(rule.model_dump()).rank() for rule in custom if rule.decision == "Deny"]
    return bool(allows and denies) and max(allows) > min(denies)


def _bounded(users: dict[str, User], left_out: dict[str, str], notes: list[str], count: int) -> Found:
    if count > MAX_USERS:
        notes.append(f"{count - MAX_USERS} users behind the first {MAX_USERS}")
    for name, user in list(users.items()):
        if len(user.rules) > MAX_RULES:
            left_out[name] = f"it has {len(user.rules)} rules, and {MAX_RULES} can be"
        elif name == ADMIN:
            left_out[name] = "every cluster of Gantry has a super user of this name, with another key"
        else:
            continue
        del users[name]
    return Found(users, left_out, notes)


def merged(by_broker: Mapping[str, Found]) -> Found:
    """Return the users of all brokers: `by_broker` by the broker's name. Each broker has its own table of users."""
    users: dict[str, User] = {}
    origin: dict[str, str] = {}
    left_out: dict[str, str] = {}
    notes: dict[str, None] = {}
    for broker, those in by_broker.items():
        for name, user in those.users.items():
            if users.setdefault(name, user) != user:
                left_out[name] = f"it is another one at {broker} than at {origin[name]}: make them equal there"
            origin.setdefault(name, broker)
        for name, why in those.left_out.items():
            left_out.setdefault(name, why)
        notes.update(dict.fromkeys(those.notes))
    guarded_ones = [broker for broker, those in by_broker.items() if those.guarded]
    for name in users:
        if name not in left_out and (absent := [b for b in guarded_ones if name not in by_broker[b].users]):
            notes[f"{name} is no user of {', '.join(absent)}, and becomes one of the whole cluster"] = None
    kept = {name: user for name, user in users.items() if name not in left_out}
    return Found(kept, left_out, list(notes), bool(guarded_ones))


async def ask(source: Source, address: str, settings: Mapping[str, str]) -> Found:
    """Ask one master. Raises MigrationError."""
    kind = guarded(settings)
    if not kind:
        return Found(guarded=False)
    try:
        if kind == "4.9":
            return plain(await source.admin.ask(address, RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG))
        users = managed(
            await source.admin.ask(address, RequestCode.AUTH_LIST_USER),
            await source.admin.ask(address, RequestCode.AUTH_LIST_ACL),
        )
        return replace(users, notes=[*settings_notes(settings), *users.notes])
    except FAILURES as error:
        raise MigrationError(f"{address} does not give its users: {error}") from error


async def ask_all(place: SourcePlace, brokers: Sequence[str], cluster: str | None) -> Found:
    """Ask the masters of these brokers. Raises MigrationError, SourceBroken."""
    by_broker = {}
    for broker in brokers:
        source = Source(list(place.name_servers), broker, cluster=cluster, credentials=place.credentials, tls=place.tls)
        async with source:
            look = await source.look()
            by_broker[broker] = await ask(source, look.address, look.settings)
    return merged(by_broker)


def lines(users: Found) -> list[dict[str, Any]]:
    """Return what is shown of the users: never a key."""
    rows: list[dict[str, Any]] = [
        {"user": name, "comes": True, "super": user.super, "rules": len(user.rules), "note": ""}
        for name, user in sorted(users.users.items())
    ]
    rows += [
        {"user": name, "comes": False, "super": None, "rules": None, "note": why}
        for name, why in sorted(users.left_out.items())
    ]
    return rows
