"""The steps of a cutover in seeded histories: kills, answers that are missing, aborts, and a source that goes on."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from gantry_broker.protocol.codes import FORMER_MASTER_ID
from gantry_operator.migration import cutover_steps
from gantry_operator.migration.cutover_steps import Carry, Finish, Limits, Phase, Record, Refused, Seen, SetSource

LIMITS = Limits(lag=1000, settle=6.0, quiet=0.5, quiet_at_most=5.0)


class Settings(NamedTuple):
    permission: int
    broker_id: int
    refuses: bool


class Slave:
    """A slave of a source. It keeps its settings while it is down."""

    def __init__(self, permission: int) -> None:
        self.up, self.settings = True, Settings(permission, 1, False)


class World:
    """Sources and copies of some groups, one second at a time."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.now = 1000.0
        self.permission = {"a": 6, "b": rng.choice((6, 7))}
        self.first = dict(self.permission)
        self.number = {"a": 0, "b": 0}
        self.refuses = {"a": False, "b": False}
        self.end = {"a": 100, "b": 200}
        self.copy = {"a": 100, "b": 200}
        self.grown_at = {"a": 0.0, "b": 0.0}
        self.leads: dict[str, int] = {}
        self.accepted: dict[str, int] = {}
        self.stopped = False
        self.can_carry = rng.random() < 0.7
        self.keeps = rng.random() < 0.6
        """What the NameServers are taken for: of 5.x, which keep Gantry's address against the source's."""
        self.yields = not self.keeps or rng.random() < 0.2
        """Whether they give the place back to a source that registers."""
        self.place = {"a": "source", "b": "source"}
        self.late = False
        """An abort has waited long enough for a copy's member."""
        self.carries = {"a": False, "b": False}
        self.slaves = {name: Slave(permission) for name, permission in self.first.items()}

    def turn(self) -> None:
        self.now += self.rng.choice((0.2, 1.0, 3.0))
        for name in self.end:
            if self.rng.random() < 0.02:
                self.drop(name)  # The copy's member was started again.
            if self.carries[name]:
                self.place[name] = "gantry"
            if self.rng.random() < 0.2:
                self.registers(name)
            if self.rng.random() < 0.05:
                self.slaves[name].up = not self.slaves[name].up
            # Deliveries of delayed messages go on.
            if (not self.refuses[name] and self.rng.random() < 0.8) or self.rng.random() < 0.05:
                self.end[name] += self.rng.randrange(1, 50)
                self.grown_at[name] = self.now
            if name not in self.leads and self.rng.random() < 0.8:
                self.copy[name] = self.end[name]

    def drop(self, name: str) -> None:
        self.carries[name] = False
        if self.place[name] == "gantry":
            self.place[name] = "nobody"

    def registers(self, name: str) -> None:
        """The source does so every half minute, and at each change of its settings."""
        if self.number[name] == 0 and (self.yields or not self.carries[name]):
            self.place[name] = "source"

    def seen(self) -> dict[str, Seen]:
        found = {}
        for name in self.end:
            silent, slave = self.rng.random() < 0.1, self.slaves[name]
            found[name] = Seen(
                brokers={"s:1": slave.settings.broker_id} if slave.up else {},
                settings={"s:1": None if self.rng.random() < 0.1 else slave.settings} if slave.up else {},
                state="leads" if name in self.leads else "following" if self.rng.random() < 0.9 else None,
                copy_end=self.copy[name],
                source_end=None if silent else self.end[name],
                quiet=0.0 if silent else self.now - self.grown_at[name],
                permission=None if silent else self.permission[name],
                broker_id=None if silent else self.number[name],
                refuses=None if silent else self.refuses[name],
                can_carry=self.can_carry and name not in self.leads,
                carries=None if name in self.leads or silent else self.carries[name],
                routed=name in self.leads or (self.place[name] == "gantry" and self.rng.random() < 0.7),
                listed=self.place[name] == "gantry",
                keeps_place=self.keeps,
            )
        return found

    def act(self, action: cutover_steps.Action) -> None:
        if self.rng.random() < 0.15:
            return
        if isinstance(action, Carry):
            assert self.can_carry
            self.carries[action.group] = action.on
            if action.on:
                self.place[action.group] = "gantry"
            return
        if isinstance(action, SetSource):
            aside = action.broker_id == FORMER_MASTER_ID
            alone = not self.carries[action.group] or self.late or self.keeps
            assert aside or alone, "two masters in the routes"
            if aside and not action.refuses and self.number[action.group] != FORMER_MASTER_ID:
                assert self.carries[action.group], "a route without a master"
            self.permission[action.group], self.number[action.group] = action.permission, action.broker_id
            self.refuses[action.group] = action.refuses
            self.registers(action.group)
            slave = self.slaves[action.group]
            if slave.up and self.rng.random() < 0.8:
                slave.settings = Settings(action.permission, 1 + action.broker_id, action.refuses)
            return
        assert isinstance(action, Finish)
        assert all(self.refuses.values()), "a group leads while a source takes messages"
        if self.copy[action.group] >= action.end:
            self.leads[action.group] = action.end


@pytest.mark.parametrize("seed", range(300))
def test_a_cutover_goes_on_or_goes_back_wherever_it_is_killed(seed: int) -> None:
    rng = random.Random(seed)
    world = World(rng)
    saved = json.dumps(Record().to_json())
    aborts = 0
    for _ in range(600):
        world.turn()
        record = Record.from_json(json.loads(saved))  # Each pass may be that of a new process.
        if record.phase is Phase.DONE:
            break
        seen = world.seen()
        try:
            if record.phase is Phase.FOLLOWING:
                assert world.permission == world.first
                assert not any(world.refuses.values())
                assert set(world.number.values()) == {0}
                assert not any(world.carries.values())
                assert "gantry" not in world.place.values(), "clients find an address that nobody serves"
                for name, slave in world.slaves.items():
                    known = record.groups[name].brokers if name in record.groups else {}
                    has = (*slave.settings,)
                    assert has == (world.first[name], 1, False) or known == {"s:1": 1}, "nobody knows what it lacks"
                if rng.random() < 0.5 and record.groups:
                    record = cutover_steps.abort(record, world.now)
                assert not world.leads
                if record.phase is Phase.FOLLOWING:
                    record = cutover_steps.begin(record, seen, LIMITS, world.now)
            elif aborts < 3 and rng.random() < 0.05:
                record = cutover_steps.abort(record, world.now)
                aborts += 1
        except Refused:
            if world.leads:
                assert record.phase in (Phase.FINISHING, Phase.TAKING)
            continue
        made = cutover_steps.step(record, seen, LIMITS, world.now)
        saved = json.dumps(made.record.to_json())
        world.late = made.record.phase is Phase.ABORTING and world.now - record.since >= LIMITS.quiet_at_most
        if rng.random() < 0.1:
            continue  # Killed between the record and its actions.
        for action in made.actions:
            if rng.random() < 0.05:
                break
            world.act(action)
        if world.leads:
            assert made.record.phase in (Phase.FINISHING, Phase.TAKING, Phase.DONE)
    else:
        pytest.fail(f"it is never done: {saved}")
    assert world.leads.keys() == {"a", "b"}
    assert all(group.finished for group in record.groups.values())


def ready(**more: Any) -> Seen:
    now = Seen(state="following", copy_end=10, source_end=10, permission=6, broker_id=0, refuses=False)
    return replace(now, **more)


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (ready(state="broken", problem="torn"), "the migration stopped: torn"),
        (ready(state=None, problem="no answer"), "is not ready: no answer"),
        (ready(source_end=5000), "lacks 0 MiB"),
        (ready(source_end=None), "is not ready"),
        (ready(permission=4), "not a master that clients read and write .brokerPermission=4"),
        # Of another cutover, which is under way: its permission would be given back by an abort, and no more.
        (ready(permission=2), "brokerPermission=2"),
        (ready(broker_id=FORMER_MASTER_ID), "end the cutover that did this"),
        (ready(refuses=True), "set brokerPermission=6, brokerId=0 and startAcceptSendRequestTimeStamp=0"),
    ],
)
def test_a_cutover_that_cannot_be_is_refused_before_anything_changes(seen: Seen, said: str) -> None:
    with pytest.raises(Refused, match=said):
        cutover_steps.begin(Record(), {"a": seen}, LIMITS, 0)


def test_there_is_no_way_back_once_a_group_may_finish() -> None:
    for phase in (Phase.FINISHING, Phase.TAKING):
        with pytest.raises(Refused, match="Gantry may have taken messages"):
            cutover_steps.abort(Record(phase), 0)
    with pytest.raises(Refused, match="gantry migrate rollback returns to it"):
        cutover_steps.abort(Record(Phase.DONE), 0)


def test_clients_have_time_to_learn_the_new_address_before_producers_are_refused() -> None:
    seen = ready(can_carry=True, carries=False)
    record = cutover_steps.begin(Record(), {"a": seen}, LIMITS, 100)
    assert cutover_steps.step(record, {"a": seen}, LIMITS, 100).actions == (Carry("a", True),)
    seen = replace(seen, carries=True)
    aside = cutover_steps.step(record, {"a": seen}, LIMITS, 101)
    assert aside.actions == (SetSource("a", 6, FORMER_MASTER_ID, False),)
    seen = replace(seen, broker_id=FORMER_MASTER_ID, routed=True)
    routed = cutover_steps.step(record, {"a": seen}, LIMITS, 102)
    assert routed.record.phase is Phase.ROUTED
    assert cutover_steps.step(routed.record, {"a": seen}, LIMITS, 133).record.phase is Phase.ROUTED
    assert cutover_steps.step(routed.record, {"a": seen}, LIMITS, 135).record.phase is Phase.READERS_OFF


def test_a_source_keeps_its_number_where_its_nameservers_keep_gantrys_address() -> None:
    """Under another number a 5.x delivers nothing that waits."""
    seen = ready(can_carry=True, carries=True, routed=True, listed=True, keeps_place=True)
    record = cutover_steps.begin(Record(), {"a": seen}, LIMITS, 100)
    made = cutover_steps.step(record, {"a": seen}, LIMITS, 100)
    assert (made.record.phase, made.actions) == (Phase.ROUTED, ())
    made = cutover_steps.step(made.record, {"a": seen}, LIMITS, 133)
    assert cutover_steps.step(made.record, {"a": seen}, LIMITS, 133).actions == (SetSource("a", 2, 0, False),)
    made = cutover_steps.step(replace(made.record, phase=Phase.WRITES_OFF), {"a": seen}, LIMITS, 140)
    assert made.actions == (SetSource("a", 0, FORMER_MASTER_ID, True),)
    # A NameServer that gives the place back all the same.
    routed = replace(record, phase=Phase.ROUTED)
    made = cutover_steps.step(routed, {"a": replace(seen, routed=False)}, LIMITS, 120)
    assert (made.record.phase, made.record.aside) == (Phase.ROUTING, True)
    made = cutover_steps.step(made.record, {"a": seen}, LIMITS, 121)
    assert made.actions == (SetSource("a", 6, FORMER_MASTER_ID, False),)


def test_an_abort_lets_the_source_register_where_only_its_address_is_missing() -> None:
    record = Record(Phase.ABORTING, 100, {"a": cutover_steps.Group(6)}, carried=True)
    seen = ready(carries=False, listed=True, routed=True, keeps_place=True)
    assert cutover_steps.step(record, {"a": seen}, LIMITS, 101).actions == (SetSource("a", 6, 0, False),)
    assert cutover_steps.step(record, {"a": replace(seen, listed=False)}, LIMITS, 101).record.phase is Phase.FOLLOWING
    # It is not waited for long: the source registers every half minute.
    assert cutover_steps.step(record, {"a": seen}, LIMITS, 131).record.phase is Phase.FOLLOWING


def test_a_record_of_a_former_release_has_a_source_that_stands_aside() -> None:
    value = {"phase": "routed", "since": 1.0, "groups": {}, "carried": True}
    assert Record.from_json(value).aside
    assert not Record.from_json(value | {"aside": False}).aside
    assert Record.from_json(value).to_json() == value | {"aside": True}


def test_consumers_have_time_to_commit_before_producers_are_refused() -> None:
    record = cutover_steps.begin(Record(), {"a": ready()}, LIMITS, 100)
    first = cutover_steps.step(record, {"a": ready()}, LIMITS, 100)
    assert first.actions == (SetSource("a", 2, 0, False),)
    assert cutover_steps.step(first.record, {"a": ready(permission=2)}, LIMITS, 105).record.phase is Phase.READERS_OFF
    assert cutover_steps.step(first.record, {"a": ready(permission=2)}, LIMITS, 107).record.phase is Phase.WRITES_OFF


BAD_GROUP = {"permission": -1, "end": None, "finished": False}
BAD_BROKER = {"permission": 6, "end": None, "finished": False, "brokers": {"s:1": 900}}


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"phase": "x", "since": 0, "groups": {}},
        {"phase": "done", "since": 0, "groups": {"a": BAD_GROUP}},
        {"phase": "done", "since": 0, "groups": {"a": BAD_BROKER}},
    ],
)
def test_a_record_of_another_form_is_refused(value: dict[str, object]) -> None:
    with pytest.raises((ValueError, KeyError)):
        Record.from_json(value)


def ended(**more: Any) -> Seen:
    """A source that takes no messages."""
    return ready(**({"permission": 0, "broker_id": FORMER_MASTER_ID, "refuses": True, "quiet": 1.0} | more))


def test_behind_the_point_of_no_return_the_copy_needs_nothing_of_the_source() -> None:
    """A source whose log goes on and on, or that names an end that never comes, may die then."""
    record = Record(Phase.WRITES_OFF, 100, {"a": cutover_steps.Group(6)})
    for end in (10**15, 2 * 10**15, 3 * 10**15):
        made = cutover_steps.step(record, {"a": ended(copy_end=10, source_end=end, quiet=0.0)}, LIMITS, 200)
        assert made.record.phase is Phase.WRITES_OFF, made
        assert "bytes are missing" in made.waits
        record = made.record
    assert cutover_steps.abort(record, 201).phase is Phase.ABORTING
    # Deliveries of delayed messages go on: the end of which it was known first is enough.
    record = Record(Phase.WRITES_OFF, 100, {"a": cutover_steps.Group(6)})
    record = cutover_steps.step(record, {"a": ended(copy_end=10, source_end=20, quiet=0.0)}, LIMITS, 200).record
    record = cutover_steps.step(record, {"a": ended(copy_end=20, source_end=30, quiet=0.0)}, LIMITS, 201).record
    assert record == Record(Phase.FINISHING, 201, {"a": cutover_steps.Group(6, 20)})


def test_a_source_that_was_started_again_while_copies_finish_takes_no_messages_on() -> None:
    """It may have no file that keeps its settings. What it takes is acknowledged, and has to arrive."""
    record = Record(Phase.FINISHING, 100, {"a": cutover_steps.Group(6, 10), "b": cutover_steps.Group(6, 10)})
    again = ready(source_end=15, copy_end=15, quiet=9.0)
    made = cutover_steps.step(record, {"a": ended(), "b": again}, LIMITS, 101)
    assert made.actions == (SetSource("b", 0, FORMER_MASTER_ID, True),)
    made = cutover_steps.step(
        made.record, {"a": ended(), "b": ended(source_end=17, copy_end=15, quiet=0.0)}, LIMITS, 102
    )
    assert made.actions == (Finish("a", 10),)
    made = cutover_steps.step(
        made.record, {"a": ended(state="leads"), "b": ended(source_end=17, copy_end=15)}, LIMITS, 103
    )
    assert made.actions == ()
    made = cutover_steps.step(
        made.record, {"a": ended(state="leads"), "b": ended(source_end=17, copy_end=17)}, LIMITS, 104
    )
    assert made.actions == (Finish("b", 17),)
    # A source that is away needs nothing, and one whose group leads is held back all the same.
    gone = Seen(state="following", copy_end=10)
    assert cutover_steps.step(record, {"a": gone, "b": ended()}, LIMITS, 101).actions == (
        Finish("a", 10),
        Finish("b", 10),
    )
    made = cutover_steps.step(record, {"a": ready(state="leads"), "b": ended()}, LIMITS, 101)
    assert made.actions == (SetSource("a", 0, FORMER_MASTER_ID, True),)
    assert made.record.groups["a"].finished


def test_a_copy_that_stopped_for_good_can_be_left_while_no_group_leads() -> None:
    record = Record(Phase.FINISHING, 100, {"a": cutover_steps.Group(6, 10), "b": cutover_steps.Group(6, 10)})
    broken = ended(state="broken", problem="torn")
    assert "torn" in cutover_steps.step(record, {"a": broken, "b": ended()}, LIMITS, 101).waits
    assert cutover_steps.abort(record, 101, {"a": broken, "b": ended()}).phase is Phase.ABORTING
    finished = Record(Phase.FINISHING, 100, {"a": cutover_steps.Group(6, 10), "b": cutover_steps.Group(6, 10, True)})
    for seen, known in (
        ({"a": broken, "b": ended(state="leads")}, record),
        ({"a": broken, "b": ended(state="finishing")}, record),
        ({"a": broken, "b": ended(state=None)}, record),
        ({"a": ended(), "b": ended()}, record),
        ({"a": broken}, record),
        ({"a": broken, "b": broken}, finished),
    ):
        with pytest.raises(Refused, match="Gantry may have taken messages"):
            cutover_steps.abort(known, 101, seen)


def test_a_group_that_the_spec_lost_in_the_middle_is_named() -> None:
    for phase in Phase:
        record = Record(phase, 100, {"a": cutover_steps.Group(6, 10), "old": cutover_steps.Group(6, 10)}, carried=True)
        with pytest.raises(Refused, match="the spec has no group old"):
            cutover_steps.step(record, {"a": ready()}, LIMITS, 101)


def test_an_abort_gives_slaves_back_what_they_had_and_waits_for_no_dead_one() -> None:
    record = Record(Phase.ABORTING, 100, {"a": cutover_steps.Group(6, brokers={"s:1": 1})})
    back = SetSource("a", 6, 0, False)
    for lacks in (
        ready(brokers={"s:1": 901}),
        ready(brokers={"s:1": 1}, settings={"s:1": Settings(0, 1, False)}),
        ready(brokers={"s:1": 1}, settings={"s:1": Settings(6, 1, True)}),
        ready(brokers={"s:1": 1}, settings={"s:1": None}),
    ):
        assert cutover_steps.step(record, {"a": lacks}, LIMITS, 110).actions == (back,)
        late = cutover_steps.step(record, {"a": lacks}, LIMITS, 131).record
        assert (late.phase, late.groups["a"].brokers) == (Phase.FOLLOWING, {"s:1": 1})
    whole = ready(brokers={"s:1": 1}, settings={"s:1": Settings(6, 1, False)})
    assert cutover_steps.step(record, {"a": whole}, LIMITS, 110).record == Record(Phase.FOLLOWING, 110)
    assert cutover_steps.step(record, {"a": ready()}, LIMITS, 110).record.phase is Phase.FOLLOWING, "one that is away"


def test_a_slave_that_was_away_at_an_abort_is_known_until_a_later_one_gives_it_back() -> None:
    # It is noted before anything is changed, and dies in the middle.
    there = ready(brokers={"s:1": 1, "s:2": 2})
    record = cutover_steps.step(
        cutover_steps.begin(Record(), {"a": there}, LIMITS, 100), {"a": there}, LIMITS, 100
    ).record
    assert record.groups["a"].brokers == {"s:1": 1, "s:2": 2}
    aside = ready(permission=2, brokers={"s:2": 902})
    record = cutover_steps.abort(Record.from_json(json.loads(json.dumps(record.to_json()))), 101, {"a": aside})
    one = ready(brokers={"s:2": 2}, settings={"s:2": Settings(6, 2, False)})
    waits = cutover_steps.step(record, {"a": one}, LIMITS, 102)
    assert (waits.record, waits.actions, waits.waits) == (record, (), "s:1 of the source is not in the routes")
    record = cutover_steps.step(record, {"a": one}, LIMITS, 112).record
    assert (record.phase, record.groups["a"].brokers) == (Phase.FOLLOWING, {"s:1": 1})
    said = cutover_steps.said_owed(cutover_steps.still_owed(record, {"a": one}), "run gantry migrate abort")
    assert "group a: s:1. Start them, then run gantry migrate abort" in said
    # A cutover may begin all the same, and its abort knows it, too.
    assert cutover_steps.begin(record, {"a": one}, LIMITS, 113).groups["a"].brokers == {"s:1": 1}
    # It is back.
    again = cutover_steps.abort(record, 114, {"a": ready(brokers={"s:1": 901})})
    assert cutover_steps.step(again, {"a": ready(brokers={"s:1": 901})}, LIMITS, 115).actions == (
        SetSource("a", 6, 0, False),
    )
    whole = ready(brokers={"s:1": 1}, settings={"s:1": Settings(6, 1, False)})
    assert cutover_steps.still_owed(record, {"a": whole}) == {}
    assert cutover_steps.step(again, {"a": whole}, LIMITS, 115).record == Record(Phase.FOLLOWING, 115)
    assert cutover_steps.said_owed({}, "") == ""


def test_a_slave_that_has_another_address_now_is_done_with_and_a_former_master_is_not() -> None:
    back = SetSource("a", 6, 0, False)
    fine = Settings(6, 1, False)
    assert cutover_steps.owed({"s:1": 1}, back, {"s:9": 1}, {"s:9": fine}) == {}
    assert cutover_steps.owed({"s:1": 1}, back, {"s:9": 901}, {"s:9": fine}) == {"s:1": 1}
    # Under a controller another one is the master now.
    assert cutover_steps.owed({"s:1": 0}, back, {"s:2": 0}, {"s:2": fine}) == {"s:1": 0}
    assert cutover_steps.owed({"s:1": 0}, back, {"s:2": 0, "s:1": 1}, {"s:1": Settings(0, 1, True)}) == {"s:1": 0}
    assert cutover_steps.owed({"s:1": 0}, back, {"s:2": 0, "s:1": 1}, {"s:1": fine}) == {}


def test_a_nameserver_that_is_gone_ends_a_cutover_later_and_is_named() -> None:
    record = Record(Phase.TAKING, 100, {"a": cutover_steps.Group(6, 10, True)})
    seen = ended(state="leads", routed=True, silent=("n:2",))
    made = cutover_steps.step(record, {"a": seen}, LIMITS, 105)
    assert (made.record.phase, made.waits[-19:]) == (Phase.TAKING, "n:2 does not answer")
    assert cutover_steps.step(record, {"a": seen}, LIMITS, 111).record.phase is Phase.DONE
    assert cutover_steps.step(record, {"a": replace(seen, routed=None)}, LIMITS, 999).record.phase is Phase.TAKING
    # Clients learn Gantry's address from each of them before the source ends writes.
    record = Record(Phase.ROUTING, 100, {"a": cutover_steps.Group(6)}, carried=True)
    seen = ready(carries=True, broker_id=FORMER_MASTER_ID, routed=True, silent=("n:2",))
    assert cutover_steps.step(record, {"a": seen}, LIMITS, 999).record.phase is Phase.ROUTING
