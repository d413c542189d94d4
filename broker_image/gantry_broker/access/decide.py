"""Whether a user may do something: RocketMQ's ACL 2.0, with its order of rules.

Of the rules that match resource, action and source, one decides: a rule for the resource's type comes before one for
every type, a literal name before a prefix, a longer prefix before a shorter one, a prefix before the pattern Any.
Between equals Deny comes before Allow. Without a matching rule the answer is no. A super user may do everything.

Names with a meaning: `%RETRY%group` and `%DLQ%group` belong to their group. Topics that a broker keeps for itself are
matched by literal rules only, so that no one reads half messages by a prefix.

The table comes as plain values (`AccessTable.model_dump()`, or JSON that a broker has checked): a NameServer has no
models.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any, Final

from gantry_broker.protocol.codes import (
    DLQ_PREFIX,
    OFFSET_MOVED_EVENT_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    SYSTEM_TOPIC_PREFIX,
    TRANS_CHECK_MAX_TIME_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
)
from gantry_broker.protocol.rights import GROUP, PUB, SUB, TOPIC

ANY: Final = "Any"
LITERAL: Final = "Literal"
PREFIX: Final = "Prefix"

ENABLED: Final = "Enabled"
PERMISSIVE: Final = "Permissive"
DISABLED: Final = "Disabled"
_STRICT: Final = (DISABLED, PERMISSIVE, ENABLED)

INTERNAL_TOPICS: Final = frozenset(
    {
        SCHEDULE_TOPIC,
        TRANS_HALF_TOPIC,
        TRANS_OP_HALF_TOPIC,
        TRANS_CHECK_MAX_TIME_TOPIC,
        OFFSET_MOVED_EVENT_TOPIC,
    }
)
"""Topics of the broker itself; so are those that begin with `rmq_sys_`."""

Network = IPv4Network | IPv6Network


def is_internal(topic: str) -> bool:
    return topic in INTERNAL_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX)


def resource(kind: str, name: str, action: str) -> tuple[str, str, str]:
    """Return type, name and action as rules see them: topics of a group are the group, and sending to one is Sub."""
    if kind == TOPIC and name.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        group = name[name.index("%", 1) + 1 :].partition("+")[0]  # POP's retry topics are `%RETRY%group+topic`.
        return GROUP, group, SUB if action == PUB else action
    return kind, name, action


@lru_cache(maxsize=256)
def _actions(names: tuple[str, ...]) -> frozenset[str]:
    """Rules share these: fewer objects make collections of garbage shorter."""
    return frozenset(names)


@lru_cache(maxsize=256)
def _networks(sources: tuple[str, ...]) -> tuple[Network, ...]:
    return tuple(ip_network(source, strict=False) for source in sources)


@dataclass(frozen=True, slots=True)
class Rule:
    type: str
    name: str
    pattern: str
    actions: frozenset[str]
    deny: bool = False
    networks: tuple[Network, ...] = ()

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> Rule:
        """Check and return a rule. Raises ValueError and KeyError for a value that `table.Rule` refuses."""
        return cls(
            value["type"],
            value["name"],
            value["pattern"],
            _actions(tuple(value["actions"])),
            value["decision"] == "Deny",
            _networks(tuple(value["sources"])),
        )

    def matches(self, kind: str, name: str, action: str, address: str) -> bool:
        if self.type not in (kind, ANY):
            return False
        if self.pattern == LITERAL:
            fits = self.name == name
        elif kind == TOPIC and is_internal(name):
            fits = False
        else:
            fits = self.pattern == ANY or name.startswith(self.name)
        return fits and (action in self.actions or ANY in self.actions) and self._from(address)

    def _from(self, address: str) -> bool:
        if not self.networks:
            return True
        try:
            from_address = ip_address(address)
        except ValueError:
            return False
        return any(from_address.version == network.version and from_address in network for network in self.networks)

    def rank(self) -> tuple[int, int, int, int]:
        """Return the rule with the highest rank decides."""
        of_pattern = {LITERAL: 2, PREFIX: 1, ANY: 0}[self.pattern]
        return int(self.type != ANY), of_pattern, len(self.name) if self.pattern == PREFIX else 0, int(self.deny)


class RuleIndex:
    """Finds the few rules that may match a name: one request may name thousands of topics."""

    __slots__ = ("_literal", "_others", "_prefixes")

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._literal: dict[tuple[str, str], list[Rule]] = {}
        self._prefixes: dict[str, dict[int, dict[str, list[Rule]]]] = {}
        """By type, and by the length of the name."""
        self._others: dict[str, list[Rule]] = {}
        for rule in rules:
            if rule.pattern == LITERAL:
                self._literal.setdefault((rule.type, rule.name), []).append(rule)
            elif rule.pattern == PREFIX:
                of_length = self._prefixes.setdefault(rule.type, {}).setdefault(len(rule.name), {})
                of_length.setdefault(rule.name, []).append(rule)
            else:
                self._others.setdefault(rule.type, []).append(rule)

    def near(self, kind: str, name: str) -> list[Rule]:
        """Return all rules that match this resource, and perhaps some more."""
        rules: list[Rule] = []
        for kind_of_rule in (kind, ANY):
            rules += self._literal.get((kind_of_rule, name), ())
            for length, names in self._prefixes.get(kind_of_rule, {}).items():
                rules += names.get(name[:length], ())
            rules += self._others.get(kind_of_rule, ())
        return rules


@dataclass(frozen=True, slots=True)
class Quota:
    """Bytes and messages a second; None: any number."""

    bytes_per_second: int | None = None
    messages_per_second: int | None = None

    def __bool__(self) -> bool:
        return self.bytes_per_second is not None or self.messages_per_second is not None


@dataclass(frozen=True, slots=True)
class User:
    name: str
    keys: tuple[bytes, ...] = field(default=(), repr=False)
    super: bool = False
    enabled: bool = True
    quota: Quota | None = None
    connections: int | None = None
    rules: tuple[Rule, ...] = ()
    index: RuleIndex = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "index", RuleIndex(self.rules))

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> User:
        """Check and return a user. Raises ValueError and KeyError for a value that `table.User` refuses."""
        return cls(
            value["name"],
            tuple(key.encode() for key in value["keys"]),
            value["super"],
            value["enabled"],
            Quota(value["bytesPerSecond"], value["messagesPerSecond"]) or None,
            value["connections"],
            tuple(Rule.of(rule) for rule in value["rules"]),
        )

    def may(self, kind: str, name: str, actions: Iterable[str], address: str) -> bool:
        """Whether this user may do one of these actions with the resource, from this address."""
        return self.super or any(self._may(*resource(kind, name, action), address) for action in actions)

    def _may(self, kind: str, name: str, action: str, address: str) -> bool:
        rules = [rule for rule in self.index.near(kind, name) if rule.matches(kind, name, action, address)]
        return bool(rules) and not max(rules, key=Rule.rank).deny


@dataclass(frozen=True, slots=True)
class Policy:
    """A table as requests are decided by it. Two policies are different ones also when they are equal."""

    version: int
    mode: str
    users: Mapping[str, User] = field(default_factory=dict)
    topic_quotas: Mapping[str, Quota] = field(default_factory=dict)

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Policy:
        """Check and return a policy. Raises ValueError for a value that `table.AccessTable` refuses."""
        try:
            if not isinstance(table["version"], int) or table["mode"] not in _STRICT:
                raise ValueError("version or mode is not one of an access table")
            return cls(
                table["version"],
                table["mode"],
                {user["name"]: User.of(user) for user in table["users"]},
                {
                    quota["topic"]: Quota(quota["bytesPerSecond"], quota["messagesPerSecond"])
                    for quota in table["topicQuotas"]
                },
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"this is no access table: {type(error).__name__}") from None

    def at_least(self, mode: str) -> Policy:
        """Return this policy, with that mode if it is the stricter one."""
        return replace(self, mode=mode) if _STRICT.index(mode) > _STRICT.index(self.mode) else self
