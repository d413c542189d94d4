"""The last look before a broker group is removed: who reads its topics in the other groups, and what the spec says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import httpx
import orjson
import pytest
from gantry_broker.contracts.models import DrainReport
from gantry_broker.protocol.bodies import SubscriptionGroup, TopicConfig
from gantry_broker.protocol.codes import TABLE_GROUP_PREFIX
from gantry_operator.cluster.group_changes import GroupChanges, WantedGroups
from gantry_operator.drain.machine import Progress

REPORT = DrainReport(
    epoch=1, leading=True, drain="closed", settled=True, end=10, now_ms=1_000_000, sends=0, newest_ms=900_000,
    retention_ms=10_000_000, unread=[], unread_topics=0, unread_consumer_groups=0, unread_messages=0, delayed=0,
    timers=0, timers_until_ms=0, half=0, in_flight=0, dead_letters=0,
)  # fmt: skip


def tables(messages: int, **offsets: int) -> dict[str, Any]:
    """One topic with one queue, and the offsets of consumer groups in it."""
    return {
        "settled": True,
        "topics": {"T": {"config": TopicConfig("T", 1, 1).to_json(), "queues": [[0, messages]]}},
        "groups": {name: {"config": SubscriptionGroup(name).to_json()} for name in ("present", "away")},
        "lags": [{"topic": "T", "group": name, "queues": [[0, messages, at]]} for name, at in offsets.items()],
        "consumers": {},
    }


class Rig:
    """Groups a and b, of which b leaves and is empty, as far as its own report says."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {"a": tables(5, present=5, away=5), "b": tables(3, present=3, away=3)}
        self.wanted: WantedGroups | None = WantedGroups(staying=("a",), leaving=("b",))
        self.begun: list[str] = []
        self.ended: list[str] = []
        self.marks: list[Any] = []
        self.removing = False
        """The platform knows of a removal that `wanted` does not show yet."""
        self.at: dict[str, Callable[[], None]] = {}
        """By path: what somebody does just before the answer."""
        self.client = httpx.AsyncClient(transport=httpx.MockTransport(self._answer))
        platform: Any = self
        controllers = {group: self._controller(group) for group in "ab"}
        self.changes = GroupChanges(
            platform, controllers, self.client, lambda: self.wanted, lambda event: None, self.end
        )

    def _answer(self, request: httpx.Request) -> httpx.Response:
        path, group = request.url.path, request.url.host
        self.at.get(path, lambda: None)()
        if path == "/v1/marks":
            self.marks.append(orjson.loads(request.content))
        body = REPORT.model_dump() if path == "/v1/drain" else {} if path == "/v1/configs" else self.answers[group]
        return httpx.Response(200, content=orjson.dumps(body))

    def _controller(self, group: str) -> Any:
        status = {"role": "Master", "writable": True, "marks": {"joined": "yes"}}
        watch = SimpleNamespace(reach="ok", url=f"http://{group}", name=f"{group}-0", status=status)
        return SimpleNamespace(leader_watch=watch, waits=None, leadership=SimpleNamespace(epoch=1))

    async def end(self, group: str) -> None:
        self.ended.append(group)

    def mark(self, group: str) -> str:
        return "7"

    async def begin_removal(self, group: str, mark: str) -> bool:
        assert mark == "7"
        self.begun.append(group)
        return True

    async def stay(self, group: str) -> bool:
        return not self.removing

    async def look(self) -> str:
        """The message of the drain after the last look at an empty group."""
        self.changes._memory["b"] = Progress(proof=(1, 10, -1e9))
        self.changes._next_look.clear()
        assert self.wanted is not None
        await self.changes._drain("b", self.wanted)
        return self.changes.drains["b"].message


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    made = Rig()
    async with made.client:
        yield made


async def test_a_group_stays_for_consumers_that_were_away_since_it_is_there(rig: Rig) -> None:
    rig.answers["b"] = tables(3, present=3)
    assert "3 messages of topic T that consumer group away has not acknowledged" in await rig.look()
    rig.answers["a"]["settled"] = False
    assert "the tables of group a are not known" in await rig.look()
    rig.answers["a"] = {"settled": True}
    assert "the tables of group a are not known" in await rig.look()
    assert not rig.begun
    rig.answers |= {"a": tables(5, present=5, away=5), "b": tables(3, present=3, away=3)}
    await rig.look()
    assert rig.begun == ["b"]


async def test_a_group_stays_for_a_table_that_has_not_run_since_it_is_there(rig: Rig) -> None:
    """The consumer group of a table has offsets, and no settings."""
    table = f"{TABLE_GROUP_PREFIX}rocketmq_T"
    rig.answers |= {"a": tables(5, present=5, **{table: 4}), "b": tables(3, present=3)}
    said = await rig.look()
    assert f"3 messages of topic T that the table of group {table} has not acknowledged: the next run" in said
    assert f"gantry group delete {table} --force" in said
    assert not rig.changes.drains["b"].blocked
    assert not rig.begun
    rig.answers["b"] = tables(3, present=3, **{table: 3})
    await rig.look()
    assert rig.begun == ["b"]


@pytest.mark.parametrize("path", ["/v1/drain", "/v1/configs", "/v1/tables"])
@pytest.mark.parametrize("then", [WantedGroups(staying=("a", "b")), None], ids=["written back", "paused"])
async def test_the_spec_is_looked_at_again_before_a_removal_begins(
    rig: Rig, path: str, then: WantedGroups | None
) -> None:
    """The last look takes some requests, and somebody writes the group back meanwhile."""
    rig.at[path] = lambda: setattr(rig, "wanted", then)
    await rig.look()
    assert not rig.begun


async def test_a_group_takes_no_messages_again_once_its_removal_has_begun(rig: Rig) -> None:
    """Its spec has it again, and the begin of its removal is not in the cache yet: the request had no answer."""
    status = rig.changes._controllers["b"].leader_watch.status  # type: ignore[union-attr]
    status["marks"] = {"joined": "yes", "drain": "closed"}  # type: ignore[index]
    rig.removing = True
    assert await rig.changes._stay("b")
    assert not rig.marks
    rig.removing = False
    assert await rig.changes._stay("b")
    assert rig.marks == [{"drain": ""}]


@pytest.mark.parametrize("age_ms", [0, REPORT.retention_ms])
async def test_a_group_stays_for_the_state_in_a_compacted_topic(
    rig: Rig, age_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was read by all, and its retention may be over."""
    report = REPORT.model_copy(update={"now_ms": REPORT.now_ms + age_ms})
    monkeypatch.setattr(f"{__name__}.REPORT", report)
    leaving = rig.answers["b"]["topics"]["T"]
    leaving["config"] = TopicConfig("T", 1, 1, attributes={"cleanup.policy": "COMPACTION"}).to_json()
    said = await rig.look()
    assert "topic T is compacted, and group b has the newest message of some keys: send those again" in said
    assert "Ways on" not in said, "the retention ends nothing here"
    assert rig.changes.drains["b"].blocked
    assert not rig.begun
    leaving["queues"] = [[3, 3]]
    await rig.look()
    assert rig.begun == ["b"], "an empty one has no state"
    rig.begun.clear()
    leaving |= {"queues": [[0, 3]], "config": TopicConfig("T", 1, 1).to_json()}
    await rig.look()
    assert rig.begun == ["b"]
