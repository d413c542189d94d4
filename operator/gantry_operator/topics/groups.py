"""The next safe steps for the consumer groups of a cluster. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gantry_broker.protocol.bodies import SubscriptionGroup
from gantry_broker.protocol.codes import DLQ_PREFIX, RETRY_PREFIX

from gantry_operator.api.reserved_names import reserved_group
from gantry_operator.topics.common import (
    DELETED,
    TO_KEEP,
    applying,
    blind,
    drifted,
    first_of_each,
    in_words,
    on_hold,
    origin_of,
    ready,
    synced,
)
from gantry_operator.topics.group_fields import GROUP_FIELDS
from gantry_operator.topics.model import (
    Decision,
    DropGroup,
    DropTopic,
    Note,
    Observed,
    PutGroup,
    RecordedState,
    Result,
    Row,
    State,
    Step,
    WantedGroup,
    refusal_of_name,
)
from gantry_operator.topics.seen import BrokerTables

TOPICS_SHOWN = 50


def decide_groups(wanted: Sequence[WantedGroup], seen: Observed) -> Decision:
    """Return the steps for all groups. Raises BadTables."""
    decision = Decision([], {}, [])
    first = first_of_each(wanted, lambda w: w.group)
    for w in wanted:
        why = _refusal(w, first[w.group])
        if why is not None:
            decision.results[w.resource] = Result(why, replace(why, message="see Ready"), w.recorded)
        elif w.deleting:
            decision.results[w.resource] = _deletion(w, seen, decision.steps, decision.notes)
        else:
            decision.results[w.resource] = _one(w, seen, decision.steps, decision.notes)
    return decision


def _refusal(w: WantedGroup, first: WantedGroup) -> State | None:
    system = reserved_group(w.group)
    return refusal_of_name(w.group, "ConsumerGroup", "groupName", w.resource, first.resource, of_system=system)


def row_of(config: SubscriptionGroup) -> Row:
    return tuple(getattr(config, ours) for ours in GROUP_FIELDS.values())


def _one(w: WantedGroup, seen: Observed, all_steps: list[Step], notes: list[Note]) -> Result:
    answering = {g: t for g, t in seen.tables.items() if t is not None}
    silent = [g for g, t in seen.tables.items() if t is None and g not in seen.draining]
    configs = {g: c for g, t in answering.items() if (c := t.consumer_group(w.group)) is not None}
    rows = {g: row_of(c) for g, c in configs.items()}
    origin = origin_of(w.recorded, bool(configs), bool(answering))
    if origin == "Adopted" and not w.recorded.origin:
        notes.append(Note("Normal", "GroupAdopted", f"the brokers have {w.group} already", w.resource))
    steps: list[Step] = []
    drift: list[str] = []
    like = next(iter(configs.values()), SubscriptionGroup(w.group))
    for group in seen.groups:
        if group not in answering or group in seen.draining:
            continue
        config = configs.get(group)
        target = replace(like if config is None else config, **w.settings)
        if config == target:
            continue
        differences = [f"{group}: {d}" for d in _differences(config, target)]
        same_spec = w.recorded.generation == w.generation
        if same_spec and group in w.recorded.rows and w.recorded.rows[group] != rows.get(group):
            drift += differences
            if w.report:
                continue
        steps.append(PutGroup(group, target, w.resource))
    missing = [g for g in seen.groups if g in answering and g not in configs and g not in seen.draining]
    if missing:
        usable = State("False", "Missing", f"{', '.join(missing)} has no group {w.group} yet")
    else:
        usable = ready(origin, f"on {', '.join(sorted(configs))}")
    figures = _figures(w.group, answering.values())
    record = replace(w.recorded, origin=origin)
    if seen.held:
        return Result(usable, on_hold(seen.held), record, rows, *figures, finalizer=w.delete)
    if drift and not w.report:
        text = f"{w.group} was changed by others and is put back: {in_words(drift)}"
        notes.append(Note("Warning", "DriftCorrected", text, w.resource))
    all_steps.extend(steps)
    if not steps and not silent and not drift:
        record = RecordedState(origin, w.generation, rows)
    state = drifted(drift) if drift and w.report else applying(steps, ()) if steps else blind(silent, synced())
    return Result(
        blind(silent, usable), state, record, rows, *figures,
        finalizer=w.delete, busy=bool(steps or silent), blind=bool(silent) and not steps,
    )  # fmt: skip


def _figures(group: str, answering: Any) -> tuple[int, int, tuple[str, ...]]:
    """Members, lag and topics over all broker groups."""
    clients: set[str] = set()
    topics: set[str] = set()
    lag = 0
    for tables in answering:
        members = tables.members(group)
        clients |= members.clients
        topics |= {*members.topics, *tables.topics_of(group)}
        lag += tables.lag(group)
    shown = sorted(t for t in topics if not t.startswith(RETRY_PREFIX))[:TOPICS_SHOWN]
    return len(clients), lag, tuple(shown)


def _differences(now: SubscriptionGroup | None, wanted: SubscriptionGroup) -> list[str]:
    if now is None:
        return ["it is missing"]
    return [
        f"{field} {getattr(now, ours)}, wanted {getattr(wanted, ours)}"
        for field, ours in GROUP_FIELDS.items()
        if getattr(now, ours) != getattr(wanted, ours)
    ]


def _deletion(w: WantedGroup, seen: Observed, steps: list[Step], notes: list[Note]) -> Result:
    answering = {g: t for g, t in seen.tables.items() if t is not None}
    silent = [g for g, t in seen.tables.items() if t is None]
    configs = {g: c for g, t in answering.items() if (c := t.consumer_group(w.group)) is not None}
    rows = {g: row_of(c) for g, c in configs.items()}
    retry = [g for g, t in answering.items() if t.topic(RETRY_PREFIX + w.group) is not None]
    if not w.delete or (not configs and not retry and not silent):
        return Result(DELETED, DELETED, w.recorded)
    members, lag, _ = figures = _figures(w.group, answering.values())
    if seen.held:
        state = on_hold(seen.held)
    elif silent and not w.force:
        # Members and unread messages may be there.
        state = blind(silent, DELETED)
    elif members and not w.force:
        state = State(
            "False", "InUse", f"{w.group} is not deleted: {members} clients consume as it; stop them, or write "
            f"spec.force: true; {TO_KEEP}",
        )  # fmt: skip
    elif lag and configs and not w.force:
        state = State(
            "False", "Unread", f"{w.group} is not deleted: {lag} messages are unread; read them, reset its offsets to "
            f"latest, or write spec.force: true; {TO_KEEP}",
        )  # fmt: skip
    else:
        state = State("False", "Deleting", f"{w.group} is being deleted")
        for group, tables in answering.items():
            steps.extend(_dropped(w, group, tables))
        _say_of_dead_letters(w, answering, notes)
    return Result(state, state, w.recorded, rows, *figures, finalizer=True, busy=True)


def _dropped(w: WantedGroup, group: str, tables: BrokerTables) -> list[Step]:
    out: list[Step] = []
    if tables.topic(RETRY_PREFIX + w.group) is not None:
        out.append(DropTopic(group, RETRY_PREFIX + w.group, w.resource))
    dead = tables.topic(DLQ_PREFIX + w.group)
    if dead is not None and (w.force or not any(q.messages for q in dead.queues)):
        out.append(DropTopic(group, DLQ_PREFIX + w.group, w.resource))
    # The last one: as long as the group exists, the others are tried again.
    out.append(DropGroup(group, w.group, w.resource))
    return out


def _say_of_dead_letters(w: WantedGroup, answering: Mapping[str, BrokerTables], notes: list[Note]) -> None:
    left = 0
    for tables in answering.values():
        dead = tables.topic(DLQ_PREFIX + w.group)
        left += 0 if dead is None else sum(q.messages for q in dead.queues)
    if left and not w.force:
        text = f"{left} dead letters of {w.group} stay in {DLQ_PREFIX}{w.group} until they expire"
        notes.append(Note("Normal", "DeadLettersKept", text, w.resource))
