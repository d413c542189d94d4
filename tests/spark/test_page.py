"""The page: its texts, its layout, and its plots in a headless browser."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from gantry_spark.forecast import Disk, forecast
from gantry_spark.format import format_bytes, format_share
from gantry_spark.page import render
from gantry_spark.plots import savings
from gantry_spark.recommendations import recommend
from gantry_spark.report_context import Context
from gantry_spark.report_model import build
from gantry_spark.summary import GroupOffset, Summary
from plotly.offline import get_plotlyjs_version

from tests.support.browser import chromium_path

HOUR = 3_600_000
NOW = 500_000 * HOUR


def report() -> dict[str, Any]:
    """A report of made-up rows, in the form of the results of Spark's queries."""
    found = Summary()
    for topic, keyed, size in (("Prices", True, 300), ("Clicks <b>", False, 90), ("%RETRY%billing", True, 100)):
        hours = range(NOW // HOUR - 30, NOW // HOUR)
        n = 100 * len(hours)
        zero = dict.fromkeys(("tombstones", "redelivered", "delayed", "prepared", "committed", "rolled_back"), 0)
        found.queues.append(
            {"log": "a", "topic": topic, "queue_id": 0, "n": n, "bytes": n * size, "body_bytes": n * size // 2,
             "keyed": n * keyed, "keyed_bytes": n * size * keyed, **zero, "min_qo": 0, "max_qo": n - 1,
             "min_ms": hours[0] * HOUR, "max_ms": NOW - HOUR}
        )  # fmt: skip
        found.hours += [
            {"topic": topic, "hour": h, "n": 100, "bytes": 100 * size, "keyed": 100 * keyed,
             "keyed_bytes": 100 * size * keyed} for h in hours
        ]  # fmt: skip
        found.sizes += [{"topic": topic, "bucket": b, "n": n // 3, "bytes": n * size // 3} for b in (6, 8, 9)]
        if keyed:
            keys = {"keys": 50, "n": n, "newest_bytes": 50 * size, "tombstones": 1, "kept": 49, "kept_bytes": 49 * size}
            found.topic_keys.append({"topic": topic, **keys, "ambiguous": 0})
            found.kept_queues.append({"topic": topic, "log": "a", "queue_id": 0, **keys})
            found.queue_keys.append({"topic": topic, "location_log": "a", "location_queue": 0, "locations": 50})
            found.kept_hours.append({"topic": topic, "hour": NOW // HOUR - 1, "kept_bytes": 49 * size})
            found.versions += [{"topic": topic, "bucket": b, "keys": 25, "n": n // 2} for b in (0, 4)]
            found.hot_keys += [{"topic": topic, "key": f"key-{i}", "n": 900 - i, "bytes": 9000} for i in range(20)]
    found.groups = [{"group": "late", "log": "a", "topic": "Prices", "queue_id": 0, "keyed": 900, "kept": 40,
                     "oldest": NOW - 9 * HOUR}]  # fmt: skip
    found.spans = found.queues
    found.damage = [{"log": "a", "segment": 0, "phys": 77, "bytes": 9, "reason": "no records"}]
    context = Context(
        "demo", NOW, disks=[Disk("a", 10**9, 1_500_000)], offsets=[GroupOffset("late", "a", "Prices", 0, 2000)],
        log_bytes=10**6, new_bytes=10**6, segments=1, notes=["a note"],
    )  # fmt: skip
    return build(found, context) | {"run": "r", "durationSeconds": 1.0}


def test_the_numbers_of_the_made_up_report() -> None:
    made = report()
    assert 'hint">1 range of the log without readable records, 9 B in all' in render(made)
    prices = made["topics"][0]
    assert prices["topic"] == "Prices"
    assert prices["savedBytes"] == (3000 - 49) * 300
    assert prices["recommendation"] == "compact"
    assert "Wait for group late" in prices["reason"]
    assert made["growth"]["diskFullBeforeRetention"]
    assert made["growth"]["hoursToFull"] == pytest.approx(1_500_000 / (100 * 490), rel=0.01)
    assert made["retries"] == [
        {"group": "billing", "retries": 3000, "retryBytes": 300_000, "deadLetters": 0, "deadLetterBytes": 0}
    ]


def test_the_text_uses_the_singular_for_one() -> None:
    topic = {"kind": "user", "records": 1, "bytes": 900, "keyedRecords": 1, "ambiguousKeys": 0, "compactable": True,
             "distinctKeys": 1, "savedBytes": 0, "compacted": None}  # fmt: skip
    why = "Compaction would save nothing: each key has one version (1 key)."
    growth = {"diskFullBeforeRetention": True, "bytesPerHour": 9, "hoursToFull": 4.0}
    assert recommend(topic, [], growth, Context("demo", NOW)) == ("no change", why)
    group = {"group": "g", "expiredUnreadRecords": 0, "lagRecords": 0, "lagHours": 0.0, "compactedUnreadRecords": 0}
    shorter = recommend(topic, [group], growth, Context("demo", NOW))[1]
    assert shorter.startswith(f"{why} All consumer groups (1) have no lag, and retention is 72 h.")
    affected = group | {"expiredUnreadRecords": 1, "lagRecords": 1, "lagHours": 99.0}
    assert recommend(topic, [affected], growth, Context("demo", NOW))[1] == (
        "Group g has missed 1 record that expired unread. Group g has a lag of 4.1 days and 1 record. "
        "Retention is 72 h."
    )


def test_the_recommendation_names_the_command_and_then_what_it_saved() -> None:
    topic = {"kind": "user", "topic": "Prices", "records": 100, "bytes": 9_000, "keyedRecords": 100,
             "ambiguousKeys": 0, "compactable": True, "distinctKeys": 10, "supersededRecords": 90,
             "savedBytes": 8_000, "compacted": None}  # fmt: skip
    growth = {"diskFullBeforeRetention": False, "bytesPerHour": 9, "hoursToFull": 4.0}
    kind, text = recommend(topic, [], growth, Context("demo", NOW))
    assert kind == "compact"
    assert text.endswith("Run: gantry topic compact Prices.")
    done = {"seenBytes": 9_000, "keptBytes": 1_000, "savedBytes": 8_000}
    kind, text = recommend(topic | {"compacted": done}, [], growth, Context("demo", NOW))
    assert kind == "no change"
    assert "7.8 KiB are saved of the 8.8 KiB" in text
    assert "compaction would save 7.8 KiB" in text


@pytest.mark.parametrize(
    ("disks", "hours"),
    [
        ([Disk("a", 10**9, 60_000)], 60),
        # Two logs on one disk, identified by its device, by the machine, or by its bytes.
        ([Disk("a", 10**9, 60_000, "device 5"), Disk("b", 10**9, 60_000, "device 5")], 60),
        ([Disk("a", 10**9, 60_000, "device 5"), Disk("b", 10**9, 60_000, "device 6")], 120),
        ([Disk("a", 10**9, 60_500, "10.0.0.1"), Disk("b", 10**9, 60_000, "10.0.0.1")], 60),
        ([Disk("a", 10**9, 60_000, "10.0.0.1"), Disk("b", 10**9, 60_000, "10.0.0.2")], 60),
        # Two disks: each receives half.
        ([Disk("a", 10**9, 60_500, "10.0.0.1"), Disk("b", 10**9, 60_000, "10.0.0.2")], 120),
        ([Disk("a", 10**9, 9 * 10**8, "10.0.0.1"), Disk("b", 10**9, 60_000, "10.0.0.1")], 120),
        ([Disk("a", 10**9, 60_500), Disk("b", 10**9, 60_000)], 120),
        # Two of three logs on one disk.
        ([Disk("a", 10**9, 60_000, "x"), Disk("b", 10**9, 60_000, "x"), Disk("c", 10**8, 60_000, "x")], 90),
    ],
)
def test_a_disk_counts_once_for_all_its_logs(disks: list[Disk], hours: float) -> None:
    at = NOW // HOUR
    found = forecast(dict.fromkeys(range(at - 10, at + 1), 1000), NOW, disks, 72)
    assert found["bytesPerHour"] == 1000
    assert found["hoursToFull"] == hours


def test_the_page_is_whole_and_escapes_names() -> None:
    page = render(report())
    assert "Clicks &lt;b&gt;" in page
    assert "<td>Clicks <b>" not in page
    own = re.sub(r"<script type=\"text/javascript\">.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r"(?:src|href)\s*=\s*[\"']?(?:https?:)?//", own)
    for title in ("Recommendations", "Savings by topic", "Growth and forecast", "Hot keys", "Ages", "Damage", "Notes"):
        assert f"<h2>{title}</h2>" in page


def test_names_are_no_markup_of_plots() -> None:
    """Plotly reads `<b>` in labels as markup, so the topic `Clicks <b>` would be `Clicks`."""
    page = render(report())
    assert '"ticktext":["Clicks &lt;b&gt;","Prices"]' in page
    assert "-0%" not in page


def test_topics_with_equal_prefixes_have_separate_bars() -> None:
    names = [f"{'a' * 40}{end}" for end in "xyz"]
    topics = [{"topic": name, "kind": "user", "bytes": 9, "savedBytes": 3} for name in names]
    page = savings(topics)
    assert '"y":[0,1,2]' in page
    assert all(name in page for name in names)


def test_the_library_in_the_page_is_the_one_of_the_package_that_describes_the_plots() -> None:
    assert f"plotly.js (basic - minified) v{get_plotlyjs_version()}\n" in render(report())


def test_an_empty_report_has_a_page() -> None:
    assert "no topics of users" in render(build(Summary(), Context("empty", NOW)) | {"run": "r", "durationSeconds": 0})


def tiles(page: str) -> list[tuple[str, str]]:
    return re.findall(r'<div class="tile[ a-z]*"><b>(.*?)</b><span>(.*?)</span>', page)


def test_the_disk_tile_is_a_number_and_its_meaning() -> None:
    made = report()
    assert tiles(render(made))[-1] == ("30.6 h", "until the disk is full")
    made["growth"] |= {"diskFullBeforeRetention": False}
    fits = (format_bytes(made["growth"]["steadyStateBytes"]), "with 72 h of retention at this growth: fits on the disk")
    assert tiles(render(made))[-1] == fits
    made["growth"] |= {"disks": [], "hoursToFull": None}
    assert tiles(render(made))[-1] == ("unknown", "time until the disk is full: no disk was measured")


def test_a_small_saving_has_no_label_and_is_not_zero_percent() -> None:
    topic = {"topic": "T", "kind": "user", "bytes": 1000, "savedBytes": 4}
    assert '"text":"-' not in savings([topic])
    assert '"text":"-1%"' in savings([topic | {"savedBytes": 10}])
    made = report()
    made["topics"][0] |= {"savedBytes": 4, "bytes": 1000}
    made["totals"] |= {"savedBytes": 4, "bytes": 1000}
    page = render(made)
    assert "4 B (&lt;1%)" in page
    assert tiles(page)[0][1] == "saved by compaction, &lt;1% of the log"
    assert format_share(0, 10) == "0%"
    assert format_share(996, 1000) == ">99%"
    assert format_share(1, 1) == "100%"


def headings(page: str) -> list[str]:
    return re.findall(r"<h2>(.*?)</h2>", page)


def test_savings_by_window_need_two_windows() -> None:
    made = report()
    assert "Savings by window" in headings(render(made))
    for topic in made["topics"]:
        topic["savingsByWindow"] = topic["savingsByWindow"][-1:]
    assert "Savings by window" not in headings(render(made))


def test_equal_keys_are_one_sentence_and_no_plot() -> None:
    made = report()
    assert "Hot keys" in headings(render(made))
    for key in made["topics"][0]["hotKeys"]:
        key["records"] = 9
    page = render(made)
    assert "Hot keys" not in headings(page)
    assert "No key is hot: the most frequent keys have 9 versions each." in page


def test_the_last_of_an_odd_number_of_cards_fills_its_row() -> None:
    made = report()
    assert 'class="wide"' not in render(made)
    for topic in made["topics"]:
        topic["hotKeys"] = []
    page = render(made)
    assert page.count('<section class="wide">') == 1
    assert '<section class="wide"><h2>Sizes</h2>' in page


def browser_arguments(folder: Path) -> list[str]:
    return [chromium_path(), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}",
            "--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run",
            "--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=10000"]  # fmt: skip


WIDTHS = (360, 400, 560, 640, 800, 820, 900, 1000, 1280)
MEASURE = """
const measured = {};
const text = element => { const range = element.ownerDocument.createRange(); range.selectNodeContents(element);
  return range.getBoundingClientRect(); };
const most = numbers => Math.max(0, ...numbers);
// How far the last item of each visual row ends before its container does.
const rests = container => {
  const rows = new Map();
  for (const item of container.children) {
    const at = item.getBoundingClientRect();
    rows.set(Math.round(at.top), Math.max(rows.get(Math.round(at.top)) || 0, at.right));
  }
  return [...rows.values()].map(right => container.getBoundingClientRect().right - right);
};
const measure = frame => {
  const page = frame.contentDocument;
  const cells = [...page.querySelectorAll("td")];
  const rows = [...page.querySelectorAll("section:first-of-type tbody tr")];
  measured[frame.width] = {
    width: page.documentElement.scrollWidth,
    cells: cells.filter(cell => text(cell).width > 0).length,
    right: most(cells.map(cell => text(cell).right)),
    plots: page.querySelectorAll(".main-svg").length,
    over: most([...page.querySelectorAll("section")].map(one => one.scrollWidth - one.clientWidth)),
    blank: most(rows.map(row => row.getBoundingClientRect().bottom - most(
      [...row.children].map(cell => text(cell).bottom)))),
    rest: most([...page.querySelectorAll(".tiles, .cards")].flatMap(rests)),
  };
  document.title = JSON.stringify(measured);
};
for (const width of WIDTHS) {
  const frame = document.createElement("iframe");
  frame.width = width;
  frame.height = 900;
  frame.addEventListener("load", () => measure(frame));
  frame.srcdoc = width === 400 ? DRAWN : PAGE;
  document.body.append(frame);
}
"""


def script_text(value: object) -> str:
    """A value for the inside of a script: no `</script>` of it ends the script."""
    return json.dumps(value).replace("</", "<\\/").replace("<!--", "<\\!--")


@pytest.fixture(scope="module")
def layouts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, float]]:
    """The page's layout in frames of several widths. Chromium's own window is at least 500 pixels wide."""
    folder = tmp_path_factory.mktemp("layouts")
    made = report()
    made["topics"][0]["topic"] = "prices-of-all-articles-in-all-countries-with-a-very-long-name"
    drawn_page = render(made)
    # The plots' library would be parsed once for each width, so only one frame has plots.
    page = re.sub(r'<script type="text/javascript">/\*\*.*?</script>', "", drawn_page, flags=re.DOTALL)
    assert len(page) < len(drawn_page) / 2
    frame = folder / "frame.html"
    frame.write_text(
        f'<!doctype html><meta charset="utf-8"><body><script>const WIDTHS = {list(WIDTHS)}, PAGE = {script_text(page)};'
        f"const DRAWN = {script_text(drawn_page)};{MEASURE}</script>"
    )
    drawn = subprocess.run(
        [*browser_arguments(folder), "--window-size=1400,1000", "--dump-dom", frame.as_uri()],
        capture_output=True, text=True, check=True, timeout=110,
    ).stdout  # fmt: skip
    found = re.search(r"<title>(.*?)</title>", drawn)
    assert found is not None
    measured: dict[str, dict[str, float]] = json.loads(found[1])
    return measured


@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_fits_each_width_without_gaps(layouts: dict[str, dict[str, float]], width: int) -> None:
    layout = layouts[str(width)]
    assert layout["cells"] > 20
    assert layout["width"] <= width, "nothing is scrolled to"
    assert layout["right"] <= width, "no cell is cut off"
    assert bool(layout["plots"]) == (width == 400)
    assert layout["over"] <= 0, "no card is wider than its place"
    assert layout["blank"] < 20, "no row is higher than its text"
    assert layout["rest"] <= 1, "every row of tiles and cards is full"


def test_a_browser_draws_every_plot(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(render(report()))
    arguments = browser_arguments(tmp_path)
    shot = tmp_path / "page.png"
    subprocess.run(
        [*arguments, "--window-size=1280,2900", f"--screenshot={shot}", path.as_uri()],
        capture_output=True, check=True, timeout=110,
    )  # fmt: skip
    assert shot.stat().st_size > 100_000
    drawn = subprocess.run(
        [*arguments, "--dump-dom", path.as_uri()], capture_output=True, text=True, check=True, timeout=110
    ).stdout
    assert drawn.count('class="main-svg"') >= 8
    assert drawn.count('class="point"') + drawn.count('class="points"') > 30
    assert "Uncaught" not in drawn
