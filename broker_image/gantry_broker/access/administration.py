"""Users and rules in the words of mqadmin: requests 3001 to 3010 of 5.x, and 50 to 54 of 4.9.

Each function gets the users in force and returns the user as it is afterwards, or a value for the answer. Secret keys
go one way: no answer has one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from pydantic import ValidationError

from gantry_broker.access.plain_acl import narrowed, rules_of, user_of
from gantry_broker.access.table import Rule, User
from gantry_broker.protocol.rights import ACTIONS

KINDS: Final = {"topic": "Topic", "group": "Group", "cluster": "Cluster"}
_ACTIONS: Final = {action.lower(): action for action in ACTIONS} | {"all": "Any", "any": "Any"}


class Wrong(ValueError):
    """The request cannot be carried out; the text says why, without a key."""


def _changed(user: User, **values: Any) -> User:
    """Return a user with other values, checked again. Raises Wrong."""
    try:
        return User.model_validate({**user.model_dump(), **values})
    except ValidationError as error:
        raise Wrong(_text(error)) from None


def _text(error: ValidationError) -> str:
    first = error.errors()[0]
    if first["loc"][:1] == ("keys",):
        return "the password must have 8 to 256 characters"
    return f"{'.'.join(str(part) for part in first['loc']) or 'the value'}: {first['msg']}"


# ---- users (5.x)


def created(users: Mapping[str, User], name: str, info: Mapping[str, Any]) -> User:
    """AUTH_CREATE_USER. A user that is there with the same key and type stays: mqadmin asks each broker."""
    key, is_super = info.get("password"), _super(info.get("userType"))
    if not isinstance(key, str) or not key:
        raise Wrong("the password is absent; 8 to 256 characters are expected")
    before = users.get(name)
    if before is not None:
        if before.keys[0] == key and before.super == bool(is_super):
            return before
        raise Wrong(f"The user is existed: {name}")
    try:
        user = User(name=name, keys=(key,), super=bool(is_super), enabled=_enabled(info.get("userStatus")) is not False)
    except ValidationError as error:
        raise Wrong(_text(error)) from None
    return user


def updated(users: Mapping[str, User], name: str, info: Mapping[str, Any]) -> User:
    """AUTH_UPDATE_USER: what the request names changes. A new key replaces all keys: rotation with an overlap is the
    control plane's.
    """
    user = existing(users, name)
    values: dict[str, Any] = {}
    key = info.get("password")
    if isinstance(key, str) and key:
        values["keys"] = (key,)
    if (is_super := _super(info.get("userType"))) is not None:
        values["super"] = is_super
    if (enabled := _enabled(info.get("userStatus"))) is not None:
        values["enabled"] = enabled
    if not values:
        raise Wrong("nothing to change: password, userType or userStatus is expected")
    return _changed(user, **values)


def existing(users: Mapping[str, User], name: str) -> User:
    user = users.get(name)
    if user is None:
        raise Wrong(f"The user is not exist: {name[:128]}")
    return user


def keeps_a_super_user(users: Mapping[str, User], name: str, after: User | None) -> None:
    """Check that users can still be changed. Raises Wrong when no one could change users any more."""
    left = [user for user in users.values() if user.name != name] + ([] if after is None else [after])
    if not any(user.super and user.enabled for user in left):
        raise Wrong(f"{name} is the last enabled super user: make another one first")


def _super(value: Any) -> bool | None:
    if not value:
        return None
    kind = str(value).lower()
    if kind not in ("super", "normal"):
        raise Wrong(f"userType is {str(value)[:40]!r}; Super or Normal is expected")
    return kind == "super"


def _enabled(value: Any) -> bool | None:
    if not value:
        return None
    status = str(value).lower()
    if status not in ("enable", "disable"):
        raise Wrong(f"userStatus is {str(value)[:40]!r}; enable or disable is expected")
    return status == "enable"


def user_info(user: User) -> dict[str, Any]:
    """5.x's `UserInfo`, without the password."""
    return {
        "username": user.name,
        "password": None,
        "userType": "Super" if user.super else "Normal",
        "userStatus": "enable" if user.enabled else "disable",
    }


def list_users(users: Mapping[str, User], part: str) -> list[dict[str, Any]]:
    """`part`: of the name; empty: all users."""
    return [user_info(user) for name, user in sorted(users.items()) if part in name]


# ---- rules (5.x)


def subject_name(subject: str) -> str:
    """Return the user of "User:name". Raises Wrong."""
    kind, colon, name = subject.partition(":")
    if not colon or kind.lower() != "user" or not name:
        raise Wrong(f"the subject is {subject[:80]!r}; User:name is expected")
    return name


def parse_resource(text: str) -> tuple[str, str, str]:
    """(type, name, pattern) of "Topic:name", "Topic:prefix*", "Group:*" or "*". Raises Wrong."""
    if text == "*":
        return "Any", "*", "Any"
    kind, colon, name = text.partition(":")
    kind_name = KINDS.get(kind.lower())
    if not colon or kind_name is None or not name:
        raise Wrong(
            f"the resource is {text[:80]!r}; Topic:name, Group:name, Cluster:name, Topic:prefix* or * is expected"
        )
    if name == "*":
        return kind_name, "*", "Any"
    if name.endswith("*"):
        return kind_name, name[:-1], "Prefix"
    return kind_name, name, "Literal"


def resource_text(rule: Rule) -> str:
    if rule.type == "Any":
        return "*"
    name = {"Any": "*", "Prefix": f"{rule.name}*"}.get(rule.pattern, rule.name)
    return f"{rule.type}:{name}"


def _key(rule: Rule) -> tuple[str, str, str]:
    return rule.type, "*" if rule.pattern == "Any" else rule.name, rule.pattern


def acl_rules(info: Mapping[str, Any]) -> list[Rule]:
    """Return the rules of 5.x's `AclInfo`. Raises Wrong."""
    rules = []
    policies = info.get("policies")
    for policy in policies if isinstance(policies, list) else []:
        entries = policy.get("entries") if isinstance(policy, dict) else None
        for entry in entries if isinstance(entries, list) else []:
            if not isinstance(entry, dict):
                raise Wrong("an entry of a policy is no JSON object")
            rules.append(_entry(entry))
    if not rules:
        raise Wrong("The body of acl is null: policies with entries are expected")
    return rules


def _entry(entry: Mapping[str, Any]) -> Rule:
    kind, name, pattern = parse_resource(str(entry.get("resource") or ""))
    actions = []
    for action in entry.get("actions") or []:
        known_action = _ACTIONS.get(str(action).lower())
        if known_action is None:
            raise Wrong(f"the action is {str(action)[:40]!r}; one of {', '.join(ACTIONS)} or All is expected")
        actions.append(known_action)
    decision = str(entry.get("decision") or "").lower()
    if decision not in ("allow", "deny"):
        raise Wrong(f"the decision is {decision[:40]!r}; Allow or Deny is expected")
    value = {
        "type": kind,
        "name": name,
        "pattern": pattern,
        "actions": actions,
        "decision": decision.capitalize(),
        "sources": [str(source) for source in entry.get("sourceIps") or []],
    }
    try:
        return Rule.model_validate(value)
    except ValidationError as error:
        raise Wrong(_text(error)) from None


def with_rules(users: Mapping[str, User], name: str, info: Mapping[str, Any]) -> User:
    """AUTH_CREATE_ACL and AUTH_UPDATE_ACL: each entry replaces the user's rules for the same resource."""
    user = existing(users, name)
    new = acl_rules(info)
    replaced = {_key(rule) for rule in new}
    rules = [rule for rule in user.rules if _key(rule) not in replaced] + new
    return _changed(user, rules=[rule.model_dump() for rule in rules])


def without_rules(users: Mapping[str, User], name: str, resource: str) -> User:
    """AUTH_DELETE_ACL: the rules for a resource; without one all rules."""
    user = existing(users, name)
    if not resource:
        return _changed(user, rules=[])
    gone = parse_resource(resource)
    return _changed(user, rules=[rule.model_dump() for rule in user.rules if _key(rule) != gone])


def acl_info(user: User, resource: str = "") -> dict[str, Any]:
    """5.x's `AclInfo` of a user; with `resource` the rules for resources that contain this text."""
    entries = [
        {
            "resource": resource_text(rule),
            "actions": ["All" if action == "Any" else action for action in rule.actions],
            "sourceIps": list(rule.sources),
            "decision": rule.decision,
        }
        for rule in user.rules
        if resource in resource_text(rule)
    ]
    policies = [{"policyType": "Custom", "entries": entries}] if entries else []
    return {"subject": f"User:{user.name}", "policies": policies}


def list_acls(users: Iterable[User], subject: str, resource: str) -> list[dict[str, Any]]:
    infos = [acl_info(user, resource) for user in users if subject in f"User:{user.name}"]
    return [info for info in infos if info["policies"]]


# ---- 4.9


def plain_config(users: Mapping[str, User], ext: Mapping[str, str]) -> User:
    """UPDATE_AND_CREATE_ACL_CONFIG (50): the account as the request describes it. Raises Wrong.

    A permission that the request does not name stays as it is for a user that is there.
    """
    name = ext.get("accessKey", "")
    before = users.get(name)
    key = ext.get("secretKey") or (before.keys[0] if before is not None else "")
    admin = ext.get("admin", "")
    if admin not in ("", "true", "false"):
        raise Wrong(f"admin is {admin[:40]!r}; true or false is expected")
    try:
        rules = rules_of(
            topics=_listed(ext.get("topicPerms")),
            groups=_listed(ext.get("groupPerms")),
            every_topic=ext.get("defaultTopicPerm") or "DENY",
            every_group=ext.get("defaultGroupPerm") or "DENY",
        )
        account = user_of(name, key, admin == "true", rules, f"account {name[:128]}")
    except ValueError as error:
        raise Wrong(str(error)) from None
    if before is None:
        return account
    new = {_key(rule) for rule in account.rules}
    # DENY has no rule, and ends a default that was there.
    new |= {(kind, "*", "Any") for kind in ("Topic", "Group") if ext.get(f"default{kind}Perm")}
    rules = [rule for rule in before.rules if _key(rule) not in new] + list(account.rules)
    # A new entry counts beside the defaults that are there, and a new default beside the entries.
    touched = {kind for kind, name, _ in new if name == "*"}
    rules += [rule for rule in narrowed(rules) if rule.type in touched or _key(rule) in new]
    return _changed(
        before,
        keys=account.keys if ext.get("secretKey") else before.keys,
        super=account.super if admin else before.super,
        rules=[rule.model_dump() for rule in rules],
    )


def _listed(text: str | None) -> list[str]:
    return [part for part in (text or "").split(",") if part.strip()]


def plain_configs(users: Mapping[str, User]) -> dict[str, Any]:
    """GET_BROKER_CLUSTER_ACL_CONFIG (54): the accounts, without keys. Only what 4.9 can say is in it."""
    accounts = []
    for _, user in sorted(users.items()):
        account: dict[str, Any] = {
            "accessKey": user.name,
            "secretKey": None,
            "whiteRemoteAddress": None,
            "admin": user.super,
            "defaultTopicPerm": "DENY",
            "defaultGroupPerm": "DENY",
            "topicPerms": [],
            "groupPerms": [],
        }
        for rule in user.rules:
            perm = _perm(rule)
            if rule.type not in ("Topic", "Group") or perm is None:
                continue
            if rule.pattern == "Any":
                account[f"default{rule.type}Perm"] = perm
            elif rule.pattern == "Literal":
                account[f"{rule.type.lower()}Perms"].append(f"{rule.name}={perm}")
        accounts.append(account)
    return {"globalWhiteAddrs": [], "plainAccessConfigs": accounts}


def _perm(rule: Rule) -> str | None:
    words = [word for word, action in (("PUB", "Pub"), ("SUB", "Sub")) if {action, "Any"} & set(rule.actions)]
    if rule.decision == "Deny":
        return "DENY" if len(words) == 2 else None  # One that denies less narrows an entry that allows.
    return "|".join(words) or None
