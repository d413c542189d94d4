"""What pages compute from the answers of brokers: rows, health, forecasts, bodies and previews."""

from __future__ import annotations

import gzip
import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from gantry_broker.client import ReceivedMessage
from gantry_operator.console.bodies import MAX_SHOWN, Content, body_view, content_of, hex_dump, preview
from gantry_operator.console.collector import Collector
from gantry_operator.console.health import disk_of, health_of, members_of
from gantry_operator.console.history import FileHistory, NoHistory, rows_of
from gantry_operator.console.recent_senders import Sender, senders_of, with_clients
from gantry_operator.console.render import duration, environment, harmless, labelled, options_whole, rate, size, time_ms
from gantry_operator.console.rows import (
    GROUP_ORDERS,
    TOPIC_ORDERS,
    ClientRow,
    GroupTables,
    choose,
    combine,
    page_of,
    queues_of,
)
from gantry_operator.console.snapshot import (
    OLD_S,
    WINDOWS,
    ClusterKey,
    MemberSeen,
    Point,
    Snapshot,
    chart_of,
    runs_of,
    with_point,
)
from gantry_operator.console.sources import audit_lines
from gantry_operator.topics.resets import preview_of
from markupsafe import Markup

from tests.console.fake import FakeSource, member_status, tables
from tests.support.running import running, until

KEY = ClusterKey("local", "fake")


def test_the_topic_for_replies_is_the_systems() -> None:
    found = tables()
    found["topics"]["fake_REPLY_TOPIC"] = found["topics"]["orders-00000"]
    rows = combine({"a": GroupTables(1.0, found)}, {}).topics
    assert (rows["fake_REPLY_TOPIC"].system, rows["orders-00000"].system) == (True, False)


def test_rows_of_two_broker_groups_are_added() -> None:
    parts = {"a": GroupTables(1.0, tables()), "b": GroupTables(1.0, tables())}
    found = combine(parts, {})
    assert found.topics["orders-00000"].queues == 8
    assert found.topics["orders-00000"].messages == 80
    assert found.topics["orders-00000"].rate is None
    assert found.groups["billing"].lag == 12
    assert found.groups["billing"].inconsistent
    assert found.groups["billing"].topics == ["orders-00000"]
    assert sorted(found.groups["billing"].clients) == ["10.0.0.1@1", "10.0.0.2@1"]
    assert not found.groups["late"].online
    assert found.clients["10.0.0.1@1"].produces == ["shop"]
    assert (found.dead["billing"].letters, found.dead["billing"].waiting) == (14, 10)
    assert [(q.broker, q.queue) for q in queues_of(found, "orders-00000")][:5] == [
        ("a", 0), ("a", 1), ("a", 2), ("a", 3), ("b", 0),
    ]  # fmt: skip


def test_rates_are_of_the_time_between_two_answers_of_one_process() -> None:
    before = {"a": GroupTables(1.0, tables(now_ms=1_000_000, sent=100))}
    after = {"a": GroupTables(3.0, tables(now_ms=1_002_000, sent=300))}
    found = combine(after, before)
    assert found.topics["orders-00001"].rate == 100
    assert found.received == 300
    assert found.groups["billing"].rate == 100
    restarted = {"a": GroupTables(3.0, tables(now_ms=1_002_000, sent=3) | {"started_ms": 2})}
    assert combine(restarted, before).topics["orders-00001"].rate is None
    assert combine(restarted, before).received is None


def test_senders_of_a_topic_are_counted_and_joined_with_their_connections() -> None:
    def sent(host: str, port: int, store_ms: int) -> ReceivedMessage:
        record = SimpleNamespace(born_host=(host, port), store_ms=store_ms)
        return cast("ReceivedMessage", SimpleNamespace(record=record, store_ms=store_ms))

    senders = senders_of([sent("10.0.0.1", 4001, 5), sent("::1", 4002, 9), sent("10.0.0.1", 4001, 7)])
    assert senders == [Sender("[::1]:4002", 1, 9), Sender("10.0.0.1:4001", 2, 7)]
    shop = ClientRow("shop@1", "10.0.0.1:4000", "PYTHON", "v5", {"10.0.0.1:4000", "10.0.0.1:4001"})
    assert [row.client for row in with_clients(senders, {"shop@1": shop})] == [None, shop]


def test_topics_are_searched_sorted_and_paged() -> None:
    rows = combine({"a": GroupTables(1.0, tables(120))}, {}).topics.values()
    found = choose(rows, TOPIC_ORDERS, "ORDERS-000", "name", False)
    assert [t.name for t in found][:2] == ["orders-00000", "orders-00001"]
    page = page_of(found, 9)
    assert (page.number, page.pages, page.total, page.first, page.last) == (2, 2, 100, 51, 100)
    assert not choose(rows, TOPIC_ORDERS, "%DLQ%", "name", False)
    assert choose(rows, TOPIC_ORDERS, "%dlq%", "no such order", True)[0].name == "%DLQ%billing"
    assert page_of([], 1).first == 0


def test_groups_with_the_most_unread_come_first() -> None:
    rows = combine({"a": GroupTables(1.0, tables())}, {}).groups.values()
    assert [g.name for g in choose(rows, GROUP_ORDERS, "", "lag", False)] == ["billing", "late"]


def snapshot(now: float = 100.0) -> Snapshot:
    members = {
        f"fake-a-{n}": MemberSeen(
            f"fake-a-{n}", "a", member_status(f"fake-a-{n}", n, "Master" if n == 0 else "Slave"), now
        )
        for n in range(3)
    }
    status = {
        "phase": "Running",
        "conditions": [{"type": "Available", "status": "True", "message": "sent and read", "lastTransitionTime": "t"}],
        "members": [{"name": f"fake-a-{n}", "group": "a", "inSync": True} for n in range(3)],
    }
    parts = {"a": GroupTables(now, tables())}
    return Snapshot(KEY, 1, {"status": status}, members=members, tables=combine(parts, {}))


def test_a_healthy_cluster_says_so_in_one_line() -> None:
    health = health_of(snapshot(), 101.0)
    assert (health.tone, health.phase, health.summary) == ("good", "Running", "sent and read")
    assert (health.ready, health.members) == (3, 3)
    assert not health.old


def test_a_member_that_is_gone_shows_before_the_status_does() -> None:
    seen = snapshot()
    gone = replace(seen.members["fake-a-0"], problem="its process does not run")
    seen = replace(seen, members={**seen.members, "fake-a-0": gone})
    health = health_of(seen, 101.0)
    assert (health.tone, health.summary) == ("warn", "not answering: fake-a-0")
    member = members_of(seen, 101.0)[0]
    assert (member.role, member.tone, member.in_sync, member.reason) == (
        "Unknown", "bad", None, "its process does not run",
    )  # fmt: skip


def test_the_in_sync_set_is_that_of_the_newest_leadership() -> None:
    seen = snapshot()
    newer = member_status("fake-a-1", 1, "Master", epoch=2) | {"in_sync": [{"member": 1, "incarnation": "i1"}]}
    seen = replace(seen, members={**seen.members, "fake-a-1": MemberSeen("fake-a-1", "a", newer, 100.0)})
    assert [m.in_sync for m in members_of(seen, 101.0)] == [False, True, False]


def test_old_figures_say_their_age() -> None:
    health = health_of(snapshot(100.0), 100.0 + OLD_S + 5)
    assert health.age_s == OLD_S + 5
    assert health.old == [f"topics and groups of broker group a: {OLD_S + 5:.0f} s old"]


@pytest.mark.parametrize(
    ("growth", "full_in", "tone"),
    [
        (None, None, "good"),
        ((1.0, 30.0), None, "good"),  # measured too briefly
        ((1.0, 60.0), 60_000, "bad"),
        ((0.1, 600.0), 600_000, "warn"),
        ((0.0001, 600.0), None, "good"),  # in years
        ((0.0, 600.0), None, "good"),
    ],
)
def test_the_forecast_of_a_disk(growth: tuple[float, float] | None, full_in: float | None, tone: str) -> None:
    disk = disk_of(member_status("m", 0), growth)
    assert disk is not None
    assert disk.full_in_s == (None if full_in is None else pytest.approx(full_in))
    assert disk.tone == tone


def test_a_body_is_shown_as_what_it_is() -> None:
    assert body_view(b'{"a":1}').text == '{\n  "a": 1\n}'
    assert body_view(b'{"a":1}', "text").text == '{"a":1}'
    assert body_view(b"17").kind == "text"
    assert body_view("Grüße".encode()).text == "Grüße"
    assert body_view(b"\x00\x01\xff").kind == "hex"
    assert body_view(b"not json", "json").kind == "text"
    deep = body_view(b"[" * 10_000)
    assert (deep.kind, deep.size) == ("text", 10_000)


def test_a_long_body_is_cut_and_says_so() -> None:
    for body in (b"x" * (MAX_SHOWN + 1), b'{"a":"' + b"x" * MAX_SHOWN + b'"}', b"\x00" * (MAX_SHOWN + 1)):
        view = body_view(body)
        assert view.cut
        assert view.shown <= MAX_SHOWN
        assert len(view.text) < 6 * MAX_SHOWN
    assert not body_view(b"x" * MAX_SHOWN).cut


def test_a_dump_has_offsets_bytes_and_characters() -> None:
    assert hex_dump(b"Gantry\x00") == f"000000  {'47 61 6e 74 72 79 00':<23}  {'':<23}  Gantry."
    assert preview(b"a\nb" + b"c" * 300) == "a\N{MIDDLE DOT}b" + "c" * 117 + "\N{HORIZONTAL ELLIPSIS}"


def test_the_preview_of_a_reset_counts_what_is_skipped_and_repeated() -> None:
    found = preview_of(
        [("a", 0, 5, 100, 40, 60), ("a", 1, 5, 100, 40, 2), ("a", 2, 5, 100, None, 30), ("a", 3, 5, 9, 9, 99)]
    )
    assert [(r.target, r.skipped, r.repeated) for r in found.rows] == [(60, 20, 0), (5, 0, 35), (30, 25, 0), (9, 0, 0)]
    assert (found.skipped, found.repeated, found.remaining) == (45, 35, 40 + 95 + 70)


def test_numbers_and_times() -> None:
    assert [rate(v) for v in (None, 0, 0.01, 0.44, 12.2, 999.6, 12_300, 4.4e6)] == [
        "\N{EN DASH}", "0", "<0.1", "0.4", "12", "1.0k", "12k", "4.4M",
    ]  # fmt: skip
    assert [size(v) for v in (0, 1023, 1024, 150 * 1024, 3 << 30)] == ["0 B", "1023 B", "1.0 KiB", "150 KiB", "3.0 GiB"]
    assert [duration(v) for v in (3, 119, 7200, 90 * 3600)] == ["3 s", "2 min", "2 h", "4 d"]
    assert time_ms(1_764_059_041_005) == "2025-11-25 08:24:01.005"
    assert time_ms(1 << 62) == "\N{EN DASH}"


def test_lines_of_the_audit_are_found_in_a_log() -> None:
    log = (
        'INFO something {"time_ms":1}\n'
        'WARNING gantry.audit: {"time_ms":5,"result":"refused"}\n'
        'WARNING gantry.audit: {"time_ms":6,"resu\n'
        'WARNING gantry.audit: {"time_ms":"x"}\n'
    )
    assert audit_lines(log) == [{"time_ms": 5, "result": "refused"}]


def test_a_dead_supervisor_and_a_cluster_that_is_not_ready_are_red() -> None:
    seen = snapshot()
    alone = replace(seen, resource={"status": {**seen.status, "supervised": False}})
    health = health_of(alone, 101.0)
    assert (health.tone, health.phase) == ("bad", "Running")
    assert health.summary.startswith("`gantry up` is not running: nothing is restarted")
    frozen = {"supervised": False, "supervisor": {"message": "`gantry up` (process 4711) did not answer within 1 s"}}
    health = health_of(replace(seen, resource={"status": {**seen.status, **frozen}}), 101.0)
    assert health.summary.startswith("`gantry up` (process 4711) did not answer within 1 s: nothing is restarted")
    ready = {"type": "Ready", "status": "False", "message": "no write reaches group a", "lastTransitionTime": "t"}
    for phase, tone in (("Running", "bad"), ("Degraded", "bad"), ("Updating", "warn"), ("Paused", "warn")):
        changed = {**seen.status, "phase": phase, "conditions": [ready]}
        health = health_of(replace(seen, resource={"status": changed}), 101.0)
        assert (health.tone, health.summary) == (tone, "no write reaches group a"), phase


def test_a_standby_that_follows_is_no_fault_and_answers_for_its_group() -> None:
    seen = snapshot()
    site = {"role": "Standby", "follows": True}
    says = "follows the archive of another cluster"
    members = {
        name: replace(m, status={**(m.status or {}), "role": "Waiting", "site": site, "in_sync": [], "reason": says})
        for name, m in seen.members.items()
    }
    rows = [{"name": name, "group": "a"} for name in members]
    standby = replace(seen, members=members, resource={"status": {**seen.status, "members": rows}})
    health = health_of(standby, 101.0)
    assert (health.tone, health.standby, health.ready, health.silent) == ("good", True, 3, [])
    assert {(m.role, m.tone, m.in_sync) for m in members_of(standby, 101.0)} == {("Standby", "good", None)}
    assert standby.silent(101.0) == ()
    behind = {
        name: replace(m, status={**(m.status or {}), "site": site | {"follows": False}}) for name, m in members.items()
    }
    assert members_of(replace(standby, members=behind), 101.0)[0].tone == "warn"


def test_a_group_without_a_master_makes_empty_tables_unknown() -> None:
    seen = snapshot()
    followers = {name: m for name, m in seen.members.items() if name != "fake-a-0"}
    gone = replace(seen.members["fake-a-0"], problem="its process does not run")
    health = health_of(replace(seen, members={**followers, "fake-a-0": gone}, tables=combine({}, {})), 101.0)
    assert (health.tone, health.unknown) == ("bad", "group a has no master: cannot tell")
    unread = health_of(replace(seen, tables=combine({}, {})), 101.0)
    assert unread.unknown == "group a has not answered yet: cannot tell"
    assert health_of(Snapshot(KEY), 101.0).unknown == "no member has answered yet: cannot tell"
    assert health_of(seen, 101.0).unknown == ""


def test_the_chart_is_by_time_and_has_gaps() -> None:
    points: tuple[Point, ...] = ()
    for at in [*range(0, 100, 2), *range(200, 240, 2)]:
        points = with_point(points, Point(float(at), 5.0, 1.0))
    runs = runs_of(points, 240.0)
    assert [(run[0].at, run[-1].at) for run in runs] == [(0.0, 98.0), (200.0, 238.0)], "an outage is a gap"
    assert [(run[0].at, run[-1].at) for run in runs_of(points, 520.0)] == [(220.0, 238.0)], "old traffic moves away"
    assert runs_of(points, 600.0) == []
    several = with_point(with_point((), Point(10.0, 1.0, 0.0)), Point(10.4, 3.0, 0.0))
    assert several == (Point(10.4, 3.0, 0.0),), "answers of several broker groups are one point"
    slow = tuple(Point(float(at), 1.0, 1.0) for at in range(0, 300, 20))
    assert len(runs_of(slow, 300.0)) == 1, "large tables come less often"


def test_the_chart_keeps_hours_at_a_bounded_size() -> None:
    points: tuple[Point, ...] = ()
    for at in range(0, 30_000, 2):
        points = with_point(points, Point(float(at), float(at % 60), 1.0))
    assert len(points) < 21_600 / 30 + 300 / 2 + 40
    assert points[0].at >= 29_998 - 21_600
    hour = [p for p in points if 26_400 <= p.at < 29_000]
    assert {round(p.received) for p in hour} == {14, 44}, "an older point is the mean of half a minute"
    chart = chart_of(points, 30_000.0, WINDOWS["6h"])
    assert (chart["from"], chart["to"]) == (8_400.0, 30_000.0)
    assert None not in chart["data"][1], "thinned points are no gap"
    assert len(chart_of(points, 30_000.0, WINDOWS["5m"])["data"][0]) == 150


async def test_the_chart_outlives_the_console(tmp_path: Path) -> None:
    history = FileHistory(tmp_path / "history.json")
    assert await history.read(110.0) == ()
    points = [Point(at, 5.5, 1.0) for at in (-30_000.0, 100.0, 102.0)]
    await history.keep(points[1:])
    assert await history.read(110.0) == tuple(points[1:])
    assert await history.read(101.0) == (points[1],), "a clock that was set back"
    assert await history.read(30_000.0) == (), "too old"
    await FileHistory(tmp_path / "no folder" / "history.json").keep(points)
    assert rows_of(points, 60.0) == [[-30_000.0, 5.5, 1.0], [100.0, 5.5, 1.0]]


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[1]", "[[1,2]]", '[["1",2,3]]', "[[true,2,3]]", "[[1e999,2,3]]", "[[1,-2,3]]", "[[1,2,3]]" * 2,
     json.dumps([[n, 1, 1] for n in range(5_001)])],
)  # fmt: skip
async def test_a_damaged_history_is_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "history.json"
    path.write_text(text)
    assert await FileHistory(path).read(10_000.0) == ()


async def _begun(collector: Collector, done: Callable[[], Any]) -> None:
    """Let a collector run until something is done, and end it."""
    async with running(collector):
        await until(done)


async def test_a_console_begins_with_the_history_and_keeps_it(tmp_path: Path) -> None:
    source = FakeSource()
    source.history = history = FileHistory(tmp_path / "history.json")
    await history.keep([Point(time.time() - 100, 5.0, 1.0)])
    collector = Collector(source)
    async with running(collector):
        await until(lambda: collector.snapshot.points)
        history.path.unlink()
    assert [p.received for p in await history.read(time.time())][:1] == [5.0]


async def test_a_history_that_cannot_be_read_is_not_written_over() -> None:
    """It is read later, and then comes before the points of this console."""

    class Away(NoHistory):
        def __init__(self) -> None:
            self.kept: list[Point] = [Point(time.time() - 100, 5.0, 1.0)]
            self.away, self.asked = True, 0

        async def read(self, now: float) -> tuple[Point, ...] | None:
            self.asked += 1
            return None if self.away else tuple(self.kept)

        async def keep(self, points: Sequence[Point]) -> None:
            self.kept = list(points)

    source = FakeSource()
    source.history = history = Away()
    collector = Collector(source)
    await _begun(collector, lambda: history.asked)
    assert [p.received for p in history.kept] == [5.0]
    history.away = False
    await _begun(collector, lambda: collector.snapshot.points)
    assert history.kept[0].received == 5.0


async def test_the_chart_goes_on_while_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The resource is not asked for: on one machine that sends messages to every group."""
    monkeypatch.setattr("gantry_operator.console.collector.IDLE_S", -1.0)
    monkeypatch.setattr("gantry_operator.console.collector.STEP_S", 0.01)
    source = FakeSource()
    collector = Collector(source)
    await _begun(collector, lambda: "/v1/tables" in source.calls)
    assert not collector.snapshot.resource


def test_a_gap_of_the_chart_has_no_value() -> None:
    points = [Point(float(at), 5.0, 1.0) for at in (*range(0, 20, 2), *range(100, 120, 2))]
    times, received, sent = chart_of(points, 120.0, 300.0)["data"]
    assert received.index(None) == sent.index(None) == 10
    assert 18.0 < times[10] < 100.0
    assert times == sorted(times)
    assert chart_of([], 120.0, 300.0)["data"] == [[], [], []]


def test_rates_of_a_group_that_does_not_answer_are_not_those_of_now() -> None:
    def part(at: float, sent: int) -> GroupTables:
        return GroupTables(at, tables(now_ms=int(at * 1000), sent=sent))

    before = {"a": part(100.0, 0), "b": part(100.0, 0)}
    both = combine({"a": part(102.0, 20), "b": part(102.0, 20)}, before)
    assert both.received is not None
    one = combine({"a": part(142.0, 20), "b": part(102.0, 20)}, {"a": part(140.0, 0), "b": part(100.0, 0)})
    assert one.received == pytest.approx(both.received / 2)
    seen = replace(snapshot(), tables=both)
    assert seen.rates(103.0) == (both.received, both.sent)
    assert seen.rates(102.0 + OLD_S + 1) == (None, None)


def test_characters_that_turn_text_do_not_reach_a_page() -> None:
    page = environment().from_string("{{ name }} {{ shown | safe }}").render(name="a\u202eb\x1b<", shown="<b>")
    assert page == r"a\u202eb\x1b&lt; <b>"
    assert "\u202e" not in body_view("Gr\u202e\u00fc\u00df".encode()).text


def test_options_of_a_command_are_marked_and_nothing_else_is() -> None:
    shown = options_whole("gantry x <b> --body '--a b' --tags=t -o json a--b\u202e")
    option = '<span class="option">{}</span>'.format
    assert shown == (
        f"gantry x &lt;b&gt; {option('--body')} &#39;--a b&#39; {option('--tags')}=t {option('-o')} json a--b"
        f"{harmless(chr(0x202E))}"
    )


def test_each_cell_has_the_heading_of_its_column_for_a_phone() -> None:
    heads = '<th scope="col">Topic</th><th scope="col"><a href="?s">Rate ↓</a></th><th scope="col">Of &lt;b&gt;</th>'
    one = '<tr><th scope="row">a</th><td>1</td><td class="num">2</td></tr>'
    two = '<tr><th scope="row">b</th><td colspan="2">no</td></tr>'
    said = labelled(Markup(f"<thead><tr>{heads}</tr></thead><tbody>{one}{two}</tbody>"))
    assert str(said) == (
        f"<thead><tr>{heads}</tr></thead><tbody>"
        '<tr><th scope="row">a</th><td data-label="Rate">1</td><td data-label="Of &lt;b&gt;" class="num">2</td></tr>'
        '<tr><th scope="row">b</th><td data-label="Rate" colspan="2">no</td></tr></tbody>'
    )


def test_a_content_type_decides_how_a_body_is_shown() -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert body_view(b"a=1&b=x%20y", content=content_of(form)).text == "a = 1\nb = x y"
    chinese = {"contentType": "text/plain; charset=GBK"}
    assert body_view("订单".encode("gbk"), content=content_of(chinese)).text == "订单"
    packed = gzip.compress(b'{"a":[1]}')
    view = body_view(packed, content=content_of({"content-type": "application/json", "content-encoding": "gzip"}))
    assert (view.kind, view.note, view.size) == ("json", "gzip undone", len(packed))
    assert view.text == '{\n  "a": [\n    1\n  ]\n}'
    data = bytes([8, 150, 1, 0x12, 3, *b"abc", 0x1A, 2, 8, 1])
    view = body_view(data, content=content_of({"datacontenttype": "application/protobuf"}))
    assert (view.kind, view.text) == ("protobuf", '1: 150\n2: "abc"\n3 {\n  1: 1\n}')
    assert content_of({"content-type": "application/vnd.shop+json; charset=punycode"}) == Content(
        "application/vnd.shop+json", "utf-8"
    )


@pytest.mark.parametrize("media", ["application/json", "application/protobuf", "application/x-www-form-urlencoded", ""])
@pytest.mark.parametrize("encoding", ["", "gzip"])
def test_a_body_that_is_not_what_it_says_is_shown_all_the_same(media: str, encoding: str) -> None:
    choose = random.Random(7)
    content = content_of({"content-type": media, "content-encoding": encoding})
    bodies = [choose.randbytes(choose.randrange(200)) for _ in range(200)]
    bodies += [b"\x0a" * 9_000, bytes([0x0A, 0x7F]) * 4_000, gzip.compress(b"x" * 10_000_000), b"[" * 9_000]
    for body in bodies:
        view = body_view(body, content=content)
        assert view.size == len(body)
        assert len(view.text) < 8 * MAX_SHOWN
