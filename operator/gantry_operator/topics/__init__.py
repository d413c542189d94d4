"""Topics and consumer groups as resources: from what is wanted and what brokers have to the next safe steps. Pure."""

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
