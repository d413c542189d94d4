"""Topics and consumer groups as resources: from what is wanted and what brokers have to the next safe steps. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gantry_broker.lazily import lazily

if TYPE_CHECKING:
    from gantry_operator.topics.groups import decide_groups
    from gantry_operator.topics.model import (
        Decision,
        DropGroup,
        DropTopic,
        Note,
        Observed,
        PutGroup,
        PutTopic,
        Result,
        Settling,
        State,
        Step,
        WantedGroup,
        WantedTopic,
    )
    from gantry_operator.topics.plan import decide_topics
    from gantry_operator.topics.seen import BadTables, BrokerTables
    from gantry_operator.topics.spread import queues_by_group
    from gantry_operator.topics.wanted import wanted_group, wanted_topic

__all__ = [
    "BadTables",
    "BrokerTables",
    "Decision",
    "DropGroup",
    "DropTopic",
    "Note",
    "Observed",
    "PutGroup",
    "PutTopic",
    "Result",
    "Settling",
    "State",
    "Step",
    "WantedGroup",
    "WantedTopic",
    "decide_groups",
    "decide_topics",
    "queues_by_group",
    "wanted_group",
    "wanted_topic",
]

__getattr__ = lazily(
    __name__,
    {
        "gantry_operator.topics.groups": "decide_groups",
        "gantry_operator.topics.model": (
            "Decision DropGroup DropTopic Note Observed PutGroup PutTopic Result Settling State Step WantedGroup "
            "WantedTopic"
        ),
        "gantry_operator.topics.plan": "decide_topics",
        "gantry_operator.topics.seen": "BadTables BrokerTables",
        "gantry_operator.topics.spread": "queues_by_group",
        "gantry_operator.topics.wanted": "wanted_group wanted_topic",
    },
)
