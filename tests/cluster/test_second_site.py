"""The decisions about a cluster at two sites, one by one, and by random schedules of two control planes."""

from __future__ import annotations

import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from gantry_broker.contracts.models import CloseAnswer
from gantry_operator.cluster import site_control
from gantry_operator.cluster.second_site import (
    UNKNOWN,
    Instruction,
    Looked,
    MemberSite,
    Refused,
    SiteState,
    adopt,
    demote,
    demoted,
    given_up,
    instruction,
    member_site,
    not_here,
    promote,
    site_condition,
    taken,
)
from gantry_operator.cluster.site_control import GIVE_UP_S, SiteControl
from gantry_operator.cluster.status import site_of, site_row

from tests.support.present import present

ACTIVE = MemberSite("x-a-0", "a", leads=True)
STANDBY = MemberSite("x-a-0", "a", "Standby", 2, follows=True, confirmed=100, end=100)
LOOKED = Looked("a", "one", "", 100, 50_000)


def test_a_demotion_seals_then_follows_and_keeps_its_token() -> None:
    state = demote(SiteState(), [ACTIVE], "t" * 16, accept_loss=False, now_ms=1)
    assert (state.role, state.generation, state.token) == ("Demoting", 1, "t" * 16)
    assert instruction(state, ACTIVE) == Instruction("Sealed", 1, "t" * 16)
    assert demote(state, [ACTIVE], "other", accept_loss=False, now_ms=2) is state
    after = demoted(state, 3)
    assert (after.role, after.generation, after.token) == ("Standby", 2, "t" * 16)
    assert instruction(after, replace(ACTIVE, role="Sealed", generation=1)) == Instruction("Standby", 2)
    assert instruction(after, STANDBY) is None
    assert demote(after, [STANDBY], "other", accept_loss=False, now_ms=4).token == "t" * 16
    assert demote(replace(after, token=""), [], "x", accept_loss=True, now_ms=1).role == "Standby", "it is one already"
    with pytest.raises(Refused, match="is a standby: there is nothing to demote"):
        demote(replace(after, token=""), [], "x", accept_loss=False, now_ms=1)


def test_a_demotion_that_accepts_a_loss_may_be_asked_for_again() -> None:
    """As after a restart of the operator: the request is carried out once more, and the last bytes still come."""
    state = demote(SiteState(), [ACTIVE], "t", accept_loss=True, now_ms=1)
    assert (state.role, state.accept_loss) == ("Demoting", True)
    assert demote(state, [ACTIVE], "other", accept_loss=True, now_ms=2) is state
    after = demoted(state, 3)
    assert (after.role, after.token, after.accept_loss) == ("Standby", "t", False)
    assert demote(after, [STANDBY], "other", accept_loss=True, now_ms=4) is after
    stuck = demote(SiteState(), [ACTIVE], "t", accept_loss=False, now_ms=1)
    accepted = demote(stuck, [ACTIVE], "other", accept_loss=True, now_ms=2)
    assert accepted == replace(stuck, accept_loss=True)
    lost = given_up(accepted, 3)
    assert (lost.role, lost.generation, lost.token, lost.accept_loss) == ("Standby", 2, "", False)


def test_a_superseded_cluster_becomes_the_standby_only_with_accept_loss() -> None:
    superseded = replace(ACTIVE, superseded="cluster two was promoted")
    with pytest.raises(Refused, match="--accept-loss"):
        demote(SiteState(), [superseded], "t", accept_loss=False, now_ms=1)
    state = demote(SiteState(), [superseded], "t", accept_loss=True, now_ms=1)
    assert (state.role, state.generation, state.token) == ("Standby", 1, "")
    shown = present(site_condition(SiteState(), [superseded], ""))
    assert shown[:2] == ("False", "Superseded")
    assert "gantry demote --accept-loss" in shown[2]


@pytest.mark.parametrize(
    ("closed", "token", "accept", "said"),
    [
        ("", "", False, "has not handed over.*up to 10 s ago.*--accept-loss"),
        ("", "guess", False, "has not handed over"),
        ("right", "", False, "write --token"),
        ("right", "wrong", False, "another token"),
        ("right", "right", False, ""),
        ("", "", True, ""),
    ],
)
def test_a_promotion_demands_the_token_or_accept_loss(closed: str, token: str, accept: bool, said: str) -> None:
    looked, standby = [replace(LOOKED, closed=closed)], SiteState("Standby", 2)
    if said:
        with pytest.raises(Refused, match=said):
            promote(standby, looked, token, "p", accept_loss=accept, now_ms=60_000)
        return
    state = promote(standby, looked, token, "p", accept_loss=accept, now_ms=60_000)
    assert (state.role, state.generation, state.origin) == ("Promoting", 2, "p")
    assert instruction(state, STANDBY) is None, "members stay standbys until the archive is theirs"
    assert taken(state, {"a": 200}, [STANDBY], 1) == "group a: the archive ends at 200, a member has it up to 100"
    both = [STANDBY, replace(STANDBY, name="x-a-1", confirmed=99)]
    assert taken(state, {"a": 100}, both, 1, {"a": 2}) == "group a: the archive ends at 100, 1 of 2 members have it"
    done = taken(state, {"a": 100}, [STANDBY], 1)
    assert isinstance(done, SiteState)
    assert instruction(done, STANDBY) == Instruction("Active", 3, "", "p", 100)


def test_a_standby_that_cannot_read_the_archive_follows_it_no_more() -> None:
    site = {"role": "Standby", "generation": 2, "follows": True}
    fine = present(member_site("x-a-0", "a", {"site": site, "archive": {"error": ""}}))
    fails = present(member_site("x-a-1", "a", {"site": site, "archive": {"error": "the store is away"}}))
    shown = site_condition(SiteState("Standby", 2), [fine, fails], "")
    assert shown == ("True", "NotFollowing", "members that cannot read the archive now: x-a-1: the store is away")
    shown = present(site_condition(SiteState("Standby", 2), [fine, replace(fails, error="")], ""))
    assert shown[1] == "Following"
    assert member_site("x-a-0", "a", {"site": site, "archive": None}) == fine


def test_all_groups_must_be_handed_over() -> None:
    looked = [replace(LOOKED, closed="t"), replace(LOOKED, group="b")]
    with pytest.raises(Refused, match="group b: archived up to"):
        promote(SiteState("Standby"), looked, "t", "p", accept_loss=False, now_ms=60_000)


def test_a_group_that_was_handed_over_must_be_there() -> None:
    looked = [replace(LOOKED, closed="t", handed_over=("a", "b"))]
    with pytest.raises(Refused, match=r"group b was handed over, too, and this cluster has no such group: add it"):
        promote(SiteState("Standby"), looked, "t", "p", accept_loss=False, now_ms=60_000)
    assert promote(SiteState("Standby"), looked, "t", "p", accept_loss=True, now_ms=1).role == "Promoting"
    looked.append(replace(looked[0], group="b"))
    assert promote(SiteState("Standby"), looked, "t", "p", accept_loss=False, now_ms=1).role == "Promoting"


def test_a_group_of_the_archive_that_is_not_here_is_named() -> None:
    """Nobody handed it over, so it may be one that the first site had until it was lost, or one that was removed."""
    looked = [replace(LOOKED, groups=("a", "b"))]
    with pytest.raises(Refused, match=r"has group b as well, and this cluster has no such group: add it"):
        promote(SiteState("Standby"), looked, "", "p", accept_loss=False, now_ms=60_000)
    assert not_here(looked) == ["b"]
    assert not_here([replace(looked[0], handed_over=("a", "b"))]) == [], "it is refused by its name"
    assert promote(SiteState("Standby"), looked, "", "p", accept_loss=True, now_ms=1).role == "Promoting"


def test_a_promotion_that_waits_may_accept_the_loss_later() -> None:
    waits = SiteState("Promoting", 2, "t", "p")
    assert promote(waits, [], "t", "", accept_loss=False, now_ms=1) is waits
    assert promote(waits, [], "t", "", accept_loss=True, now_ms=1) == replace(waits, accept_loss=True)


def test_only_a_standby_is_promoted() -> None:
    for role in ("Active", "Demoting"):
        with pytest.raises(Refused, match="only a standby"):
            promote(SiteState(role), [LOOKED], "t", "p", accept_loss=True, now_ms=1)


def test_a_control_plane_without_state_takes_over_what_members_know() -> None:
    known = [replace(STANDBY, generation=4), replace(ACTIVE, generation=5, origin="p", origin_end=70)]
    state = adopt(SiteState(), known)
    assert (state.role, state.generation, state.origin, dict(state.ends)) == ("Active", 5, "p", {"a": 70})
    assert adopt(state, known) is state
    alone = adopt(SiteState(), known, ["a", "b"])
    lagging = replace(STANDBY, name="x-b-0", group="b", generation=4)
    assert alone.ends == {"a": 70, "b": UNKNOWN}
    assert SiteState.from_json(alone.to_json()) == alone
    assert instruction(alone, lagging) is None, "without its end it would count as complete"
    later = adopt(alone, [*known, replace(ACTIVE, group="b", generation=5, origin="p", origin_end=90)], ["a", "b"])
    assert later == replace(alone, ends={"a": 70, "b": 90})
    assert instruction(later, lagging) == Instruction("Active", 5, "", "p", 90)
    assert adopt(later, [replace(ACTIVE, group="b", generation=5, origin="p", origin_end=7)]) is later
    assert instruction(later, replace(STANDBY, group="new", generation=0)) == Instruction("Active", 5, "", "p", 0)
    sealed = adopt(SiteState(), [replace(ACTIVE, role="Sealed", generation=3, token="t")])
    assert (sealed.role, sealed.token) == ("Demoting", "t")
    assert instruction(SiteState(), replace(STANDBY, generation=0)) is None, "a new member begins as it is configured"


@pytest.mark.parametrize(
    "site",
    [None, 5, {}, {"role": "King", "generation": 1}, {"role": "Active", "generation": -1}, {"role": "Active"},
     {"role": "Active", "generation": 1, "origin_end": "x"}],
)  # fmt: skip
def test_what_no_member_says_is_not_believed(site: Any) -> None:
    assert member_site("x", "a", {"site": site, "role": "Master"}) is None


def test_state_survives_json() -> None:
    state = SiteState("Promoting", 7, "t", "p", {"a": 5}, True, 9)
    assert SiteState.from_json(state.to_json()) == state
    with pytest.raises(ValueError, match="role"):
        SiteState.from_json({"role": "x"})


class World:
    """Two sites and their archive; each takes records while it is active, and archives a part of them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.states = [SiteState(), SiteState("Standby")]
        self.logs: list[list[int]] = [[], []]
        self.archive: list[int] = []
        self.owner, self.closed = 0, ""
        self.written = 0
        self.acknowledged: list[int] = []
        self.given_up: set[int] = set()
        self.superseded = [False, False]

    def member(self, n: int) -> MemberSite:
        state = self.states[n]
        role = {"Active": "Active", "Demoting": "Sealed"}.get(state.role, "Standby")
        return MemberSite(f"m{n}", "a", role, state.generation, leads=role != "Standby", confirmed=len(self.logs[n]),
                          superseded="x" if self.superseded[n] else "")  # fmt: skip

    def step(self) -> None:
        n = self.random.randrange(2)
        state, log = self.states[n], self.logs[n]
        self.superseded[n] = state.role == "Active" and self.owner != n
        match self.random.randrange(7):
            case 0 | 1 if state.role == "Active" and self.owner == n:
                self.written += 1
                log.append(self.written)
                self.acknowledged.append(self.written)
            case 2 if self.owner == n and state.role in ("Active", "Demoting") and not self.closed:
                self.archive[:] = log[: self.random.randint(len(self.archive), len(log))]
            case 3 if state.role == "Standby":
                log[:] = self.archive[: max(len(log), self.random.randint(0, len(self.archive)))]
            case 4:
                self.ask_to_demote(n)
            case 5:
                self.ask_to_promote(n)
            case _:
                self.go_on(n)

    def ask_to_demote(self, n: int) -> None:
        accept = self.random.random() < 0.3
        token = f"token-{self.random.random()}"
        try:
            new = demote(self.states[n], [self.member(n)], token, accept_loss=accept, now_ms=1)
        except Refused:
            return
        if new.role == "Standby" and self.states[n].role in ("Active", "Demoting"):
            self.given_up |= set(self.logs[n]) - set(self.archive)
            self.logs[n] = []
        self.states[n] = new

    def ask_to_promote(self, n: int) -> None:
        accept = self.random.random() < 0.1
        token = self.closed if self.random.random() < 0.7 else "guess"
        looked = [Looked("a", "other", self.closed, len(self.archive), 1)]
        try:
            new = promote(self.states[n], looked, token, f"p-{self.random.random()}", accept_loss=accept, now_ms=1)
        except Refused:
            return
        if new is not self.states[n] and not self.closed:
            self.given_up |= set(self.acknowledged) - set(self.archive)
        self.states[n] = new

    def go_on(self, n: int) -> None:
        state = self.states[n]
        if state.role == "Demoting" and state.accept_loss and (self.owner != n or self.random.random() < 0.3):
            self.states[n] = given_up(state, 1)  # It was superseded meanwhile, or its store is away.
            self.given_up |= set(self.logs[n]) - set(self.archive)
            self.logs[n] = []
        elif state.role == "Demoting" and self.owner == n:
            self.archive[:] = self.logs[n]
            self.closed = state.token
            self.states[n] = demoted(state, 1)
        elif state.role == "Promoting":
            if self.owner != n or self.closed:
                if self.closed not in ("", state.token) and not state.accept_loss:
                    return
                if not self.closed:
                    self.given_up |= set(self.acknowledged) - set(self.archive)
                self.owner, self.closed = n, ""
            done = taken(state, {"a": len(self.archive)}, [self.member(n)], 1)
            if isinstance(done, SiteState):
                self.states[n] = done


@pytest.mark.parametrize("seed", range(300))
def test_no_record_is_lost_that_nobody_gave_up(seed: int) -> None:
    world = World(seed)
    for _ in range(400):
        world.step()
        taking = [n for n in range(2) if world.states[n].role == "Active" and world.owner == n]
        assert len(taking) <= 1, "two sites take writes"
        kept = set(world.archive) | set(world.logs[world.owner])
        lost = set(world.acknowledged) - kept - world.given_up
        assert not lost or world.states[world.owner].role in ("Standby", "Promoting"), sorted(lost)[:5]
        if taking:
            assert world.logs[taking[0]][: len(world.archive)] == world.archive


def test_the_status_keeps_the_state_with_its_time() -> None:
    state = SiteState("Demoting", 7, "t", "p", {"a": 5, "b": UNKNOWN}, True, 1_700_000_000_000)
    row = site_row(state).model_dump(mode="json", exclude_none=True)
    assert site_of(row) == state
    assert site_of(row | {"since": "yesterday"}) == replace(state, at_ms=0)


class Store:
    """What is kept."""

    def __init__(self, state: SiteState) -> None:
        self.state = state

    def load(self) -> SiteState:
        return self.state

    async def save(self, state: SiteState) -> None:
        self.state = state


class Control(SiteControl):
    """One group, whose leader cannot close its archive."""

    def __init__(self, state: SiteState, members: list[MemberSite]) -> None:
        self.store, self.said = Store(state), members
        self.answer = CloseAnswer(closed=False, end=9, archived=4, reason="archived up to 4 of 9")
        self.archive_end = 70
        watches = {n: None for n in range(len(members))}
        super().__init__(
            self.store,
            cast(Any, {"a": SimpleNamespace(watches=watches), "b": SimpleNamespace(watches=watches)}),
            cast(Any, None),
            groups=lambda: sorted({m.group for m in self.said}), follows=lambda: False, archives=lambda: True,
            on_event=lambda event: None,
        )  # fmt: skip

    def _seen(self) -> list[Any]:
        return [(SimpleNamespace(name=m.name, url=""), m) for m in self.said]

    async def _instruct(self) -> None: ...

    async def _call(self, method: str, url: str, model: Any, body: Any = None, timeout_s: float = 0) -> Any:
        return self.answer

    async def _look(self, group: str) -> Looked:
        return Looked(group, "own", "", self.archive_end, 1)


async def test_an_accepted_loss_gives_up_only_an_archive_that_makes_no_progress(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [1_000.0]
    monkeypatch.setattr(site_control.time, "monotonic", lambda: now[0])
    sealed = replace(ACTIVE, role="Sealed", generation=1)
    control = Control(demote(SiteState(), [ACTIVE], "t", accept_loss=True, now_ms=1), [sealed])
    for archived in (4, 5):
        control.answer = control.answer.model_copy(update={"archived": archived})
        for _ in range(3):
            await control.step()
            now[0] += GIVE_UP_S / 2 - 1
        assert control.state.role == "Demoting"
    now[0] += GIVE_UP_S
    await control.step()
    assert (control.state.role, control.state.token) == ("Standby", "")


async def test_an_end_that_no_member_of_a_group_knows_is_read_from_the_archive() -> None:
    lagging = replace(STANDBY, name="x-b-0", group="b", generation=4)
    control = Control(SiteState(), [replace(ACTIVE, generation=5, origin="p", origin_end=30), lagging])
    control._controllers["b"].watches.popitem()  # type: ignore[attr-defined]
    await control.step()
    assert control.state.ends == {"a": 30, "b": 70}
    assert control.store.state == control.state
