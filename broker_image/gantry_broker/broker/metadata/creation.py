"""Topics and consumer groups that the broker creates on demand, as `TopicConfigManager` of 4.9.7 does."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from gantry_broker.broker.errors import RequestRejected
from gantry_broker.broker.metadata.creation_limits import CreationRate, too_many_groups, too_many_topics, too_soon
from gantry_broker.broker.metadata.topics import is_system_topic, retry_topic
from gantry_broker.protocol.bodies import SubscriptionGroup, TopicConfig
from gantry_broker.protocol.codes import (
    AUTO_CREATE_TOPIC,
    DLQ_PREFIX,
    PREDEFINED_GROUPS,
    RETRY_PREFIX,
    Perm,
    ResponseCode,
)
from gantry_broker.store.errors import StoreError

if TYPE_CHECKING:
    from gantry_broker.broker.clock import Clock
    from gantry_broker.broker.health import MemberHealth
    from gantry_broker.broker.metadata.changes import MetadataChanges
    from gantry_broker.broker.metadata.tables import Change, Metadata
    from gantry_broker.broker.role import RoleState
    from gantry_broker.settings import BrokerSettings
    from gantry_broker.timeslice import TimeSlices

log = logging.getLogger(__name__)


class OnDemandCreation:
    """Creates topics and groups within the limits of the settings and of `creation_limits`."""

    def __init__(
        self,
        settings: BrokerSettings,
        meta: Metadata,
        changes: MetadataChanges,
        *,
        role: RoleState,
        health: MemberHealth,
        slices: TimeSlices,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._meta = meta
        self._changes = changes
        self._role = role
        self._health = health
        self._slices = slices
        self._clock = clock
        self._rate = CreationRate()

    def check_limits(self, *, topics: Sequence[str] = (), groups: Sequence[str] = (), on_demand: bool = True) -> None:
        """Raise RequestRejected for too many topics or groups, or too many in a short time.

        `on_demand`: no request names them; the broker creates these at a limited rate.
        """
        tables = self._meta.working
        new_topics = len({name for name in topics if name not in tables.topics and not is_system_topic(name)})
        new_groups = len({name for name in groups if name not in tables.groups})
        if not new_topics and not new_groups:
            return
        settings = self._settings
        fault = too_many_topics(len(tables.topics), new_topics, settings.maxTopics) or too_many_groups(
            len(tables.groups), new_groups, settings.maxSubscriptionGroups
        )
        if fault is not None:
            raise RequestRejected(ResponseCode.SYSTEM_ERROR, fault)
        # A group and its %RETRY% topic count once.
        if on_demand and not self._rate.take(max(new_topics, new_groups), self._clock.now_ms()):
            raise RequestRejected(ResponseCode.SYSTEM_BUSY, too_soon(new_topics, new_groups))

    def ensure_topic(self, name: str, queues: int, perm: int, sys_flag: int = 0) -> TopicConfig:
        """Return a topic that the broker itself needs, and create it if necessary.

        Raises RequestRejected, NotWritable and StoreError.
        """
        present = self._meta.working.topics.get(name)
        if present is not None:
            return present
        self.check_limits(topics=[name])
        self._changes.append({"topics": [TopicConfig(name, queues, queues, perm, sys_flag=sys_flag).to_json()]})
        return self._meta.working.topics[name]

    def topic_for(self, name: str, default_topic: str, queues: int) -> TopicConfig | None:
        """Return the topic that a send to an unknown topic would create; None: the send may not create it. Changes
        nothing.

        As `createTopicInSendMessageMethod` of 4.9.7.
        """
        if name.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            return TopicConfig(name, 1, 1, Perm.READ | Perm.WRITE)
        pattern = self._meta.working.topics.get(default_topic)
        if pattern is None or not pattern.perm & Perm.INHERIT:
            return None
        settings = self._settings
        if default_topic == AUTO_CREATE_TOPIC and not settings.autoCreateTopicEnable:
            return None
        limit = settings.defaultTopicQueueNums if default_topic == AUTO_CREATE_TOPIC else pattern.write_queues
        count = max(min(queues, limit), 1)
        return TopicConfig(name, count, count, pattern.perm & ~Perm.INHERIT)

    def make_topic(self, topic: TopicConfig) -> None:
        """Create a topic for a send. Raises RequestRejected, NotWritable and StoreError."""
        self.check_limits(topics=[topic.name])
        begun = time.perf_counter()
        log.info("topic %s is created on demand with %d queues", topic.name, topic.write_queues)
        self._changes.append({"topics": [topic.to_json()]})
        self._slices.charge(time.perf_counter() - begun)

    def group_config(self, name: str) -> SubscriptionGroup | None:
        """Return a group's configuration, and create it where role and settings allow that; None: they do not."""
        present = self._meta.working.groups.get(name)
        if present is not None:
            return present
        if not self._may_make(name):
            return None
        group = SubscriptionGroup(name)
        if self._role.may_append:
            self.check_limits(groups=[name])
            self._append({"groups": [group.to_json()]})
        return group

    def group_configs(self, names: Iterable[str]) -> dict[str, SubscriptionGroup]:
        """Return the configurations of a client's consumer groups; one record creates the new ones and their retry
        topics.

        Leaves out groups that it may not create. Raises RequestRejected for too many new ones, and then creates none.
        """
        tables = self._meta.working
        configs: dict[str, SubscriptionGroup] = {}
        new: list[SubscriptionGroup] = []
        for name in names:
            group = tables.groups.get(name)
            if group is None:
                if not self._may_make(name):
                    continue
                group = SubscriptionGroup(name)
                new.append(group)
            configs[name] = group
        if not self._role.may_append:
            return configs
        topics = [
            TopicConfig(topic, queues, queues, Perm.READ | Perm.WRITE)
            for group in configs.values()
            if (topic := retry_topic(group.name)) not in tables.topics
            for queues in [max(group.retry_queues, 1)]
        ]
        if not new and not topics:
            return configs
        self.check_limits(topics=[topic.name for topic in topics], groups=[group.name for group in new])
        change: Change = {}
        if new:
            change["groups"] = [group.to_json() for group in new]
        if topics:
            change["topics"] = [topic.to_json() for topic in topics]
        self._append(change)
        return configs

    def _may_make(self, group: str) -> bool:
        return self._settings.autoCreateSubscriptionGroup or group in PREDEFINED_GROUPS

    def _append(self, change: Change) -> None:
        try:
            self._changes.append(change)
        except StoreError as error:
            self._health.store_failed(error)
