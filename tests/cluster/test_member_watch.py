"""Following a member over its status stream."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

import orjson
import pytest
from gantry_broker.contracts.leadership import InSyncSetProposal, MemberId
from gantry_operator.cluster.member_http import make_client
from gantry_operator.cluster.member_watch import QUIET_MS, MemberWatch, says_nothing_new
from gantry_operator.failover.model import FollowerView, Report

A, B = MemberId(0, "x"), MemberId(1, "x")
CALM = Report(
    A, "Master", 3, 7, 3, end=100, in_sync=frozenset({A, B}), followers=(FollowerView(B, 100, 900),), link_answer_ms=-1
)


def test_lines_of_a_calm_group_are_no_news() -> None:
    later = replace(CALM, end=900, confirmed=800, followers=(FollowerView(B, 850, 1_000),))
    assert says_nothing_new(CALM, later)


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 8},
        {"highest_seen_epoch": 4},
        {"role": "Waiting"},
        {"proposal": InSyncSetProposal(7, frozenset({A, B}))},
        {"writes_paused": True},
        {"not_promotable": "its disk is full"},
        {"link": "refused"},
        {"link_answer_ms": QUIET_MS},
        {"followers": (FollowerView(B, 100, QUIET_MS),)},
        {"followers": ()},
        {"standby": True},
        {"site_origin": "p"},
    ],
)
def test_a_line_that_needs_a_decision_is_news(changes: dict[str, Any]) -> None:
    assert not says_nothing_new(CALM, replace(CALM, **changes))


def line(name: str) -> bytes:
    member = {"member": 0, "incarnation": "x"}
    return (
        orjson.dumps({"cluster": "c", "name": name, "member": member, "role": "Master", "epoch": 3, "version": 1})
        + b"\n"
    )


async def follow(name: str) -> MemberWatch:
    """A watch of a member called demo-a-0, at an address of a process called `name`."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n" + line(name))
        await writer.drain()
        writer.close()

    news = asyncio.Event()
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server, make_client(lambda: None) as client:
        port = server.sockets[0].getsockname()[1]
        watch = MemberWatch("demo-a-0", f"http://127.0.0.1:{port}", client, news.set, time.monotonic)
        following = asyncio.create_task(watch.run())
        try:
            async with asyncio.timeout(5):
                await news.wait()
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
    return watch


async def test_the_report_of_a_member_is_stored() -> None:
    watch = await follow("demo-a-0")
    assert watch.report is not None
    assert watch.report.epoch == 3


async def test_a_process_of_another_cluster_at_its_address_is_not_taken_for_it() -> None:
    watch = await follow("bench-a-0")
    assert watch.report is None
    assert watch.reach == "silent"
    assert "belongs to bench-a-0 of c, not to demo-a-0" in watch.problem
