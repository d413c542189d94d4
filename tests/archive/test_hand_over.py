"""Hand-overs of an archive with several groups, by seed: none is taken over whose owner may have more of its log."""

from __future__ import annotations

import random

import pytest
from gantry_broker.archive import chain
from gantry_broker.archive.chain import Archive
from gantry_broker.archive.errors import ArchiveError, Fenced, Overtaken
from gantry_broker.archive.manifest import Change, Owner, Part, State

from tests.archive.memory_objects import MemoryObjects

SEGMENT = 1 << 20
GROUPS = ("a", "b", "c")


class Site:
    """A cluster with the log of each group: only its end, and the token with which it is sealed."""

    def __init__(self, uid: str) -> None:
        self.uid = uid
        self.ends = dict.fromkeys(GROUPS, 0)
        self.sealed: dict[str, str] = {}


class World:
    """Two sites in front of one archive. One takes messages and seals groups, the other one takes them over."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.archive = Archive(MemoryObjects(seed, fail=0.05, lost=0.05, lag=self.random.choice([0, 2])))
        self.active, self.standby = Site("one"), Site("two")
        self.parts = 0
        self.taken: set[str] = set()

    def state(self, group: str) -> State:
        return self.archive.group(group).load()

    def upload(self, group: str, *, token: str = "") -> None:
        """Archive some of the log, or all of it and close it with a token."""
        state, end = self.state(group), self.active.ends[group]
        identity = self.archive.claim(self.active.uid, self.active.uid, 1)
        at = end if token else self.random.randint(state.end, end)
        added = ()
        if at > state.end:
            self.parts += 1
            added = (Part(f"p{self.parts}", state.end, at, 1, 1, "", 1, 1, 1),)
        change = Change(base=(0, ()) if state.n == 0 else None, added=added, closed=token)
        chain.write(
            self.archive.group(group), state, change, owner=Owner(identity.number, identity.uid),
            segment_size=SEGMENT, epochs=(), now_ms=1,
        )  # fmt: skip

    def take(self, group: str, token: str) -> None:
        end = chain.take_over(
            self.archive, self.archive.group(group), self.standby.uid, "two", token, accept_loss=False, now_ms=1
        )
        assert end == self.active.ends[group], f"the end of group {group} is lost"
        self.taken.add(group)

    def step(self) -> None:
        group = self.random.choice(GROUPS)
        token = self.active.sealed.get(group, "")
        match self.random.randrange(5):
            case 0 if not token:
                self.active.ends[group] += self.random.randint(1, 50)
            case 1 if not token:
                self.upload(group)
            case 2 if self.random.random() < 0.3:
                self.active.sealed[group] = self.random.choice(["right", "right", "right", "other"])
            case 3 if token:
                self.upload(group, token=token)
            case 4 if self.random.random() < 0.5:
                self.take(group, "right")


@pytest.mark.parametrize("seed", range(100))
def test_a_token_takes_over_only_what_was_handed_over_with_it(seed: int) -> None:
    check_hand_over(seed)


def check_hand_over(seed: int) -> None:
    world = World(seed)
    for _ in range(150):
        try:
            world.step()
        except (ArchiveError, Overtaken):
            continue
    objects = world.archive.objects
    assert isinstance(objects, MemoryObjects)
    objects.fail = objects.lost = objects.lag = 0
    for group in GROUPS:
        state = world.state(group)
        if group in world.taken:
            assert state.owner == (2, "two")
        if state.closed == "right" or state.owner == (2, "two"):  # An answer may have been lost.
            world.take(group, "right")
        elif state.n:
            with pytest.raises(Fenced, match=f"group {group}: the archive was not handed over"):
                world.take(group, "right")


def test_half_a_hand_over_is_taken_with_the_loss_accepted() -> None:
    world = World(1)
    world.archive = Archive(MemoryObjects())
    for group in GROUPS:
        world.active.ends[group] = 100
        world.upload(group)
    world.upload("a", token="right")
    world.take("a", "right")
    before = world.state("b").end
    for accept, token in ((False, "right"), (False, ""), (True, "right")):
        group = world.archive.group("b")
        if accept:
            assert chain.take_over(world.archive, group, "two", "two", token, accept_loss=True, now_ms=1) == before
            continue
        with pytest.raises(Fenced, match="group b: the archive was not handed over with this token"):
            chain.take_over(world.archive, group, "two", "two", token, accept_loss=False, now_ms=1)
    identity = world.archive.identity()
    assert identity is not None
    assert (identity.number, identity.uid, identity.reason) == (2, "two", "handed over")
