"""The console in a real browser: every page of a live cluster, with a failover, on a phone and in the dark."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from gantry_broker.client import Admin, Consumer, Message, Producer
from gantry_broker.client.sync import SimpleConsumer
from gantry_operator.console.history import NoHistory
from gantry_operator.console.snapshot import Point
from playwright.sync_api import Browser, Page, expect

from tests.console.browser import accessibility_problems, browser, overflow, person
from tests.console.fake import FakeSource, InKubernetes, running
from tests.console.live import LETTERS, LiveConsole, console_of, live_console
from tests.support.present import present

SLOW_MS = 60_000
PAGES = {
    "": "Overview", "/members": "Members", "/topics": "Topics", "/topics/Orders": "Orders",
    "/groups": "Consumer groups", "/groups/billing": "billing",
    "/groups/mixed/subscriptions": "Subscriptions by client",
    "/groups/billing/reset?topic=Orders&end=true": "Reset offsets",
    "/messages?topic=Orders&key=order-4711": "Messages", "/messages?topic=Orders": "Messages",
    "/dead": "Dead letters", "/dead/refunds": "refunds",
    "/clients": "Clients", "/activity": "Activity", "/actions": "Actions",
}  # fmt: skip

expect.set_options(timeout=30_000)  # the default of 5 s is for a quiet machine
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as made:
        yield made


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveConsole]:
    with live_console(tmp_path_factory.mktemp("live")) as made:
        yield made


@pytest.fixture(scope="module")
def session(chromium: Browser, live: LiveConsole) -> Any:
    """The cookies of a browser that followed the link, which opens one only. One console serves all tests."""
    with person(chromium, live.link) as page:
        return page.context.storage_state()


@pytest.fixture
def desk(chromium: Browser, live: LiveConsole, session: Any) -> Iterator[Page]:
    size = {"width": 1440, "height": 900}
    with person(chromium, live.base, storage_state=session, viewport=size) as page:
        page.base = live.base  # type: ignore[attr-defined]
        # The first figures of the broker groups are there.
        page.goto(f"{live.base}/topics")
        expect(page.get_by_role("link", name="Orders", exact=True)).to_be_visible(timeout=SLOW_MS)
        yield page


WIDER = "() => [...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth + 1).length"
"""How many tables are wider than their panels."""


TOUCHING = """() => [...document.querySelectorAll('main :is(button, a.button)')].filter(e => {
  const b = e.getBoundingClientRect();
  return e.checkVisibility() && [...document.querySelectorAll('main .panel')].some(panel => {
    const p = panel.getBoundingClientRect();
    return !panel.contains(e) && b.bottom > p.top - 6 && b.top < p.bottom + 6 && b.right > p.left && b.left < p.right;
  });
}).map(e => e.textContent)"""
"""Buttons beside a panel, without room between them."""


def go(page: Page, path: str) -> None:
    answer = page.goto(page.base + path)  # type: ignore[attr-defined]
    assert present(answer).status == 200, (path, page.content())


def test_every_page_is_whole_and_accessible(desk: Page) -> None:
    for path, title in PAGES.items():
        go(desk, path)
        expect(desk.get_by_role("heading", level=1)).to_have_text(title)
        assert not accessibility_problems(desk), path
        assert overflow(desk) == 0, path
        assert not desk.evaluate(TOUCHING), path


def test_every_page_has_contrast_in_the_dark(desk: Page) -> None:
    desk.emulate_media(color_scheme="dark")
    for path in PAGES:
        go(desk, path)
        assert not accessibility_problems(desk, "color-contrast"), path


def test_every_page_fits_a_phone(desk: Page) -> None:
    desk.set_viewport_size({"width": 400, "height": 800})
    for path in PAGES:
        go(desk, path)
        assert overflow(desk) == 0, path
        assert not desk.evaluate(WIDER), f"{path}: a table scrolls sideways, and hides what is at its end"
        expect(desk.locator(".side nav [aria-current]")).to_be_in_viewport(ratio=1)


def test_a_phone_shows_options_whole_and_the_form_before_the_messages(desk: Page) -> None:
    desk.set_viewport_size({"width": 320, "height": 800})
    go(desk, "/messages?topic=Orders")
    desk.get_by_text("Send a message").click()
    form = desk.locator("details.send form")
    for label in ("Body", "Tag", "Keys"):
        form.get_by_label(label).fill("something")
    expect(form.locator(".option")).to_have_text(["--body", "--tags", "--keys", "--dir"])
    lines = "e => [...e.querySelectorAll('.command .option')].map(o => o.getClientRects().length)"
    for width in range(320, 420, 7):
        desk.set_viewport_size({"width": width, "height": 800})
        assert set(desk.locator("main").evaluate(lines)) == {1}, width
        assert overflow(desk) == 0, width
    top, table = (place.bounding_box() for place in (form, desk.get_by_role("region", name="Messages")))
    assert top is not None
    assert top["y"] < present(table)["y"]


def test_a_wide_screen_is_used(desk: Page) -> None:
    desk.set_viewport_size({"width": 2560, "height": 1100})
    go(desk, "/clients")
    assert present(desk.locator("main .panel").first.bounding_box())["width"] > 2000
    assert overflow(desk) == 0


def test_a_failover_shows_without_a_reload(desk: Page, live: LiveConsole) -> None:
    go(desk, "")
    desk.evaluate("window.stayed = true")
    old = live.cluster.master()
    os.kill(int(old["pid"]), signal.SIGKILL)
    tile = desk.locator(".tile", has_text="Last change of master")
    expect(tile).to_contain_text(f"{old['name']} →", timeout=SLOW_MS)
    expect(tile).to_contain_text(re.compile(r"\d+ ms"))
    expect(tile).to_contain_text("Failover")
    master = desk.get_by_role("row").filter(has=desk.get_by_text("Master", exact=True))
    expect(master).not_to_contain_text(old["name"])
    expect(desk.locator(".list")).to_contain_text("FailoverCompleted", timeout=SLOW_MS)
    expect(desk.locator(".health")).to_contain_text("3 of 3 in sync", timeout=SLOW_MS)
    assert desk.evaluate("window.stayed")
    for path, title in PAGES.items():
        go(desk, path)
        expect(desk.get_by_role("heading", level=1)).to_have_text(title)


def test_the_chart_has_axes_and_says_what_was_when(desk: Page) -> None:
    go(desk, "")
    chart = desk.locator("#rates")
    expect(chart.locator("canvas")).to_be_visible()
    box = present(chart.locator(".u-over").bounding_box())
    shown = chart.locator(".u-legend .u-value")
    expect(shown).to_have_count(3)

    desk.mouse.move(box["x"] + box["width"] - 4, box["y"] + 20)
    expect(shown.nth(0)).to_have_text(re.compile(r"^\d\d:\d\d:\d\d$"))
    expect(shown.nth(1)).to_have_text(re.compile(r"^[\d.]+k?$"))
    desk.evaluate("window.stayed = document.querySelector('#rates .uplot')")
    before = chart.get_attribute("data-chart")
    expect(chart).not_to_have_attribute("data-chart", before or "")
    desk.wait_for_function("window.stayed === document.querySelector('#rates .uplot')")
    expect(shown.nth(0)).to_have_text(re.compile(r"^\d\d:\d\d:\d\d$"))
    desk.get_by_role("link", name="The last 1h").click()
    expect(desk.locator(".ranges strong")).to_have_text("1h")
    expect(chart.locator("canvas")).to_be_visible()
    chart_data = json.loads(chart.get_attribute("data-chart") or "")
    assert chart_data["to"] - chart_data["from"] == pytest.approx(3600)
    assert any(value is not None for value in chart_data["data"][1])


COLOURED = """canvas => {
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    for (let at = 0; at < data.length; at += 4)
        if (data[at + 3] === 255 && Math.abs(data[at] - data[at + 2]) > 60) return true;
    return false;
}"""


def test_the_chart_is_drawn_in_its_colours(desk: Page) -> None:
    """A canvas takes no `light-dark()`: it would draw everything in black, and no text."""
    go(desk, "")
    canvas = desk.locator("#rates canvas")
    expect(canvas).to_be_visible()
    for _ in range(50):  # Two figures make a line; they come each few seconds.
        if canvas.evaluate(COLOURED):
            return
        desk.wait_for_timeout(200)
    pytest.fail("the chart has no coloured line")


def test_figures_move_and_a_reader_keeps_the_focus(desk: Page) -> None:
    go(desk, "/topics")
    cell = desk.get_by_role("row").filter(has=desk.get_by_role("link", name="Orders", exact=True)).locator("td").nth(1)
    before = cell.text_content() or ""
    desk.get_by_role("searchbox").fill("Ord")
    expect(cell).not_to_have_text(before, timeout=SLOW_MS)
    expect(desk.get_by_role("searchbox")).to_be_focused()
    expect(desk.get_by_role("searchbox")).to_have_value("Ord")


def test_a_console_that_ends_says_that_figures_are_old(chromium: Browser, live: LiveConsole) -> None:
    context = chromium.new_context()
    page = context.new_page()
    with console_of(live.cluster) as mine:
        page.goto(mine.link)
        expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
        expect(page.locator("#lost")).to_be_hidden()
    expect(page.locator("#lost")).to_contain_text("What you see is old", timeout=SLOW_MS)
    context.close()


def test_lag_by_queue_and_clients_with_their_versions(desk: Page) -> None:
    go(desk, "/groups/billing")
    members = desk.get_by_role("region", name="Members of the group")
    expect(members.get_by_role("row")).to_have_count(2)
    expect(members).to_contain_text("PYTHON v")
    expect(desk.get_by_role("region", name="Position by queue").get_by_role("row").nth(4)).to_be_visible()
    go(desk, "/groups?q=refunds")
    expect(desk.get_by_role("row").filter(has_text="refunds")).to_contain_text("offline")


def test_inconsistent_subscriptions_are_marked_with_who_subscribes_to_what(desk: Page) -> None:
    go(desk, "/clients")
    expect(desk.get_by_text("Inconsistent subscriptions")).to_be_visible(timeout=SLOW_MS)
    desk.get_by_role("link", name="mixed", exact=True).first.click()
    table = desk.get_by_role("region", name="Subscriptions by client")
    expect(table).to_contain_text("fruit")
    expect(table).to_contain_text("meat")
    go(desk, "/groups/billing")
    expect(desk.get_by_text("subscribe to different topics")).to_have_count(0)


def offsets(page: Page) -> list[tuple[str, int]]:
    """Queue and offset of each row of messages."""
    cells = (
        page.get_by_role("region", name="Messages")
        .locator("tbody tr")
        .evaluate_all(
            "rows => rows.map(r => [r.cells[1].textContent, Number(r.cells[2].textContent.replaceAll(',', ''))])"
        )
    )
    return [(queue, offset) for queue, offset in cells]


def test_a_message_by_key_id_and_time_in_three_forms(desk: Page) -> None:
    go(desk, "/messages")
    desk.get_by_label("Topic", exact=True).fill("Orders")
    desk.get_by_label("Key", exact=True).fill("order-4711")
    desk.get_by_role("button", name="Find").click()
    expect(desk.get_by_role("heading", name="1 message", exact=True)).to_be_visible()
    desk.get_by_role("region", name="Messages").get_by_role("link").click()
    expect(desk.locator("pre.body")).to_contain_text('"order": 4711')
    assert not desk.evaluate(TOUCHING)
    desk.get_by_role("link", name="Hex").click()
    expect(desk.locator("pre.body")).to_contain_text("000000  7b 22 6f 72 64 65 72")
    desk.get_by_role("link", name="Text").click()
    expect(desk.locator("pre.body")).to_contain_text('{"order": 4711, "items"')
    unique = desk.get_by_role("heading", level=1).text_content() or ""
    offset_id = desk.locator("dt", has_text="Offset id").locator("+ dd").text_content() or ""
    for choice in (f"id={unique}", f"id={offset_id}", "at=2020-01-01T00:00"):
        go(desk, f"/messages?topic=Orders&{choice}")
        expect(desk.get_by_role("region", name="Messages")).to_contain_text("order-4711")
    for wrong in ("at=yesterday", "before=1"):
        go(desk, f"/messages?topic=Orders&{wrong}")
        expect(desk.get_by_role("alert")).to_contain_text("is no")


def test_the_newest_messages_are_shown_and_paged_both_ways(desk: Page) -> None:
    go(desk, "/messages?topic=Orders")
    expect(desk.get_by_role("heading", name="50 messages")).to_be_visible()
    newest = offsets(desk)
    assert len(set(newest)) == 50
    desk.get_by_role("link", name="Older").click()
    expect(desk.get_by_role("heading", name="50 messages")).to_be_visible()
    older = offsets(desk)
    assert not set(newest) & set(older)
    per_queue = {queue: min(n for q, n in newest if q == queue) for queue, _ in newest}
    for queue, first in per_queue.items():
        behind = [n for q, n in older if q == queue]
        assert behind == list(range(first - 1, first - 1 - len(behind), -1)), "no message is left out"
    desk.get_by_role("link", name="Newer").click()
    expect(desk.get_by_role("heading", name="50 messages")).to_be_visible()
    assert set(offsets(desk)) == set(newest)


def test_messages_are_filtered_by_tag_text_and_property(desk: Page) -> None:
    for found in ("tags=fruit", "text=APPLES", "prop=TAGS%3Dfruit", "tags=fruit&text=pears"):
        go(desk, f"/messages?topic=Orders&{found}")
        expect(desk.get_by_role("heading", name="50 messages")).to_be_visible()
    for none in ("tags=meat", "text=bananas", "prop=nothing"):
        go(desk, f"/messages?topic=Orders&{none}")
        expect(desk.get_by_role("heading", name="0 messages")).to_be_visible()


def test_new_messages_come_to_a_live_page(desk: Page) -> None:
    go(desk, "/messages?topic=Orders")
    desk.get_by_role("link", name="Live").click()
    expect(desk.get_by_role("link", name="Live: stop")).to_be_visible()
    before = set(offsets(desk))
    first = desk.get_by_role("region", name="Messages").locator("tbody tr").first.locator("th")
    expect(first).not_to_have_text(first.text_content() or "", timeout=SLOW_MS)
    assert set(offsets(desk)) - before
    desk.get_by_role("button", name="Local time").click()
    expect(desk.locator("thead")).to_contain_text("Stored, local")


def test_a_message_is_sent_and_a_refused_form_keeps_what_was_typed(desk: Page, live: LiveConsole) -> None:
    go(desk, "/messages?topic=Orders")
    desk.get_by_text("Send a message").click()
    form = desk.locator("details.send form")
    form.get_by_label("Body").fill('{"typed": "by hand"}\nsecond line')
    form.get_by_label("Tag").fill("typed")
    form.get_by_label("Keys").fill("k-1 k-2")
    form.get_by_label("Properties").fill("no property")
    form.get_by_role("button", name="Send").click()
    expect(form.get_by_role("alert")).to_contain_text("'no property' is no property: write one name=value a line")
    assert form.get_by_label("Body").input_value() == '{"typed": "by hand"}\nsecond line'
    assert form.get_by_label("Keys").input_value() == "k-1 k-2"
    assert not accessibility_problems(desk)
    form.get_by_label("Properties").fill("content-type=text/plain\nshop = 7")
    expect(form.locator(".command code")).to_contain_text(
        "--tags typed --keys 'k-1 k-2' --property content-type=text/plain --property 'shop = 7'"
    )
    form.get_by_role("button", name="Send").click()
    expect(desk.locator("pre.body")).to_have_text('{"typed": "by hand"}\nsecond line')
    assert "/message?" in desk.url, "a reload sends nothing"
    expect(desk.locator("#content dl.facts").last).to_contain_text("shop")
    again = desk.locator(".command code").last.text_content() or ""
    assert again.startswith("gantry produce Orders --body ")
    unique = desk.get_by_role("heading", level=1).text_content() or ""
    where = ("--dir", str(live.cluster.folder.root))
    for options in (("--id", unique), ("--key", "k-2"), ("--tags", "typed"), ("--property", "shop=7")):
        done = live.cluster.gantry("messages", "Orders", *options, "-o", "json", *where)
        assert json.loads(done.stdout)["body"] == '{"typed": "by hand"}\nsecond line', options
    sent = live.cluster.gantry("produce", "Orders", "--body", "a\nb", "--property", "shop=8", *where)
    assert "1 messages" in sent.stderr
    assert "a b" in live.cluster.gantry("messages", "Orders", "--property", "shop=8", *where).stdout


def test_the_palette_leads_to_a_group_by_its_letters(desk: Page) -> None:
    go(desk, "")
    desk.keyboard.press("Control+k")
    expect(desk.locator("#palette-input")).to_be_focused()
    desk.keyboard.type("bill")
    expect(desk.locator("#palette-list a").first).to_have_text("billinggroup")
    assert not accessibility_problems(desk)
    desk.keyboard.press("Enter")
    expect(desk.get_by_role("heading", level=1)).to_have_text("billing")
    desk.keyboard.press("Control+k")
    desk.keyboard.type("dead")
    desk.keyboard.press("Enter")
    expect(desk.get_by_role("heading", level=1)).to_have_text("Dead letters")


def test_a_phone_shows_what_is_unread(desk: Page) -> None:
    desk.set_viewport_size({"width": 390, "height": 800})
    go(desk, "/groups")
    expect(desk.get_by_role("columnheader", name="Unread", exact=False).first).to_be_in_viewport(ratio=1)


def test_the_systems_topics_and_groups_are_hidden_until_asked(desk: Page, live: LiveConsole) -> None:
    for page, names in (
        ("/topics", ("a", live.cluster.name, f"{live.cluster.name}_REPLY_TOPIC")),
        ("/groups", ("CID_ONSAPI_OWNER",)),
    ):
        go(desk, page)
        for name in names:
            expect(desk.get_by_role("link", name=name, exact=True)).to_have_count(0)
        go(desk, f"{page}?system=true")
        for name in names:
            expect(desk.get_by_role("link", name=name, exact=True)).to_have_count(1)


def test_dead_letters_are_read_exported_and_sent_again(desk: Page) -> None:
    go(desk, "/dead")
    expect(desk.get_by_role("row").filter(has_text="refunds")).to_contain_text(str(LETTERS))
    desk.get_by_role("link", name="refunds").click()
    expect(desk.get_by_role("button", name="Resend chosen")).to_be_disabled()
    with desk.expect_download() as loading:
        desk.get_by_role("link", name="Export as JSON lines").click()
    lines = [json.loads(line) for line in loading.value.path().read_text().splitlines()]
    assert sorted(line["keys"] for line in lines) == [[f"k{n}"] for n in range(LETTERS)]
    assert {(line["group"], line["originTopic"]) for line in lines} == {("refunds", "Refunds")}
    desk.get_by_role("region", name="Dead letters").get_by_role("link").first.click()
    expect(desk.locator("pre.body")).to_contain_text("order ")
    desk.get_by_role("link", name="refunds").click()
    desk.get_by_label(re.compile("^Choose (?!all)")).first.check()
    desk.get_by_role("button", name="Resend 1 chosen").click()
    expect(desk.get_by_role("status").last).to_contain_text("1 of 1 dead letters were sent to group refunds")
    expect(desk.locator(".command code")).to_contain_text("gantry dlq resend refunds --id ")
    desk.get_by_role("link", name="Back").click()
    desk.get_by_role("button", name=f"Resend all {LETTERS} that wait").click()
    expect(desk.get_by_role("status").last).to_contain_text(f"{LETTERS} of {LETTERS} dead letters")
    go(desk, "/dead")
    row = desk.get_by_role("row").filter(has_text="refunds")
    expect(row.locator("td").first).to_have_text("0", timeout=SLOW_MS)


def make_letters(live: LiveConsole, group: str, count: int) -> None:
    """Put letters into the dead-letter queue of a group that has no members: that many failures would take long."""

    async def send() -> None:
        topic = f"%DLQ%{group}"
        async with Admin(live.cluster.name_servers) as admin, Producer(live.cluster.name_servers, "t") as producer:
            await admin.create_topic(topic, queues=1)
            for number in range(count):
                await producer.send(Message(topic, f"n {number}".encode(), keys=f"n{number}"))

    with ThreadPoolExecutor(1) as thread:
        thread.submit(lambda: asyncio.run(send())).result()


def test_dead_letters_are_paged_and_all_are_sent_again_beside_the_pages(desk: Page, live: LiveConsole) -> None:
    make_letters(live, "piled", 130)
    where = ("--dir", str(live.cluster.folder.root))
    live.cluster.gantry("group", "create", "piled", *where)
    go(desk, "/dead?q=pile")
    expect(desk.get_by_role("link", name="piled")).to_be_visible(timeout=SLOW_MS)
    desk.get_by_role("link", name="piled").click()
    table = desk.get_by_role("region", name="Dead letters")
    expect(table.get_by_role("row")).to_have_count(51)
    expect(table).to_contain_text("n129")  # the newest one first
    assert not accessibility_problems(desk)
    seen = set(table.locator("tbody tr td:nth-child(6)").all_text_contents())
    for rows in (50, 30):
        desk.get_by_role("link", name="Older").click()
        expect(table.get_by_role("row")).to_have_count(rows + 1)
        more = set(table.locator("tbody tr td:nth-child(6)").all_text_contents())
        assert not seen & more
        seen |= more
    assert seen == {f"n{n}" for n in range(130)}
    desk.get_by_role("link", name="Newer").click()
    expect(table).to_contain_text("n79")
    # It is not known how a group without members and offsets consumes: the run stops and says it.
    desk.get_by_role("button", name="Resend all 130 that wait").click()
    expect(desk.get_by_role("heading", level=1)).to_have_text("Resend all that wait")
    expect(desk.get_by_role("alert")).to_contain_text("stopped after 0 letters")
    expect(desk.get_by_role("alert")).to_contain_text("how group piled consumes")
    assert not accessibility_problems(desk)

    async def join() -> None:
        async def take(message: Any) -> None:
            return None

        async with Consumer(live.cluster.name_servers, "piled") as consumer:
            await consumer.subscribe("Orders", take)
            await asyncio.to_thread(stop.wait, 120)

    stop = threading.Event()
    with ThreadPoolExecutor(1) as thread:
        member = thread.submit(lambda: asyncio.run(join()))
        try:
            go(desk, "/groups/piled")
            expect(desk.get_by_role("region", name="Members of the group").get_by_role("row")).to_have_count(2)
            # Which member holds each queue: it says so itself.
            held = desk.get_by_role("region", name="Position by queue").get_by_role("row").filter(has_text="Orders")
            expect(held.first.locator("td").last).to_contain_text("@", timeout=SLOW_MS)
            go(desk, "/topics/Orders?group=piled")
            queues = desk.get_by_role("region", name="Queues")
            expect(queues).to_contain_text("Unread by piled")
            expect(queues.get_by_role("row").nth(1).locator("td").last).to_contain_text("@")
            expect(queues.get_by_role("row").nth(1).locator("td").first).to_have_text(live.cluster.master()["name"])
            go(desk, "/dead/piled/resend")
            desk.get_by_role("button", name="Go on").click()
            expect(desk.get_by_role("status").last).to_contain_text(
                "130 of 130 dead letters were sent to group piled", timeout=SLOW_MS
            )
        finally:
            stop.set()
            member.result()
    go(desk, "/dead")
    row = desk.get_by_role("row").filter(has_text="piled")
    expect(row.locator("td").first).to_have_text("0", timeout=SLOW_MS)
    go(desk, "/dead/piled")
    expect(table).to_contain_text("sent again")
    table.get_by_role("link").first.click()
    desk.get_by_role("button", name="Resend to piled").click()
    expect(desk.get_by_role("status").last).to_contain_text("1 of 1 dead letters")


def test_a_topic_shows_who_sends_to_it(desk: Page, live: LiveConsole) -> None:
    go(desk, "/topics/Orders")
    row = desk.get_by_role("region", name="Producers of the topic").get_by_role("row").nth(1)
    expect(row).to_contain_text("shop", timeout=SLOW_MS)
    expect(row).to_contain_text("127.0.0.1:")
    assert not accessibility_problems(desk)


def test_a_topic_is_changed_by_a_form(desk: Page, live: LiveConsole) -> None:
    where = ("--dir", str(live.cluster.folder.root))

    def topic_now(name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(live.cluster.gantry("topic", "describe", name, "-o", "json", *where).stdout)
        return found

    live.cluster.gantry("topic", "create", "Plain", "--queues", "4", "--retention", "2h", *where)
    live.cluster.gantry("topic", "create", "Kept", "--queues", "2", "--managed", *where)
    go(desk, "/topics/Plain/edit")
    assert not accessibility_problems(desk)
    form = desk.locator("form", has=desk.get_by_label("Retention"))
    expect(form.get_by_label("Queues in each")).to_have_value("4")
    expect(form.get_by_label("Retention")).to_have_value("7200s")
    form.get_by_label("Retention").fill("1s")
    form.get_by_label("Queues in each").fill("6")
    form.get_by_role("button", name="Change the topic").click()
    expect(desk.get_by_role("alert")).to_contain_text("retention is too short: write 1m or more")
    expect(form.get_by_label("Queues in each")).to_have_value("6")
    assert topic_now("Plain")["groups"][0]["writeQueues"] == 4, "nothing was changed"
    form.get_by_label("Retention").fill("")
    form.get_by_label("Type").select_option("FIFO")
    form.get_by_role("button", name="Change the topic").click()
    expect(desk.get_by_role("status").last).to_contain_text("Plain is changed")
    expect(desk.locator(".command code")).to_contain_text(
        "gantry topic change Plain --queues 6 --type FIFO --retention none"
    )
    found = topic_now("Plain")
    assert (found["groups"][0]["writeQueues"], found["attributes"]) == (6, {"message.type": "FIFO"})

    go(desk, "/topics/Kept/edit")
    expect(desk.get_by_text("BrokerTopic kept manages it")).to_be_visible()
    form.get_by_label("Queues in each").fill("3")
    live.cluster.gantry("topic", "change", "Kept", "--permission", "ReadOnly", *where)  # by somebody else meanwhile
    form.get_by_role("button", name="Change the topic").click()
    expect(desk.get_by_role("alert")).to_contain_text("Kept was changed by others meanwhile")
    form.get_by_label("Permission").select_option("ReadWrite")
    form.get_by_role("button", name="Change the topic").click()
    expect(desk.get_by_role("status").last).to_contain_text("BrokerTopic kept is changed")
    found = topic_now("Kept")
    assert (found["groups"][0]["writeQueues"], found["groups"][0]["permission"]) == (3, "ReadWrite")
    assert found["resource"]["spec"]["queuesPerGroup"] == 3
    go(desk, "/topics/Kept")
    expect(desk.get_by_role("link", name="Change…")).to_be_visible()


def test_a_consumer_group_is_changed_by_a_form(desk: Page, live: LiveConsole) -> None:
    where = ("--dir", str(live.cluster.folder.root))

    def group_now(name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(live.cluster.gantry("group", "describe", name, "-o", "json", *where).stdout)
        return found

    live.cluster.gantry("group", "create", "plain", "--retry-max", "4", *where)
    live.cluster.gantry("group", "create", "kept", "--managed", "--retry-max", "5", *where)
    go(desk, "/groups/plain/edit")
    assert not accessibility_problems(desk)
    form = desk.locator("form", has=desk.get_by_label("Deliveries"))
    expect(form.get_by_label("Deliveries")).to_have_value("4")
    expect(form.get_by_label("Consumption")).to_have_value("consume")
    form.get_by_label("Deliveries").fill("7")
    form.get_by_label("Order of a queue").select_option("orderly")
    form.get_by_label("Consumption").select_option("no-consume")
    form.get_by_role("button", name="Change the group").click()
    expect(desk.get_by_role("status").last).to_contain_text("plain is changed")
    expect(desk.locator(".command code")).to_contain_text(
        "gantry group change plain --retry-max 7 --orderly --no-consume"
    )
    names = ("retryMax", "consumeOrderly", "consumeEnable", "broadcast")
    for row in group_now("plain")["groups"]:
        assert tuple(row[name] for name in names) == (7, True, False, True)

    go(desk, "/groups/kept/edit")
    expect(desk.get_by_text("ConsumerGroup kept manages it")).to_be_visible()
    expect(form.get_by_label("Consumption")).to_have_value("")
    form.get_by_label("Deliveries").fill("6")
    live.cluster.gantry("group", "change", "kept", "--retry-queues", "2", *where)  # by somebody else meanwhile
    form.get_by_role("button", name="Change the group").click()
    expect(desk.get_by_role("alert")).to_contain_text("kept was changed by others meanwhile")
    form.get_by_role("button", name="Change the group").click()
    expect(desk.get_by_role("status").last).to_contain_text("ConsumerGroup kept is changed")
    found = group_now("kept")
    assert (found["groups"][0]["retryMax"], found["groups"][0]["retryQueues"]) == (6, 2)
    assert found["resource"]["spec"]["retryMax"] == 6
    go(desk, "/groups/kept")
    expect(desk.get_by_role("link", name="Change…")).to_be_visible(timeout=SLOW_MS)


def test_a_user_is_changed_and_gets_a_new_key(desk: Page, live: LiveConsole) -> None:
    where = ("--dir", str(live.cluster.folder.root))
    live.cluster.gantry("user", "create", "clerk", "--allow", "Topic:Orders:Pub@10.0.0.0/8", *where)
    go(desk, "/users")
    row = desk.get_by_role("row").filter(has_text="clerk")
    expect(row).to_contain_text("Topic:Orders:Pub@10.0.0.0/8")
    row.get_by_role("link", name="Change…").click()
    assert not accessibility_problems(desk)
    form = desk.locator("form", has=desk.get_by_label("May not"))
    expect(form.locator("textarea[name=allow]")).to_have_value("Topic:Orders:Pub@10.0.0.0/8")
    form.get_by_label("May not").fill("Topic:Secret")
    form.get_by_role("button", name="Change the user").click()
    expect(desk.get_by_role("alert")).to_contain_text("'Topic:Secret' is no rule")
    expect(form.get_by_label("May not")).to_have_value("Topic:Secret")
    form.get_by_label("May not").fill("Topic:Secret-*:Any")
    form.get_by_role("button", name="Change the user").click()
    expect(desk.get_by_role("status").last).to_contain_text("clerk is changed")
    users = json.loads(live.cluster.gantry("user", "list", "-o", "json", *where).stdout)
    rules = next(u for u in users if u["metadata"]["name"] == "clerk")["spec"]["rules"]
    assert [(r["name"], r["decision"], r.get("sources")) for r in rules] == [
        ("Orders", "Allow", ["10.0.0.0/8"]), ("Secret-", "Deny", []),
    ]  # fmt: skip
    key = live.cluster.gantry("user", "key", "clerk", *where).stdout
    go(desk, "/users/clerk/edit")
    desk.get_by_role("button", name="Make a new key").click()
    expect(desk.get_by_role("status").last).to_contain_text("clerk: a new secret key is in")
    assert live.cluster.gantry("user", "key", "clerk", *where).stdout != key


def test_a_reset_is_previewed_by_queue_and_done(desk: Page) -> None:
    go(desk, "/groups/billing")
    desk.get_by_role("link", name="Reset offsets").click()
    desk.get_by_label("Time, UTC").fill("2020-01-01T00:00")
    desk.get_by_role("button", name="Preview", exact=True).click()
    once_more = desk.locator(".tile", has_text="Read once more").locator(".value")
    assert int((once_more.text_content() or "0").replace(",", "")) > 0
    expect(desk.get_by_role("region", name="Preview by queue").get_by_role("row").nth(4)).to_be_visible()
    expect(desk.locator(".command code")).to_contain_text("gantry group reset billing --topic Orders")
    desk.get_by_role("button", name="Reset billing in Orders").click()
    expect(desk.get_by_role("status").last).to_contain_text(
        "billing continues at the chosen place in 4 queues of Orders"
    )


def test_actions_show_their_command_and_do_what_they_say(desk: Page, live: LiveConsole) -> None:
    go(desk, "/actions")
    topic = desk.locator("form", has=desk.get_by_label("Queues"))
    topic.get_by_label("Name").fill("Invoices")
    topic.get_by_label("Queues").fill("3")
    shown = topic.locator(".command code")
    expect(shown).to_have_text(f"gantry topic create Invoices --queues 3 --dir {live.cluster.folder.root}")
    topic.get_by_label("Kept by").select_option("a BrokerTopic")
    expect(shown).to_have_text(f"gantry topic create Invoices --queues 3 --managed --dir {live.cluster.folder.root}")
    topic.get_by_label("Kept by").select_option("no one")
    topic.get_by_role("button", name="Create").click()
    expect(desk.get_by_role("status").last).to_have_text("Invoices: 3 queues in a")
    go(desk, "/topics?q=Invoices")
    expect(desk.get_by_role("link", name="Invoices", exact=True)).to_be_visible(timeout=SLOW_MS)

    go(desk, "/actions")
    user = desk.locator("form", has=desk.get_by_label("May"))
    user.get_by_label("Name").fill("reporting")
    user.get_by_label("May").fill("Topic:Orders:Sub Group:reporting:Sub")
    expect(user.locator(".command code")).to_contain_text(
        "gantry user create reporting --allow Topic:Orders:Sub --allow Group:reporting:Sub"
    )
    user.get_by_role("button", name="Create").click()
    expect(desk.get_by_role("status").last).to_contain_text("reporting: its keys are in")

    live.cluster.until("whole", live.cluster.whole, 60)
    go(desk, "/actions")
    old = live.cluster.master()["name"]
    switch = desk.locator("form", has=desk.get_by_label("Broker group"))
    other = next(name for name in live.cluster.members() if name != old)
    switch.get_by_label("To").select_option(other)
    expect(switch.locator(".command code")).to_contain_text(f"gantry switchover a --to {other}")
    switch.get_by_role("button", name="Switch over").click()
    expect(desk.get_by_role("status").last).to_contain_text(f"{other} leads a in epoch")
    go(desk, "/actions")
    bad = desk.locator("form", has=desk.get_by_label("May"))
    bad.get_by_label("Name").fill("admin")
    bad.get_by_role("button", name="Create").click()
    expect(desk.get_by_text("write another name")).to_be_visible()


def test_a_topic_a_group_and_a_user_are_deleted_by_their_name(desk: Page, live: LiveConsole) -> None:
    where = ("--dir", str(live.cluster.folder.root))
    live.cluster.gantry("topic", "create", "Gone", "--queues", "1", *where)
    live.cluster.gantry("group", "create", "gone", *where)
    live.cluster.gantry("user", "create", "gone", "--allow", "Topic:Gone-*:Pub,Sub", *where)
    go(desk, "/users")
    expect(desk.get_by_role("row").filter(has_text="gone")).to_contain_text("Topic:Gone-*:Pub,Sub")
    for kind, name in (("topics", "Gone"), ("groups", "gone"), ("users", "gone")):
        go(desk, f"/delete/{kind}/{name}")
        assert not accessibility_problems(desk)
        field = desk.get_by_label("Write the name")
        field.fill("another")
        desk.get_by_role("button", name="Delete the").click()
        expect(desk.get_by_role("alert")).to_contain_text(f"write {name}")
        expect(field).to_have_value("another")
        field.fill(name)
        desk.get_by_role("button", name="Delete the").click()
        expect(desk.get_by_role("status").last).to_contain_text(f"{name} is deleted")
        assert "/done/" in desk.url
    go(desk, "/users")
    expect(desk.get_by_role("row").filter(has_text="gone")).to_have_count(0)


def test_without_authentication_the_page_says_that_there_is_no_audit(desk: Page) -> None:
    go(desk, "/activity")
    expect(desk.get_by_text("Members write no audit while authentication is disabled")).to_be_visible()


def test_audit_and_report_of_a_cluster_in_kubernetes(chromium: Browser) -> None:
    """What the brokers and the status of the BrokerCluster have, on the page itself; also on a phone."""
    with running(InKubernetes()) as console, person(chromium, console.link()) as page:
        for width in (1280, 400):
            page.set_viewport_size({"width": width, "height": 900})
            page.goto(f"{console.base}/c/local/fake/activity")
            audit = page.get_by_role("region", name="Audit")
            expect(audit.get_by_role("row")).to_have_count(2 if width > 400 else 1)  # cards have no heading
            expect(audit).to_contain_text("DELETE_TOPIC_IN_BROKER")
            expect(page.get_by_text("12 records; compaction would save 3.0 MiB")).to_be_visible()
            expect(page.get_by_role("region", name="Topics with the largest savings")).to_contain_text("3.0 MiB")
            expect(page.get_by_text("report", exact=False).last).to_be_visible()
            assert overflow(page) == 0
            assert accessibility_problems(page) == []
        with page.expect_popup() as opening:
            page.get_by_role("link", name="Open the last report").click()
        expect(opening.value).to_have_title("drawn")  # by the report's own script
        assert opening.value.evaluate("self.origin") == "null", "it cannot reach the console"


def test_keys_reach_the_search_and_every_page(chromium: Browser) -> None:
    with running(FakeSource(10_000)) as console, person(chromium, console.link()) as page:
        expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
        page.keyboard.press("g")
        page.keyboard.press("t")
        expect(page.get_by_text("of 10,000")).to_be_visible(timeout=SLOW_MS)
        page.keyboard.press("/")
        expect(page.get_by_role("searchbox")).to_be_focused()
        page.keyboard.type("orders-09999")
        page.keyboard.press("Enter")
        expect(page.get_by_role("row")).to_have_count(2)
        page.keyboard.press("?")
        expect(page.get_by_role("dialog")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_be_hidden()
        # Everything is reached by Tab, the link to the content first.
        page.reload()
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name="Skip to the page")).to_be_focused()


def test_the_theme_is_kept(chromium: Browser) -> None:
    with running(FakeSource()) as console, person(chromium, console.link(), color_scheme="light") as page:
        expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
        light = page.evaluate("getComputedStyle(document.body).backgroundColor")
        page.get_by_role("button", name="Dark colours").click()
        page.reload()
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") != light
        expect(page.get_by_role("button", name="Light colours")).to_be_visible()


COLOURED_BETWEEN = """(canvas, [first, last]) => {
    const plot = document.querySelector("#rates .u-over").getBoundingClientRect(), all = canvas.getBoundingClientRect();
    const at = part => Math.round((plot.left - all.left + part * plot.width) * canvas.width / all.width);
    const { data } = canvas.getContext("2d").getImageData(at(first), 0, at(last) - at(first), canvas.height);
    for (let i = 0; i < data.length; i += 4)
        if (data[i + 3] === 255 && Math.abs(data[i] - data[i + 2]) > 60) return true;
    return false;
}"""


def test_an_outage_is_a_gap_in_the_chart(chromium: Browser) -> None:
    """By time: two runs of traffic with 100 seconds without an answer between them."""

    class Kept(NoHistory):
        async def read(self, now: float) -> tuple[Point, ...]:
            return tuple(Point(now - age, 50.0, 40.0) for age in range(290, 0, -2) if not 100 < age < 200)

    source = FakeSource()
    source.history = Kept()
    with running(source) as console, person(chromium, console.link()) as page:
        canvas = page.locator("#rates canvas")
        expect(canvas).to_be_visible()
        for first, last, drawn in ((0.1, 0.3, True), (0.42, 0.58, False), (0.72, 0.9, True)):
            assert canvas.evaluate(COLOURED_BETWEEN, [first, last]) is drawn, (first, last)


def test_a_cluster_that_is_not_ready_is_red(chromium: Browser) -> None:
    class NotReady(FakeSource):
        async def resource(self) -> dict[str, Any]:
            found = await super().resource()
            why = {"message": "group a has no master", "lastTransitionTime": "2026-01-01"}
            found["status"]["conditions"].append({"type": "Ready", "status": "False", **why})
            return found

    with running(NotReady()) as console, person(chromium, console.link()) as page:
        expect(page.locator(".health .badge")).to_have_class(re.compile(r"\bbad\b"), timeout=SLOW_MS)
        expect(page.locator(".health")).to_contain_text("group a has no master")
        expect(page.locator(".conditions .badge.bad")).to_have_text("Ready: False")


def test_unread_counts_queues_that_a_group_has_never_read(desk: Page, live: LiveConsole) -> None:
    where = ("--dir", str(live.cluster.folder.root))
    live.cluster.gantry("topic", "create", "Counted", "--queues", "8", *where)
    live.cluster.gantry("produce", "Counted", "--count", "300", "--size", "10", *where)
    live.cluster.gantry("consume", "Counted", "--group", "partly", "--count", "100", "--quiet", *where)
    listed = json.loads(live.cluster.gantry("group", "list", "-o", "json", *where).stdout)
    (row,) = (one for one in listed if one["group"] == "partly")
    assert row["lag"] == 200, row
    go(desk, "/groups?q=partly")
    unread = desk.get_by_role("row").filter(has=desk.get_by_role("link", name="partly", exact=True))
    expect(unread.locator("td").get_by_text("200", exact=True)).to_be_visible(timeout=SLOW_MS)


def test_a_consumer_by_grpc_is_online(desk: Page, live: LiveConsole) -> None:
    address = live.cluster.resource()["status"]["proxy"]["address"]
    with SimpleConsumer(f"grpc://{address}", "modern") as consumer:
        consumer.subscribe("Orders")
        assert consumer.receive(wait_s=20)
        go(desk, "/groups?q=modern")
        row = desk.get_by_role("row").filter(has=desk.get_by_role("link", name="modern", exact=True))
        expect(row).to_be_visible(timeout=SLOW_MS)
        expect(row).not_to_contain_text("offline", timeout=SLOW_MS)
        go(desk, "/groups/modern")
        members = desk.get_by_role("region", name="Members of the group")
        expect(members.get_by_role("row")).to_have_count(2, timeout=SLOW_MS)
        expect(members).to_contain_text("127.0.0.1")


STATED = {
    "/topics": "There is no topic yet", "/topics?q=Ord": "No topic has",
    "/groups": "No consumer group is known", "/groups?q=bil": "No group has",
    "/dead": "No consumer group has dead letters", "/dead?q=ref": "No group with dead letters has",
    "/clients": "No client is connected", "/clients?q=x": "No client matches",
    "/messages?topic=Orders": "The topic holds no message", "/messages?topic=Orders&key=x": "Nothing was found",
}  # fmt: skip
"""What pages say about a cluster that has nothing. It is not true where nobody can tell."""


def test_what_nobody_knows_is_not_stated(chromium: Browser, desk: Page, live: LiveConsole) -> None:
    """The last test: the supervisor is killed, then every broker. All comes back at the end."""
    go(desk, "")
    health = desk.locator(".health")
    os.kill(live.cluster.supervisor_pid(), signal.SIGKILL)
    try:
        expect(health).to_contain_text("nothing is restarted and no failover happens", timeout=SLOW_MS)
        expect(health.locator(".badge")).to_have_class(re.compile(r"\bbad\b"))
        for member in live.cluster.members().values():
            os.kill(int(member["pid"]), signal.SIGKILL)
        expect(desk.locator(".alert.bad:not(#lost)")).to_contain_text(
            "group a has no master: cannot tell", timeout=SLOW_MS
        )
        with console_of(live.cluster) as mine, person(chromium, mine.link) as page:
            for path, stated in STATED.items():
                page.goto(mine.base + path)
                expect(page.locator("main")).to_contain_text("cannot tell", timeout=SLOW_MS)
                expect(page.get_by_text(stated)).to_have_count(0)
    finally:
        live.cluster.up()
