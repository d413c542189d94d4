"""The status of a topic or consumer group from the outcome of a decision, without the times of transitions. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gantry_operator.topics.model import Result, State, WantedGroup, WantedTopic
from gantry_operator.topics.wanted import GROUP_ROW, TOPIC_ROW, row_to_json

MAX_MESSAGE = 1_500


def conditions(result: Result, generation: int | None) -> list[dict[str, Any]]:
    """Ready and Synced, and TableCurrent of a topic with a table."""
    rows = [_condition("Ready", result.ready, generation), _condition("Synced", result.synced, generation)]
    if result.table_current is not None:
        rows.append(_condition("TableCurrent", result.table_current, generation))
    return rows


def _condition(kind: str, state: State, generation: int | None) -> dict[str, Any]:
    out: dict[str, Any] = {"type": kind, "status": state.status, "reason": state.reason}
    out["message"] = state.message[:MAX_MESSAGE]
    return out if generation is None else out | {"observedGeneration": generation}


def topic_status(w: WantedTopic, result: Result) -> dict[str, Any]:
    rows = result.now
    permissions = {str(row[2]) for row in rows.values()}
    out = {
        "observedGeneration": w.generation,
        "topicName": w.topic,
        "queues": sum(int(row[0]) for row in rows.values() if "Write" in str(row[2])),
        "permission": min(permissions, key=_strength) if permissions else "",
        "groups": [row_to_json(g, rows[g], TOPIC_ROW) for g in sorted(rows)],
        "syncedAttributes": dict(result.recorded.attributes),
    }
    if result.table is not None:
        out["table"] = result.table.model_dump(mode="json", exclude_none=True)
    return _common(out, result, w.generation, TOPIC_ROW)


def _strength(permission: str) -> int:
    return ("None", "ReadOnly", "WriteOnly", "ReadWrite").index(permission)


def group_status(w: WantedGroup, result: Result, reset: Mapping[str, Any] | None) -> dict[str, Any]:
    out: dict[str, Any] = {
        "observedGeneration": w.generation,
        "groupName": w.group,
        "members": result.members,
        "lag": result.lag,
        "topics": list(result.topics),
        "groups": [row_to_json(g, result.now[g], GROUP_ROW) for g in sorted(result.now)],
    }
    if reset is not None:
        out["reset"] = dict(reset)
    return _common(out, result, w.generation, GROUP_ROW)


def _common(out: dict[str, Any], result: Result, generation: int, fields: tuple[str, ...]) -> dict[str, Any]:
    recorded = result.recorded
    out["syncedGroups"] = [row_to_json(g, recorded.rows[g], fields) for g in sorted(recorded.rows)]
    if recorded.origin:
        out["origin"] = recorded.origin
    if recorded.generation is not None:
        out["syncedGeneration"] = recorded.generation
    out["conditions"] = conditions(result, generation)
    return out


def failed(result: Result, why: str) -> Result:
    """Return the result after the brokers refused a step."""
    state = State("False", "RefusedByBroker", why)
    ready = result.ready if result.ready.status == "True" else state
    return replace(result, ready=ready, synced=state, busy=True)
