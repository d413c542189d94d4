"""The last look before a broker group is removed: who reads its topics in the other groups."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import httpx
import orjson
from gantry_broker.http.models import DrainReport
from gantry_broker.protocol.bodies import SubscriptionGroup, TopicConfig
from gantry_operator.cluster.group_changes import GroupChanges, WantedGroups
from gantry_operator.drain import Progress

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


async def test_a_group_stays_for_consumers_that_were_away_since_it_is_there() -> None:
    answers: dict[str, Any] = {"a": tables(5, present=5, away=5), "b": tables(3, present=3)}
    begun: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        path, group = request.url.path, request.url.host
        body = REPORT.model_dump() if path == "/v1/drain" else {} if path == "/v1/configs" else answers[group]
        return httpx.Response(200, content=orjson.dumps(body))

    def controller(group: str) -> Any:
        status = {"role": "Master", "writable": True, "marks": {"joined": "yes"}}
        watch = SimpleNamespace(reach="ok", url=f"http://{group}", name=f"{group}-0", status=status)
        return SimpleNamespace(leader_watch=watch, leadership=SimpleNamespace(epoch=1))

    async def begin_removal(group: str) -> None:
        begun.append(group)

    wanted = WantedGroups(staying=("a",), leaving=("b",))
    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
        platform: Any = SimpleNamespace(begin_removal=begin_removal)
        controllers = {group: controller(group) for group in "ab"}
        changes = GroupChanges(platform, controllers, client, lambda: wanted, lambda event: None)

        async def look() -> str:
            changes._memory["b"] = Progress(proof=(1, 10, -1e9))
            changes._next_look.clear()
            await changes._drain("b", wanted)
            return changes.drains["b"].message

        assert "3 messages of topic T that consumer group away has not acknowledged" in await look()
        answers["a"]["settled"] = False
        assert "the tables of group a are not known" in await look()
        answers["a"] = {"settled": True}
        assert "the tables of group a are not known" in await look()
        assert not begun
        answers |= {"a": tables(5, present=5, away=5), "b": tables(3, present=3, away=3)}
        await look()
        assert begun == ["b"]
