"""Checks of names that clients send. Pure."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final

from gantry_broker.access.decide import is_internal
from gantry_broker.protocol.codes import AUTO_CREATE_TOPIC
from gantry_broker.protocol.grpc_contract import Code, v2
from gantry_broker.proxy.answers import Refusal

MAX_TOPIC: Final = 127
MAX_GROUP: Final = 255
MAX_CLIENT_ID: Final = 255
_VALID: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
_RULE: Final = "allowing only ^[%|a-zA-Z0-9_-]+$"
_SYSTEM: Final = frozenset(
    {AUTO_CREATE_TOPIC, "SELF_TEST_TOPIC", "BenchmarkTest", "DefaultCluster", "OFFSET_MOVED_EVENT"}
)
_SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"


def resource_name(resource: Any) -> str:
    """Return the name of a `Resource` as brokers know it: with its namespace before it."""
    namespace: str = resource.resource_namespace
    name: str = resource.name
    return f"{namespace}%{name}" if namespace and name and not name.startswith(f"{namespace}%") else name


def named(resource: Any) -> bytes:
    """Return the bytes of a `Resource` as its client names it, without fields that are not known."""
    data: bytes = v2.Resource(resource_namespace=resource.resource_namespace, name=resource.name).SerializeToString()
    return data


def topic_name(resource: Any) -> str:
    """Return a topic's name. Raises Refusal."""
    name = resource_name(resource)
    problem = _topic_problem(name)
    if problem:
        raise Refusal(Code.ILLEGAL_TOPIC, problem)
    return name


def group_name(resource: Any) -> str:
    """Return a consumer group's name. Raises Refusal."""
    name = resource_name(resource)
    problem = _group_problem(name)
    if problem:
        raise Refusal(Code.ILLEGAL_CONSUMER_GROUP, problem)
    return name


@lru_cache(maxsize=4_096)
def _topic_problem(name: str) -> str:
    if not name.strip():
        return "The specified topic is blank"
    if not _VALID.fullmatch(name):
        return f"The specified topic[{name[:100]}] contains illegal characters, {_RULE}"
    if len(name) > MAX_TOPIC:
        return f"The specified topic is longer than topic max length {MAX_TOPIC}."
    if name in _SYSTEM or is_internal(name):
        return "cannot access system topic"
    return ""


@lru_cache(maxsize=4_096)
def _group_problem(name: str) -> str:
    if not name.strip():
        return "the specified group is blank"
    if len(name) > MAX_GROUP:
        return f"the specified group is longer than group max length {MAX_GROUP}."
    if not _VALID.fullmatch(name):
        return f"the specified group[{name[:100]}] contains illegal characters, {_RULE}"
    if name.startswith(_SYSTEM_GROUP_PREFIX):
        return "cannot use system consumer group"
    return ""
