"""Assignments to members: a refusal counts for a moment, not for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from gantry_broker.contracts.leadership import Assignment, LeadershipRecord, MemberId
from gantry_broker.contracts.models import AssignmentAnswer
from gantry_operator.cluster.member_client import REFUSED_FOR_S, MemberClient
from gantry_operator.cluster.member_http import httpx, make_client

A = MemberId(0, "x")
LEADERSHIP = LeadershipRecord(2, 2, A, frozenset({A}))


async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await answer(reader, writer, AssignmentAnswer(accepted=False, epoch=1, version=1, reason="it stops"))


async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await answer(reader, writer, AssignmentAnswer(accepted=True, epoch=2, version=2, reason=""))


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, model: AssignmentAnswer) -> None:
    await reader.readuntil(b"\r\n\r\n")
    said = model.model_dump_json().encode()
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(said)}\r\n\r\n"
    writer.write(head.encode() + said)
    await writer.drain()
    writer.close()


ConsumerAdmin = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def connected(
    answering: ConsumerAdmin, now: Callable[[], float]
) -> AsyncIterator[tuple[MemberClient, asyncio.Event]]:
    """A member client that is sending `CELL` to a member, and an event that is set after the answer."""
    woken = asyncio.Event()
    server = await asyncio.start_server(answering, "127.0.0.1", 0)
    url = "http://127.0.0.1:{}".format(*server.sockets[0].getsockname()[1:2])
    async with make_client(lambda: None) as client:
        member_client = MemberClient(client, woken.set, now)
        member_client.send_assignment(0, url, Assignment(LEADERSHIP, "h:1", False))
        yield member_client, woken
        await member_client.close()
    server.close()


async def test_a_member_that_refused_while_it_stopped_is_assigned_again_once_it_runs() -> None:
    """A group of one: no other member can be promoted, so its last refusal would delay it for ever."""
    now = 100.0
    async with connected(refuse, lambda: now) as (member_client, woken):
        await asyncio.wait_for(woken.wait(), 60)
        assert member_client.refusal(0, LEADERSHIP) == "it stops"
        assert member_client.refusal(0, LEADERSHIP.touched()) == "", "another record was not refused"
        now += REFUSED_FOR_S
        assert member_client.refusal(0, LEADERSHIP) == ""


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ("500 Internal Server Error", "read-only disk here"),
        ("401 Unauthorized", "another token"),
        ("422 ?", "a record?"),
    ],
)
async def test_a_member_that_cannot_carry_out_its_assignment_has_refused_it(status: str, said: str) -> None:
    """Another member must be chosen. Otherwise the group would wait for this one's answer."""

    async def fail(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 {status}\r\ncontent-length: {len(said)}\r\n\r\n{said}".encode())
        await writer.drain()
        writer.close()

    async with connected(fail, lambda: 100.0) as (member_client, woken):
        await asyncio.wait_for(woken.wait(), 60)
        assert status[:3] in member_client.refusal(0, LEADERSHIP)
        assert said in member_client.refusal(0, LEADERSHIP)
        assert said in member_client.refusal(0, LEADERSHIP.touched()), (
            "where all answer so, epochs would follow without pause"
        )
        assert member_client.lacks_token(0) == status.startswith("401")


async def test_a_line_with_the_assignment_counts_though_it_came_before_the_answer() -> None:
    """The next line may come a second later. Until then no member could be removed from the set."""
    async with connected(accept, lambda: 100.0) as (member_client, woken):
        assert member_client.pending(0, 99.0, (2, 1))
        assert not member_client.pending(0, 99.0, LEADERSHIP.order), "the line came while the question was under way"
        await asyncio.wait_for(woken.wait(), 60)
        assert member_client.pending(0, 99.0, (2, 1))
        assert not member_client.pending(0, 99.0, LEADERSHIP.order)
        assert not member_client.pending(0, 101.0, (2, 1)), "a newer line counts whatever it says"


async def test_an_accepted_unclean_flag_is_remembered() -> None:
    async with connected(accept, lambda: 100.0) as (member_client, woken):
        assert member_client.assigned_unclean(0) is None, "it has not answered"
        await asyncio.wait_for(woken.wait(), 60)
        assert member_client.assigned_unclean(0) is False
        assert member_client.accepted_order(0) == LEADERSHIP.order


async def test_for_how_long_a_member_refuses_counts_from_the_first_time() -> None:
    now = 100.0
    transport = httpx.MockTransport(lambda request: httpx.Response(401))
    async with httpx.AsyncClient(transport=transport) as client:
        woken = asyncio.Event()
        member_client = MemberClient(client, woken.set, lambda: now)

        async def refused_again(after_s: float) -> float:
            nonlocal now
            now += after_s
            woken.clear()
            member_client.send_assignment(0, "http://m0", Assignment(LEADERSHIP, "h:1", False))
            await asyncio.wait_for(woken.wait(), 60)
            return member_client.refusing_s(0)

        assert member_client.refusing_s(0) == 0
        assert await refused_again(0) == 0
        assert await refused_again(2.1) == pytest.approx(2.1)
        assert await refused_again(2.1) == pytest.approx(4.2)
        assert await refused_again(60) == 0, "the time between is not known"


async def test_a_refused_assignment_is_sent_again_soon_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """A member whose disk is full may refuse for hours."""
    now, asked = 100.0, 0

    def refuse(request: httpx.Request) -> httpx.Response:
        nonlocal asked
        asked += 1
        return httpx.Response(500, text="no room")

    async with httpx.AsyncClient(transport=httpx.MockTransport(refuse)) as client:
        woken = asyncio.Event()
        member_client = MemberClient(client, woken.set, lambda: now)
        for _ in range(100):
            woken.clear()
            member_client.send_assignment(0, "http://m0", Assignment(LEADERSHIP, "h:1", False))
            if member_client.any_underway():
                await asyncio.wait_for(woken.wait(), 60)
            now += 0.1
    assert 15 <= asked <= 21
    assert [r.getMessage() for r in caplog.records if r.name.endswith("member_client")] == [
        "http://m0 refuses epoch 2 version 2: it answered 500: no room"
    ]
