"""What the decisions about topics and consumer groups depend on, and what they result in. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from gantry_broker.protocol.bodies import SubscriptionGroup, TopicConfig

from gantry_operator.api.table import Table, TableStatus
from gantry_operator.topics.seen import BrokerTables

Row = tuple[int | bool | str, ...]
"""The configuration of a topic or group on one broker group, as far as a status shows it."""
Origin = Literal["", "Created", "Adopted"]
SETTLE_S = 75.0
"""Seconds for which removed queues must be quiet before they are read no more: producers look for routes every 30 s."""


@dataclass(frozen=True, slots=True)
class RecordedState:
    """What the status remembers of a resource."""

    origin: Origin = ""
    generation: int | None = None
    """Of the spec that all brokers had at the same time, last."""
    rows: Mapping[str, Row] = field(default_factory=dict)
    """By broker group: its configuration at that time."""
    attributes: Mapping[str, str] = field(default_factory=dict)
    """Attributes that the resource has set."""


@dataclass(frozen=True, slots=True)
class WantedTopic:
    """One BrokerTopic. None: what the brokers have stays."""

    resource: str
    topic: str
    generation: int = 1
    created: str = ""
    queues: int | None = None
    per_group: int | None = None
    perm: int | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)
    report: bool = False
    """Changes of others are reported only."""
    delete: bool = False
    """The topic is deleted with the resource."""
    force: bool = False
    deleting: bool = False
    """The resource is being deleted."""
    held: bool = False
    """It cannot go before this program lets it go, and its topic may have lost its permission to write."""
    recorded: RecordedState = field(default_factory=RecordedState)
    table: Table | None = None
    """The topic as a table; None: it has none."""
    table_status: TableStatus | None = None
    """What the status remembers of the table."""


@dataclass(frozen=True, slots=True)
class WantedGroup:
    """One ConsumerGroup."""

    resource: str
    group: str
    generation: int = 1
    created: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `SubscriptionGroup` that the spec names."""
    report: bool = False
    delete: bool = False
    force: bool = False
    deleting: bool = False
    recorded: RecordedState = field(default_factory=RecordedState)


@dataclass(frozen=True, slots=True)
class Observed:
    """What the brokers of a cluster say."""

    cluster: str
    groups: Sequence[str]
    """Broker groups in the order of the spec."""
    tables: Mapping[str, BrokerTables | None]
    """By broker group; None: no master answers now."""
    draining: frozenset[str] = frozenset()
    """Broker groups that are being emptied: they get nothing new, and nothing there is changed."""
    held: str = ""
    """Why nothing may be changed; empty: it may."""


# ---- steps


@dataclass(frozen=True, slots=True)
class PutTopic:
    """Create or change a topic on one broker group. `attributes`: changes in RocketMQ's form, +name=value or -name."""

    group: str
    config: TopicConfig
    attributes: tuple[str, ...] = ()
    resource: str = ""


@dataclass(frozen=True, slots=True)
class DropTopic:
    group: str
    topic: str
    resource: str = ""


@dataclass(frozen=True, slots=True)
class PutGroup:
    group: str
    config: SubscriptionGroup
    resource: str = ""


@dataclass(frozen=True, slots=True)
class DropGroup:
    """Delete a consumer group with its offsets on one broker group."""

    group: str
    name: str
    resource: str = ""


Step = PutTopic | DropTopic | PutGroup | DropGroup


# ---- results


@dataclass(frozen=True, slots=True)
class State:
    """A condition without its times."""

    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome for one resource."""

    ready: State
    synced: State
    recorded: RecordedState = field(default_factory=RecordedState)
    now: Mapping[str, Row] = field(default_factory=dict)
    """Its configuration by broker group, as the brokers have it."""
    members: int = 0
    lag: int = 0
    topics: tuple[str, ...] = ()
    finalizer: bool = False
    """The resource must not go before the brokers have deleted what it names."""
    busy: bool = False
    """It waits for something that may come soon."""
    blind: bool = False
    """The only thing missing is the answer of a broker group."""
    table: TableStatus | None = None
    """The topic's table; None: it has none."""
    table_current: State | None = None
    """Whether the table follows the topic."""


@dataclass(frozen=True, slots=True)
class Note:
    """An event about one resource."""

    kind: Literal["Normal", "Warning"]
    reason: str
    message: str
    resource: str


@dataclass(frozen=True, slots=True)
class Settling:
    """Queues that take no new messages, and are watched until they are quiet."""

    since: float
    ends: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Decision:
    """`results` by resource; their `recorded.origin` must be kept before the first of `steps`."""

    steps: list[Step]
    results: dict[str, Result]
    notes: list[Note]
    settling: dict[tuple[str, str], Settling] = field(default_factory=dict)
    """By broker group and topic, for the next decision."""
    ask: set[str] = field(default_factory=set)
    """Topics that lose queues: the tables for the next decision say whether something is not delivered to them yet."""


def refusal_of_name(name: str, kind: str, field: str, resource: str, first: str, *, of_system: bool) -> State | None:
    """Why a resource may not describe what it names: the system manages it, or an older resource does.

    `kind`: of the resource; `field`: with the name; `first`: the oldest resource with this name.
    """
    thing = "topic" if kind == "BrokerTopic" else "group"
    if of_system:
        return State(
            "False", f"System{thing.capitalize()}", f"{name} is a {thing} of the system, which brokers manage "
            f"themselves: delete this object, and create one with another {field}",
        )  # fmt: skip
    if first != resource:
        return State(
            "False", "NameTaken", f"{thing} {name} belongs to {kind} {first}: delete one of the two, or create this "
            f"one with another {field}",
        )  # fmt: skip
    return None
