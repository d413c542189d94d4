"""`gantry top` beside a real cluster, in a pseudo terminal of 80 by 24, with a failover in the middle."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys

import pytest

from tests.local.cluster import Cluster, Load, kill
from tests.support.terminal import COLOUR, Terminal

pytestmark = pytest.mark.timeout(300)


def rate_in(picture: str) -> int:
    found = re.search(r"in ([\d,]+)(?:\.\d)?/s", picture.split("\n", 1)[0])
    return 0 if found is None else int(found[1].replace(",", ""))


def row(picture: str, name: str) -> list[str]:
    return next((text.split() for text in picture.split("\n") if text.startswith(f"{name} ")), [])


def terminal(cluster: Cluster) -> Terminal:
    argv = [sys.executable, "-m", "gantry_operator.cli", "top", "--interval", "0.3", "--dir", str(cluster.folder.root)]
    return Terminal(argv, cluster.environment | {"NO_COLOR": "1"})


async def test_a_failover_is_seen_as_it_happens(cluster: Cluster) -> None:
    master = cluster.master()
    others = [name for name in cluster.members() if name != master["name"]]
    async with Load.on(cluster, "Watched", "w"):
        where = ("--dir", str(cluster.folder.root))
        await asyncio.to_thread(
            cluster.gantry, "consume", "Watched", "--group", "late", "--count", "5", "--quiet", *where
        )
        with terminal(cluster) as shown:

            async def until(what: str, condition: object) -> str:
                return await asyncio.to_thread(shown.until, what, condition)  # type: ignore[arg-type]

            first = await until("rates", lambda p: rate_in(p) > 0 and "Running" in p and row(p, "late"))
            assert "3/3 in sync" in first
            assert row(first, master["name"])[1:3] == ["a", "Master"]
            assert int(row(first, "late")[1].replace(",", "")) > 0, "it has read five messages"
            assert len(first.rstrip("\n").split("\n")) <= 24

            kill(master["pid"], signal.SIGKILL)
            after = await until(
                "the new master", lambda p: f"failover from {master['name']}" in p and "FailoverComp" in p
            )
            assert re.search(r"in \d+ ms: ", " ".join(after.split()))
            leaders = [name for name in others if row(after, name)[1:3] == ["a", "Master"]]
            assert len(leaders) == 1
            await until("sends at the new master", lambda p: rate_in(p) > 0 and row(p, leaders[0])[1:3])

            frozen = cluster.members()[next(name for name in others if name not in leaders)]
            kill(frozen["pid"], signal.SIGSTOP)
            try:
                await until("a silent member", lambda p: row(p, frozen["name"])[2:3] == ["Unknown"])
                clocks = {p.split("\n", 1)[0][-12:] for p in shown.pictures[-3:]}
                await until("a later picture", lambda p: p.split("\n", 1)[0][-12:] not in clocks)
            finally:
                kill(frozen["pid"], signal.SIGCONT)

            shown.type("s")
            await until("another order", lambda p: "LAG*" in p)
            shown.type(" ")
            await until("a pause", lambda p: "PAUSED" in p)
            shown.type("q")
            assert await asyncio.to_thread(shown.end) == 0
            assert shown.output.endswith("\x1b[?1049l"), "the former screen is back"
            assert shown.attributes == shown.before, "the terminal's modes are back"
            assert not COLOUR.search(shown.output)
    cluster.until("whole again", cluster.whole, 60)


def test_a_signal_restores_the_terminal(cluster: Cluster) -> None:
    with terminal(cluster) as shown:
        shown.until("a picture", lambda p: "MEMBER" in p)
        shown.process.send_signal(signal.SIGTERM)
        assert shown.end() == 0
        assert shown.attributes == shown.before
        assert "\x1b[?1049l" in shown.output


def test_without_a_terminal_it_prints_once(cluster: Cluster) -> None:
    where = ("--dir", str(cluster.folder.root))
    done = cluster.gantry("top", *where)
    assert "3/3 in sync" in done.stdout
    assert "\x1b" not in done.stdout
    found = json.loads(cluster.gantry("top", "-o", "json", *where).stdout)
    assert [m["in_sync"] for m in found["members"]] == [True] * 3
    assert all(m["rates"] is not None for m in found["members"])
