"""The access table: users, their keys and rules, and quotas. The control plane writes it, every member holds it.

These are the models of its JSON form, as `PUT /v1/access` and the file beside the store have it. `decide.Policy` is
the same table in the form in which requests are decided. Secret keys never appear in a repr or in an error.
"""

from __future__ import annotations

from ipaddress import ip_network
from typing import Annotated, Any, Final, Literal, Self

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

MAX_VERSION: Final = 2**53
MAX_USERS: Final = 2_000
MAX_RULES: Final = 500
"""Rules of one user."""
MAX_ALL_RULES: Final = 20_000
"""Rules of all users together."""
MAX_SOURCES: Final = 100
"""Networks of one rule."""
MAX_TOPIC_QUOTAS: Final = 2_000
MAX_CHANGES: Final = 1_000
"""Changes of one member that no table has merged yet."""
NAME: Final = r"^[A-Za-z0-9._-]{1,128}$"
"""A user's name, which is its access key."""

Mode = Literal["Enabled", "Permissive", "Disabled"]
Action = Literal["Pub", "Sub", "Create", "Update", "Delete", "Get", "List", "Any"]
Kind = Literal["Topic", "Group", "Cluster", "Any"]
Pattern = Literal["Literal", "Prefix", "Any"]
Name = Annotated[str, Field(pattern=NAME)]
Key = Annotated[str, Field(min_length=8, max_length=256)]
Rate = Annotated[int, Field(ge=1, le=2**53)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, defer_build=True)


class Rule(_Model):
    """What a user may do, or may not do. Without `sources` it counts everywhere."""

    type: Kind
    name: str = Field("", max_length=255)
    pattern: Pattern = "Literal"
    actions: tuple[Action, ...] = Field(min_length=1, max_length=16)
    decision: Literal["Allow", "Deny"] = "Allow"
    sources: tuple[str, ...] = Field((), max_length=MAX_SOURCES)

    @field_validator("sources")
    @classmethod
    def _networks(cls, sources: tuple[str, ...]) -> tuple[str, ...]:
        for source in sources:
            try:
                ip_network(source, strict=False)
            except ValueError:
                raise ValueError(
                    f"{source[:60]!r} is no network: write an address or a network as 10.0.0.0/8"
                ) from None
        return sources

    @model_validator(mode="after")
    def _named(self) -> Self:
        if self.pattern != "Any" and not self.name:
            raise ValueError(f"a rule with pattern {self.pattern} needs a name, or pattern Any")
        return self


class User(_Model):
    """One user. `keys`: its valid secret keys, newest first; two of them while a key is rotated."""

    name: Name
    keys: tuple[Key, ...] = Field(min_length=1, max_length=2, repr=False)
    super: bool = False
    enabled: bool = True
    bytesPerSecond: Rate | None = None
    messagesPerSecond: Rate | None = None
    connections: Rate | None = None
    rules: tuple[Rule, ...] = Field((), max_length=MAX_RULES)


class TopicQuota(_Model):
    topic: str = Field(min_length=1, max_length=255)
    bytesPerSecond: Rate | None = None
    messagesPerSecond: Rate | None = None


Version = Annotated[int, Field(strict=True, ge=0, le=MAX_VERSION)]


class AccessTable(_Model):
    """PUT /v1/access. `merged`: by member, the number of its last change that is part of this table."""

    version: Version
    mode: Mode
    users: tuple[User, ...] = Field((), max_length=MAX_USERS)
    topicQuotas: tuple[TopicQuota, ...] = Field((), max_length=MAX_TOPIC_QUOTAS)
    merged: dict[Annotated[str, Field(max_length=255)], Version] = Field(default_factory=dict, max_length=10_000)

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        names = [user.name for user in self.users]
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"user {twice!r} is in the table twice")
        if (rules := sum(len(user.rules) for user in self.users)) > MAX_ALL_RULES:
            raise ValueError(f"all users together have {rules} rules, the limit is {MAX_ALL_RULES}")
        topics = [quota.topic for quota in self.topicQuotas]
        if len(set(topics)) != len(topics):
            raise ValueError("a topic has two quotas in topicQuotas")
        return self


def read_table(body: bytes) -> AccessTable:
    """Read a table (JSON). Raises ValueError (ValidationError is one); its text has no values but names and networks.

    It reads one user after another: a thread that calls it lets other threads work in between, which one call for a
    table of 4 MiB would not.
    """
    try:
        value: Any = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"the table is not JSON: {error}") from None
    if not isinstance(value, dict) or not isinstance(value.get("users"), list):
        return AccessTable.model_validate(value)
    if len(value["users"]) > MAX_USERS:
        raise ValueError(f"users has {len(value['users'])} entries, the limit is {MAX_USERS}")
    return AccessTable.model_validate({**value, "users": [_user(at, user) for at, user in enumerate(value["users"])]})


def _user(at: int, value: Any) -> User:
    try:
        return User.model_validate(value)
    except ValidationError as error:
        raise ValueError(faults(error, f"users.{at}")) from None


def faults(error: ValidationError, at: str = "") -> str:
    """Return the first faults with their fields, never with their values. `at`: the field that was read."""
    lines = []
    for fault in error.errors()[:5]:
        place = ".".join([*([at] if at else []), *map(str, fault["loc"])]) or "table"
        lines.append(f"{place}: {fault['msg']}")
    return "; ".join(lines)


def table_json(table: AccessTable) -> bytes:
    """Return the table as JSON, made from one user after another, as `read_table` reads it."""
    value = table.model_dump(mode="json", exclude={"users"})
    return orjson.dumps({**value, "users": [orjson.Fragment(user.model_dump_json()) for user in table.users]})


Operation = Literal["CreateUser", "UpdateUser", "DeleteUser", "CreateAcl", "UpdateAcl", "DeleteAcl"]


class Change(_Model):
    """What mqadmin changed at one member: the whole user after the change, None when it was deleted."""

    number: Version
    op: Operation
    name: Name
    user: User | None = None
    by: str = Field("", max_length=128, description="The super user who asked for it.")
    at_ms: int = Field(0, ge=0, le=MAX_VERSION, description="Unix milliseconds.")


class Changes(_Model):
    """GET /v1/access/changes. `version`: of the table that the member holds; `number`: of the last change ever made."""

    version: Version
    number: Version = 0
    changes: tuple[Change, ...] = Field((), max_length=MAX_CHANGES)


class AccessAnswer(_Model):
    """The version that the member holds after a PUT /v1/access."""

    version: Version
