"""Rules of topic and group names, and RocketMQ's system topics, which a broker has from its first start."""

from __future__ import annotations

import re

from gantry_broker.protocol.codes import (
    AUTO_CREATE_TOPIC,
    BENCHMARK_TOPIC,
    COMPACTION_TOPIC,
    CONTROL_TOPIC,
    DLQ_PREFIX,
    NOT_ALLOWED_SEND_TOPICS,
    OFFSET_MOVED_EVENT_TOPIC,
    POP_TOPIC,
    PROBE_TOPIC,
    REPLY_TOPIC_SUFFIX,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
    SYSTEM_TOPIC_PREFIX,
    SYSTEM_TOPICS,
    TOPIC_MAX_LENGTH,
    TRACE_TOPIC,
    TRANS_HALF_TOPIC,
    Perm,
)

TIMER_TOPIC = "rmq_sys_wheel_timer"
"""Messages with an arbitrary delivery time (5.x) wait in this topic."""

NOT_SENDABLE = NOT_ALLOWED_SEND_TOPICS | {COMPACTION_TOPIC, CONTROL_TOPIC, POP_TOPIC, TIMER_TOPIC}
GROUP_MAX = 255 - len(RETRY_PREFIX)
"""Characters of a group's name. 4.9.7 has no such limit, 5.x has 120; names of %RETRY% topics end at 255."""

_NAME = re.compile(r"^[%|a-zA-Z0-9_-]+$")
_NAME_RULE = "^[%|a-zA-Z0-9_-]+$"


def is_system_topic(name: str) -> bool:
    return name in SYSTEM_TOPICS or name.startswith(SYSTEM_TOPIC_PREFIX)


def topic_fault(name: str, what: str = "topic", longest: int = TOPIC_MAX_LENGTH) -> str | None:
    """Return why a name is refused, in RocketMQ's words (TopicValidator); None: it is valid."""
    if not name or name.isspace():
        return f"The specified {what} is blank."
    # %RETRY%group+topic. No group's name has a "+": so this name says which group it belongs to.
    plain = name.replace("+", "", 1) if what == "topic" and name.startswith(RETRY_PREFIX) else name
    if _NAME.fullmatch(plain) is None:
        return f"The specified {what} contains illegal characters, allowing only {_NAME_RULE}: {name[:64]!r}"
    if len(name) > longest:
        return f"The specified {what} is longer than {what} max length {longest}: {len(name)} characters."
    return None


def group_fault(name: str) -> str | None:
    return topic_fault(name, "group", GROUP_MAX)


def retry_topic(group: str) -> str:
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    return DLQ_PREFIX + group


def system_topics(cluster: str, group: str, delay_levels: int, trace: bool) -> list[tuple[str, int, int]]:
    """Return (name, queues, permission) of the topics that 4.9.7 registers when it starts, and of Gantry's own.

    Clients and mqadmin ask the NameServer for the routes of the topics named like the cluster and like the broker.
    """
    rw = Perm.READ | Perm.WRITE
    out = [
        (SELF_TEST_TOPIC, 1, rw),
        (AUTO_CREATE_TOPIC, 8, rw | Perm.INHERIT),
        (BENCHMARK_TOPIC, 1024, rw),
        (cluster, 16, rw | Perm.INHERIT),
        (group, 1, rw | Perm.INHERIT),
        (OFFSET_MOVED_EVENT_TOPIC, 1, rw),
        (SCHEDULE_TOPIC, delay_levels, rw),
        (f"{cluster}_{REPLY_TOPIC_SUFFIX}", 1, rw),
        (TRANS_HALF_TOPIC, 1, rw),
        (PROBE_TOPIC, 1, rw),
    ]
    if trace:
        out.append((TRACE_TOPIC, 1, rw))
    return out
