"""The tables of an empty log: RocketMQ's system topics and groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantry_broker.broker.metadata.tables import Tables
from gantry_broker.broker.metadata.topics import system_topics
from gantry_broker.protocol.bodies import SubscriptionGroup, TopicConfig
from gantry_broker.protocol.codes import AUTO_CREATE_TOPIC, PREDEFINED_GROUPS

if TYPE_CHECKING:
    from gantry_broker.config import BrokerConfig
    from gantry_broker.settings import BrokerSettings


def base_tables(config: BrokerConfig, settings: BrokerSettings, levels: int) -> Tables:
    """Return the tables of an empty log. `levels`: number of delay levels."""
    tables = Tables()
    for name, queues, perm in system_topics(config.cluster, config.group, levels, settings.traceTopicEnable):
        if name == AUTO_CREATE_TOPIC and not settings.autoCreateTopicEnable:
            continue
        count = settings.defaultTopicQueueNums if name == AUTO_CREATE_TOPIC else queues
        tables.topics[name] = TopicConfig(name, count, count, perm)
    for name in sorted(PREDEFINED_GROUPS):
        tables.groups[name] = SubscriptionGroup(name)
    return tables
