"""The server of the console: access, forms, headers, and pages that never wait for a broker."""

from __future__ import annotations

import asyncio
import html
import re
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest
from gantry_broker import descriptors
from gantry_operator.api.topic import BrokerTopic
from gantry_operator.console import serve
from gantry_operator.console.collector import Collector
from gantry_operator.console.requests import MAX_FORM
from gantry_operator.console.sources import AuditView, SourceError
from markupsafe import Markup

from tests.console.fake import FakeSource, NoBrokers, ReadOnly, Running, running
from tests.support.present import present

PAGES = ("", "/members", "/topics", "/topics/orders-00000", "/groups", "/groups/billing", "/messages", "/dead",
         "/clients", "/activity", "/actions", "/groups/billing/reset")  # fmt: skip
HERE = "/c/local/fake"


@pytest.fixture
def console() -> Iterator[Running]:
    with running(FakeSource()) as made:
        yield made


def until_figures(console: Running) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if console.collector.snapshot.tables.topics and console.collector.snapshot.resource:
            return
        time.sleep(0.05)
    raise AssertionError("no figures")


def csrf_of(page: str) -> str:
    return present(re.search(r'name="csrf" value="([^"]+)"', page))[1]


def test_a_link_opens_one_session(console: Running) -> None:
    link = console.link()
    first = httpx.get(link)
    assert first.status_code == 303
    cookie = first.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert httpx.get(link).status_code == 401
    assert httpx.get(f"{console.base}/?token=wrong").status_code == 401
    for path in (*PAGES, "/live", "/report", "/dead/billing/export"):
        assert httpx.get(f"{console.base}{HERE}{path}").status_code == 401, path
    assert httpx.get(f"{console.base}/live").status_code == 401


def test_every_page_answers_with_its_headers(console: Running) -> None:
    until_figures(console)
    with console.client() as client:
        for path in PAGES:
            answer = client.get(HERE + path)
            assert answer.status_code == 200, (path, answer.text)
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'; script-src 'self'" in policy
            assert "unsafe" not in policy
            assert answer.headers["cache-control"] == "no-store"
            assert not re.search(r"(?:src|href)=\"(?:https?:)?//", answer.text)
            assert " style=" not in answer.text
            assert "<script>" not in answer.text


def test_no_link_of_a_page_is_dead(console: Running) -> None:
    until_figures(console)
    with console.client() as client:
        links = {link for path in PAGES for link in re.findall(r'href="(/c/[^"#]+)"', client.get(HERE + path).text)}
        assert len(links) > 15
        # Letters, subscriptions and what a form changes are read from brokers, which this cluster does not have.
        brokers = re.compile(r"/dead/billing|/subscriptions|/messages\?|/edit$")
        for link in links:
            status = client.get(link.replace("&amp;", "&")).status_code
            assert status == 200 or (brokers.search(link) and status == 502), (link, status)


def test_another_host_is_refused(console: Running) -> None:
    with console.client() as client:
        assert client.get(HERE, headers={"Host": "evil.example"}).status_code == 421
        assert client.get(HERE, headers={"Host": "10.1.2.3"}).status_code == 421


def test_a_form_needs_the_token_of_its_session(console: Running) -> None:
    until_figures(console)
    where = f"{HERE}/actions/topic"
    with console.client() as client, console.client() as other:
        mine, theirs = csrf_of(client.get(f"{HERE}/actions").text), csrf_of(other.get(f"{HERE}/actions").text)
        form = {"topic": "T", "queues": "0"}
        assert client.post(where, data=form).status_code == 403
        assert client.post(where, data=form | {"csrf": theirs}).status_code == 403
        strange = client.post(where, data=form | {"csrf": mine}, headers={"Origin": "http://evil.example"})
        assert strange.status_code == 403
        answer = client.post(where, data=form | {"csrf": mine})
        assert answer.status_code == 400
        assert "queues is '0': write a number from 1 to 1024" in html.unescape(answer.text)
        assert client.post(where, content=b"x" * (MAX_FORM + 1)).status_code == 413
        assert client.get(f"{HERE}/topics", params={"q": "x" * 600}).status_code == 414


class KeptResources:
    """The resources of a cluster without brokers."""

    waits_for, cluster, namespace = "", "fake", "default"

    def __init__(self) -> None:
        self.made: list[BrokerTopic] = []

    async def list(self, kind: str) -> list[dict[str, Any]]:
        return []

    async def create(self, resource: BrokerTopic) -> None:
        self.made.append(resource)


@pytest.mark.parametrize(("managed", "topics"), [("", []), ("--managed", [("t-1", "T_1", 3)])])
def test_a_topic_is_kept_by_a_resource_if_the_form_says_so(managed: str, topics: list[tuple[str, str, int]]) -> None:
    resources = KeptResources()

    class Target(NoBrokers):
        @asynccontextmanager
        async def resources(self) -> AsyncIterator[KeptResources]:
            yield resources

    source = FakeSource()
    source.target = Target()
    with running(source) as console, console.client() as client:
        until_figures(console)
        page = client.get(f"{HERE}/actions").text
        assert "--queues {queues}[ {managed}]" in page
        form = {"csrf": csrf_of(page), "topic": "T_1", "queues": "3", "managed": managed}
        assert client.post(f"{HERE}/actions/topic", data=form).status_code == 502, "there are no brokers"
    assert [(t.name, t.topic, t.spec.queuesPerGroup) for t in resources.made] == topics


def test_a_refused_form_keeps_what_was_typed_and_says_why_in_its_frame(console: Running) -> None:
    until_figures(console)
    with console.client() as client:
        csrf = csrf_of(client.get(f"{HERE}/actions").text)
        form = {"csrf": csrf, "topic": "Typed-1", "queues": "7", "managed": ""}
        for changed, status in (({"queues": "many"}, 400), ({}, 502)):
            answer = client.post(f"{HERE}/actions/topic", data=form | changed)
            assert answer.status_code == status
            assert 'value="Typed-1"' in answer.text
            assert f'value="{(form | changed)["queues"]}"' in answer.text
            assert answer.text.count('role="alert"') == 1
            assert answer.text.index('role="alert"') > answer.text.index("Create a topic")
        answer = client.post(f"{HERE}/actions/user", data={"csrf": csrf, "user": "typed", "allow": "Topic:x"})
        assert answer.status_code == 502
        assert 'value="typed"' in answer.text
        assert 'value="Topic:x"' in answer.text
        answer = client.post(f"{HERE}/groups/billing/reset", data={"csrf": csrf, "topic": "orders-00000", "to_ms": "x"})
        assert answer.status_code == 502
        assert "to_ms is" in answer.text
        answer = client.post(f"{HERE}/messages", data={"csrf": csrf, "topic": "T", "body": "", "keys": "typed"})
        assert answer.status_code == 400
        assert 'value="typed"' in answer.text


def test_a_done_change_redirects_and_a_reload_repeats_nothing() -> None:
    class Target(NoBrokers):
        switched = 0

        async def switchover(self, group: str, to: str | None) -> str:
            self.switched += 1
            return f"{to} leads {group}"

    source = FakeSource()
    source.target = Target()
    with running(source) as console, console.client() as client, console.client() as other:
        until_figures(console)
        csrf = csrf_of(client.get(f"{HERE}/actions").text)
        form = {"csrf": csrf, "group": "a", "to": "fake-a-1"}
        sent = client.post(f"{HERE}/actions/switchover", data=form, follow_redirects=False)
        assert sent.status_code == 303
        for _ in range(2):
            shown = client.get(sent.headers["location"])
            assert "fake-a-1 leads a" in shown.text
            assert "gantry switchover a --to fake-a-1 --cluster fake" in Markup(shown.text).striptags()
        assert source.target.switched == 1
        assert other.get(sent.headers["location"], follow_redirects=False).status_code == 303, "of another session"


def test_a_deletion_needs_the_name(console: Running) -> None:
    until_figures(console)
    with console.client() as client:
        page = client.get(f"{HERE}/topics/orders-00000").text
        assert f"{HERE}/delete/topics/orders-00000" in page
        assert "field price is a string" in page, "the topic's table stands still"
        assert "field price" not in client.get(f"{HERE}/topics/orders-00001").text
        where = f"{HERE}/delete/topics/orders-00000"
        csrf = csrf_of(client.get(where).text)
        wrong = client.post(where, data={"csrf": csrf, "typed": "orders"})
        assert wrong.status_code == 400
        assert "is another name: write orders-00000" in wrong.text
        right = client.post(where, data={"csrf": csrf, "typed": "orders-00000"})
        assert right.status_code == 502, "there are no brokers"
        assert "no broker answers" in right.text
        assert client.get(f"{HERE}/delete/members/x").status_code == 404


def test_tables_are_sorted_both_ways(console: Running) -> None:
    until_figures(console)
    with console.client() as client:
        for page, there, back in (("topics", "name", "-name"), ("groups", "lag", "-lag")):
            first, second = (
                re.findall(
                    rf'<a href="{HERE}/{page}/([^"]+)"', client.get(f"{HERE}/{page}", params={"sort": sort}).text
                )
                for sort in (there, back)
            )
            assert first == second[::-1]
        assert f"sort={back}" in client.get(f"{HERE}/groups", params={"sort": "lag"}).text


def test_the_palette_finds_topics_and_groups(console: Running) -> None:
    until_figures(console)
    with console.client() as client:
        found = client.get(f"{HERE}/find", params={"q": "ORDERS-0"}).json()
        assert found[0] == {"name": "orders-00000", "kind": "topic", "path": f"{HERE}/topics/"}
        assert {"name": "billing", "kind": "group", "path": f"{HERE}/groups/"} in client.get(
            f"{HERE}/find", params={"q": "bill"}
        ).json()


async def test_a_cluster_that_starts_later_appears(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "LOOK_S", 0.01)
    later = FakeSource()
    there: dict[Any, Any] = {}
    collectors: dict[Any, Collector] = {}
    task = asyncio.create_task(serve.follow(collectors, lambda: dict(there)))
    try:
        await asyncio.sleep(0.05)
        assert not collectors
        there[later.key] = lambda: later
        async with asyncio.timeout(10):
            while later.key not in collectors:  # noqa: ASYNC110 — a table, not an event
                await asyncio.sleep(0.01)
            await collectors[later.key].first()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await later.close()


def test_who_may_only_read_changes_nothing() -> None:
    with running(FakeSource(), ReadOnly) as console:
        until_figures(console)
        with console.client() as client:
            page = client.get(f"{HERE}/actions").text
            assert "You may read this cluster, but not change it" in page
            form = {"csrf": csrf_of(page), "topic": "T", "queues": "8", "group": "a", "which": "waiting", "to_ms": "-1"}
            for path in ("actions/topic", "actions/switchover", "actions/user", "actions/pause", "dead/billing/resend",
                         "groups/billing/reset", "delete/topics/T", "messages", "topics/T/edit", "users/u/edit",
                         "users/u/rotate", "groups/billing/edit"):  # fmt: skip
                assert client.post(f"{HERE}/{path}", data=form).status_code == 403, path


def test_a_cluster_without_a_pause_offers_none(console: Running) -> None:
    until_figures(console)
    with console.client() as client:
        page = client.get(f"{HERE}/actions").text
        assert "actions/pause" not in page
        answer = client.post(f"{HERE}/actions/pause", data={"csrf": csrf_of(page), "paused": "true"})
        assert answer.status_code == 404
        assert "cannot be paused" in answer.text


def test_signing_out_ends_the_session(console: Running) -> None:
    until_figures(console)
    with console.client() as client:
        csrf = csrf_of(client.get(HERE).text)
        kept = dict(client.cookies)
        assert client.post("/logout", data={"csrf": csrf}).status_code == 401
        assert httpx.get(f"{console.base}{HERE}", cookies=kept).status_code == 401


def test_ten_thousand_topics_need_no_request_for_each() -> None:
    source = FakeSource(10_000)
    with running(source) as console:
        until_figures(console)
        with console.client() as client:
            before = Counter(source.calls)["/v1/tables"]
            first = client.get(f"{HERE}/topics")
            assert "1\N{EN DASH}50 of 10,000" in first.text
            last = client.get(f"{HERE}/topics", params={"page": 200})
            assert "orders-09999" in last.text
            assert "1\N{EN DASH}1 of 1" in client.get(f"{HERE}/topics", params={"q": "ORDERS-07777"}).text
            paths = Counter(source.calls)
    assert set(paths) == {"/v1/status", "/v1/tables"}
    assert paths["/v1/tables"] - before <= 3


def test_the_audit_shows_who_changed_what() -> None:
    source = FakeSource()
    line = {"time_ms": 5, "result": "refused", "reason": "permission", "user": "<ann>", "request": "SEND_MESSAGE_V2"}

    async def audit() -> AuditView:
        return AuditView([line | {"resource": "Topic:Secret", "address": "10.0.0.7", "member": "fake-a-0"}], "grep")

    source.audit = audit  # type: ignore[method-assign]
    with running(source) as console:
        until_figures(console)
        with console.client() as client:
            page = client.get(f"{HERE}/activity").text
    for text in ("refused: permission", "&lt;ann&gt;", "SEND_MESSAGE_V2", "Topic:Secret", "1970-01-01 00:00:00.005"):
        assert text in page


def test_a_broker_without_an_answer_delays_no_page() -> None:
    source = FakeSource()
    with running(source) as console:
        until_figures(console)
        source.silent |= {"fake-a-0", "fake-a-1", "fake-a-2"}
        with console.client() as client:
            client.timeout = httpx.Timeout(10)
            for path in PAGES:
                assert client.get(HERE + path).status_code == 200
            deadline = time.monotonic() + 30
            while "it does not answer" not in client.get(f"{HERE}/members").text:
                assert time.monotonic() < deadline
                time.sleep(0.2)


def test_the_proxies_are_beside_the_members(console: Running) -> None:
    until_figures(console)
    with console.client() as client:
        page = client.get(f"{HERE}/members").text
    for text in ("Proxies", "fake-proxy-0", "127.0.0.1:8081", "its process is gone"):
        assert text in page


def test_the_archive_is_beside_the_members() -> None:
    source = FakeSource()
    with running(source) as console, console.client() as client:
        until_figures(console)
        page = client.get(f"{HERE}/members").text
    for text in ("2026-01-01 00:00:00", "2.0 KiB", "it lacks 1 ranges", "&lt;b&gt;no", "not known yet"):
        assert text in page


def test_an_archive_that_holds_nothing_yet_has_no_times() -> None:
    source = FakeSource()
    read = source.resource

    async def begun() -> dict[str, Any]:
        found = await read()
        row = {"offset": 0, "behindBytes": 0, "behindSeconds": 0, "bytes": 0, "objects": 0, "gaps": 0, "error": ""}
        found["status"]["groups"] = [{"name": "a", "archive": row}]
        return found

    source.resource = begun  # type: ignore[method-assign]
    with running(source) as console, console.client() as client:
        until_figures(console)
        answer = client.get(f"{HERE}/members")
    assert answer.status_code == 200, answer.text
    assert re.findall(r'data-label="([^"]+)">\N{EN DASH}</td>', answer.text)[:3] == [
        "Recoverable from (UTC)", "Until (UTC)", "Verified",
    ]  # fmt: skip


def test_a_migration_says_how_far_it_is_and_what_to_do() -> None:
    source = FakeSource()
    read = source.resource

    async def migrating() -> dict[str, Any]:
        found = await read()
        rows = [
            {"name": "a", "state": "following", "copiedBytes": 4096, "missingBytes": 0, "bytesPerSecond": 1024},
            {"name": "b", "problem": "<b>away"},
        ]
        found["status"]["migration"] = {"phase": "following", "message": "group b waits", "groups": rows}
        return found

    source.resource = migrating  # type: ignore[method-assign]
    with running(source) as console, console.client() as client:
        until_figures(console)
        page = client.get(f"{HERE}/members").text
    assert re.findall(r'data-label="(Copied|Missing|A second)"[^>]*>([^<]+)</td>', page) == [
        ("Copied", "4.0 KiB"), ("Missing", "0 B"), ("A second", "1.0 KiB"),
        *((name, "\N{EN DASH}") for name in ("Copied", "Missing", "A second")),
    ]  # fmt: skip
    for text in ("group b waits", "not known", "&lt;b&gt;away"):
        assert text in page


def test_a_cluster_that_cannot_be_read_has_pages() -> None:
    source = FakeSource()

    async def unreadable() -> object:
        raise SourceError("the folder is damaged")

    source.resource = unreadable  # type: ignore[method-assign,assignment]
    with running(source) as console, console.client() as client:
        deadline = time.monotonic() + 20
        while "Old figures: the cluster&#39;s status: the folder is damaged" not in (page := client.get(HERE).text):
            assert time.monotonic() < deadline, page
            time.sleep(0.1)


def test_half_requests_leave_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """As at the HTTP ports of all other processes."""
    small = descriptors.divide(1_024)
    monkeypatch.setattr(serve.descriptors, "budget", lambda: replace(small, http=16))
    with running(FakeSource()) as console:
        until_figures(console)
        with httpx.Client(transport=httpx.HTTPTransport(retries=5)) as client:
            client.get(f"{console.base}/live")  # The server listens.
        where = httpx.URL(console.base)
        half = [socket.create_connection((where.host, where.port)) for _ in range(40)]
        try:
            for one in half[:20]:
                one.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ")
            assert httpx.get(console.link(), timeout=20).status_code == 303
            half[0].settimeout(20)
            assert half[0].recv(100).startswith(b"HTTP/1.1 503"), "it made room"
            with console.client() as client:
                assert client.get(f"{HERE}/topics?page=1_0").status_code == 422
                assert client.get(f"{HERE}/topics?page=1").status_code == 200
        finally:
            for one in half:
                one.close()
