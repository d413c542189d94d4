"""The report as one HTML file. It contains its plots and the plotting library and loads nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final

from gantry_broker.theme import THEME

from gantry_spark import plots
from gantry_spark.format import format_bytes, format_count, format_hours, format_share, format_time
from gantry_spark.recommendations import COMPACT, LENGTHEN, SHORTEN

_LIBRARY: Final = Path(__file__).parent / "vendor" / "plotly-basic.min.js"
_BADGES: Final = {COMPACT: "good", SHORTEN: "warn", LENGTHEN: "bad"}
_STYLE: Final = """
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--bg); color: var(--text); font: var(--text-m)/var(--leading) var(--sans); }
main { max-width: var(--width); margin: 0 auto; padding: var(--space-5) var(--space-5) var(--space-6); }
header { margin-bottom: var(--space-5); }
h1 { font-size: var(--text-xl); line-height: 1.25; margin: 0 0 var(--space-1); letter-spacing: -0.01em;
  overflow-wrap: anywhere; }
h2 { font-size: var(--text-l); line-height: 1.3; margin: 0 0 var(--space-1); }
.sub, .hint, footer, .legend, .tile span { color: var(--soft); font-size: var(--text-s); }
.sub { margin: 0; }
.hint { margin: 0 0 var(--space-3); overflow-wrap: anywhere; }
.tile, section { background: var(--panel); border: 1px solid var(--line); border-radius: var(--radius); }
/* Five tiles: a row of five, of three and two, or of one and two pairs. Each row is full. */
.tiles { display: grid; grid-template-columns: repeat(10, minmax(0, 1fr)); gap: var(--space-4); }
.tile { grid-column: span 2; padding: var(--space-3) var(--space-4); }
.tile b { display: block; font-size: var(--text-xl); line-height: 1.3; letter-spacing: -0.01em;
  font-variant-numeric: tabular-nums; }
.tile.good b { color: var(--good); }
.tile.bad b { color: var(--bad); }
section { padding: var(--space-4) var(--space-5); margin-top: var(--space-4); min-width: 0; }
/* Fixed columns: a plot takes its width as soon as it is parsed, before the one beside it is there. */
.cards { display: grid; grid-template-columns: minmax(0, 1fr) minmax(0, 1fr); gap: 0 var(--space-4); }
.cards .wide { grid-column: 1 / -1; }
.legend { display: flex; flex-wrap: wrap; gap: 2px var(--space-4); margin-bottom: var(--space-1); }
.legend span { overflow-wrap: anywhere; }
.legend i { display: inline-block; width: 10px; height: 10px; border-radius: 2px; margin-right: 6px; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th { text-align: left; color: var(--soft); font-size: var(--text-s); font-weight: 600; vertical-align: bottom;
  border-bottom: 1px solid var(--line); padding: var(--space-1) var(--space-3) var(--space-2) 0; }
td { padding: var(--space-2) var(--space-3) var(--space-2) 0; vertical-align: top; overflow-wrap: anywhere; }
th:last-child, td:last-child { padding-right: 0; }
tbody + tbody > tr:first-child > td { border-top: 1px solid var(--line); }
.n { text-align: right; font-variant-numeric: tabular-nums; }
td.n { white-space: nowrap; }
@media (min-width: 821px) { .n + :not(.n) { padding-left: var(--space-4); } }
td.text { color: var(--soft); padding-top: 0; padding-bottom: var(--space-3); }
.name { font-weight: 600; }
.badge { display: inline-block; border-radius: 999px; padding: 1px 9px; font-size: 12.5px; font-weight: 600;
  background: var(--sunken); color: var(--soft); white-space: nowrap; }
.badge.good { background: var(--good-soft); color: var(--good); }
.badge.warn { background: var(--warn-soft); color: var(--warn); }
.badge.bad { background: var(--bad-soft); color: var(--bad); }
ul { margin: 0; padding-left: 20px; }
footer { margin-top: var(--space-4); overflow-wrap: anywhere; }
.xtick text, .ytick text, .xtitle, .ytitle { fill: var(--soft) !important; }
.annotation-text { fill: var(--text) !important; }
.gridlayer path { stroke: var(--line) !important; }
@media (max-width: 1000px) {
  .cards { grid-template-columns: minmax(0, 1fr); }
  .tiles { grid-template-columns: repeat(6, minmax(0, 1fr)); }
  .tile { grid-column: span 2; }
  .tile:nth-child(n + 4) { grid-column: span 3; }
}
/* In a narrow window a row of a table is a block: each cell has its heading above it, in as many columns as fit. */
@media (max-width: 820px) {
  thead { display: none; }
  table, tbody { display: block; }
  tr { display: grid; grid-template-columns: repeat(auto-fill, minmax(103px, 1fr));
    gap: var(--space-2) var(--space-3); }
  td { display: block; padding: 0; text-align: left; }
  td.n { text-align: left; white-space: normal; }
  td::before { content: attr(data-head); display: block; color: var(--soft); font-size: 12px; }
  td.text, td:first-child { grid-column: 1 / -1; padding: 0; }
  td.text::before, td:first-child::before { display: none; }
  tbody { padding: var(--space-3) 0; border-top: 1px solid var(--line); }
  tbody:last-child { padding-bottom: 0; }
  tbody + tbody > tr:first-child > td { border-top: 0; }
  tr + tr { margin-top: var(--space-2); }
}
@media (max-width: 560px) {
  main { padding: var(--space-4) var(--space-3) var(--space-5); }
  section { padding: var(--space-4); }
  tr { grid-template-columns: repeat(auto-fill, minmax(130px, 1fr)); }
  .tiles { grid-template-columns: minmax(0, 1fr) minmax(0, 1fr); gap: var(--space-3); }
  .tile, .tile:nth-child(n + 4) { grid-column: span 1; }
  .tile:first-child { grid-column: 1 / -1; }
}
@media print {
  body { background: var(--panel); }
  section, .tile { break-inside: avoid; }
}
"""
DAMAGE_SHOWN: Final = 30
GROUPS_SHOWN: Final = 50
SYSTEM_TOPICS_SHOWN: Final = 30


def render(report: Mapping[str, Any]) -> str:
    """Return the page of a report (see `report_model.build`)."""
    title = f"Compaction report of {report['source']}"
    body = [
        f'<header><h1>{escape(title)}</h1><p class="sub">{escape(_subtitle(report))}</p></header>',
        _missing(report.get("missing") or ()),
        _tiles(report),
        _section("Recommendations", "Topics by the bytes that compaction would save.", _topics(report["topics"])),
        _section(
            "Savings by topic",
            "Bytes of each topic: the part that stays, and the part that compaction removes.",
            plots.savings(report["topics"]),
        ),
        _cards(report),
        _groups(report["groups"]),
        _retries(report["retries"]),
        _system(report["topics"]),
        _damage(report["damage"]),
        _notes(report["notes"]),
        f"<footer>Run {escape(str(report.get('run', '')))}, {report.get('durationSeconds', 0)} s. The numbers of "
        "this page are beside it: report.json, keys, hours.parquet and queues.parquet.</footer>",
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{THEME}{_STYLE}</style>"
        f'<script type="text/javascript">{_LIBRARY.read_text()}</script></head>'
        f"<body><main>{''.join(body)}</main></body></html>"
    )


def _subtitle(report: Mapping[str, Any]) -> str:
    since = f", records since {format_time(report['since'])}" if report["since"] else ""
    return (
        f"As of {format_time(report['asOf'])}{since}. Compaction keeps tombstones for {report['tombstoneHours']:g} h."
    )


def _tiles(report: Mapping[str, Any]) -> str:
    totals, growth = report["totals"], report["growth"]
    saved = totals["savedBytes"]
    share = f"{format_share(saved, totals['bytes'])} of the log" if totals["bytes"] else "of the log"
    topics = format_count(totals["topics"], "topic")
    worth = any(t["recommendation"] == COMPACT for t in report["topics"])
    tiles = [
        (format_bytes(saved), f"saved by compaction, {share}", "good" if worth else ""),
        (format_bytes(totals["bytes"]), f"in {format_count(totals['records'], 'record')} of {topics}", ""),
        (
            f"{totals['distinctKeys']:,}",
            f"distinct keys, {format_count(totals['supersededRecords'], 'superseded version')}",
            "",
        ),
        (f"{format_bytes(growth['bytesPerHour'])}/h", "growth", ""),
        _disk_tile(growth),
    ]
    html = "".join(
        f'<div class="tile{" " * bool(kind)}{kind}"><b>{escape(big)}</b><span>{escape(small)}</span></div>'
        for big, small, kind in tiles
    )
    return f'<div class="tiles">{html}</div>'


def _disk_tile(growth: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return the time until the disk is full, or the size of the log under retention if that fits the disk; and the
    state of the tile.
    """
    if not growth["disks"]:
        return "unknown", "time until the disk is full: no disk was measured", ""
    if growth["diskFullBeforeRetention"]:
        return format_hours(growth["hoursToFull"]), "until the disk is full", "bad"
    hours = growth["reservedHours"]
    return format_bytes(growth["steadyStateBytes"]), f"with {hours} h of retention at this growth: fits on the disk", ""


def _section(title: str, hint: str, content: str, kind: str = "") -> str:
    if not content:
        return ""
    mark = f' class="{kind}"' if kind else ""
    return f'<section{mark}><h2>{escape(title)}</h2><p class="hint">{escape(hint)}</p>{content}</section>'


def _cards(report: Mapping[str, Any]) -> str:
    """Return the plots in rows of two. If their number is odd, the last one fills its row."""
    topics = report["topics"]
    cards = [
        ("Growth and forecast", _growth_hint(report["growth"]), plots.growth(report["growth"])),
        ("Savings by window", "Share that compaction of only the newest hours saves.", plots.windows(topics)),
        ("Hot keys", "Keys with the most versions.", plots.hot_keys(topics)),
        ("Versions per key", _versions_hint(topics), plots.versions(topics)),
        ("Ages", "Bytes by the time since they were stored.", plots.ages(topics)),
        ("Sizes", "Records by size.", plots.sizes(topics)),
    ]
    shown = [card for card in cards if card[2]]
    html = "".join(
        _section(*card, kind="wide" if index == len(shown) - 1 and index % 2 == 0 else "")
        for index, card in enumerate(shown)
    )
    return f'<div class="cards">{html}</div>' if html else ""


def _versions_hint(topics: Sequence[Mapping[str, Any]]) -> str:
    hint = "Number of keys by their number of versions."
    equal = plots.equal_versions(topics)
    return hint if equal is None else f"{hint} No key is hot: the most frequent keys have {equal:,} versions each."


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[int], text: bool = False) -> str:
    """Return a table. The cells are HTML. `numeric`: columns of numbers. `text`: each row has one cell more, a sentence
    that gets a line of its own.
    """
    classes = [' class="n"' if i in numeric else "" for i in range(len(heads))]
    head = "".join(f"<th{c}>{h}</th>" for c, h in zip(classes, heads, strict=True))
    body = ""
    for row in rows:
        cells = zip(classes, heads, row[: len(heads)], strict=True)
        body += "<tbody><tr>" + "".join(f'<td{c} data-head="{escape(h)}">{cell}</td>' for c, h, cell in cells) + "</tr>"
        body += f'<tr><td class="text" colspan="{len(heads)}">{row[-1]}</td></tr>' if text else ""
        body += "</tbody>"
    return f"<table><thead><tr>{head}</tr></thead>{body}</table>"


def _topics(topics: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for t in topics:
        if t["kind"] != "user":
            continue
        kind = _BADGES.get(t["recommendation"], "")
        saved = f"{format_bytes(t['savedBytes'])} ({format_share(t['savedBytes'], t['bytes'])})"
        rows.append(
            (
                f'<span class="name">{escape(t["topic"])}</span>',
                f'<span class="badge {kind}">{escape(t["recommendation"])}</span>',
                escape(saved) if t["savedBytes"] else "-",
                "-" if t["compacted"] is None else format_bytes(t["compacted"]["savedBytes"]),
                format_bytes(t["bytes"]),
                f"{t['records']:,}",
                f"{t['distinctKeys']:,}",
                f"{t['supersededRecords']:,}",
                escape(t["reason"]),
            )
        )
    if not rows:
        return "<p>This log has no topics of users.</p>"
    heads = ("Topic", "Recommendation", "Saves", "Saved by brokers", "Bytes", "Records", "Keys", "Superseded")
    return _table(heads, rows, (2, 3, 4, 5, 6, 7), text=True)


def _growth_hint(growth: Mapping[str, Any]) -> str:
    text = (
        f"The log grows by {format_bytes(growth['bytesPerHour'])} an hour. {growth['reservedHours']} h of retention "
        f"hold {format_bytes(growth['steadyStateBytes'])} at this rate."
    )
    if growth["diskFullBeforeRetention"] and growth["fullAt"]:
        text += f" The disk is full at {format_time(growth['fullAt'])}."
    return text


def _groups(groups: Sequence[Mapping[str, Any]]) -> str:
    behind = [g for g in groups if g["compactedUnreadRecords"] or g["expiredUnreadRecords"] or g["lagRecords"]]
    rows = [
        (
            f'<span class="name">{escape(g["group"])}</span>',
            escape(g["topic"]),
            f"{g['lagRecords']:,}",
            f"{g['lagHours']:,.1f} h",
            f"{g['compactedUnreadRecords']:,}",
            f"{g['expiredUnreadRecords']:,}",
        )
        for g in behind[:GROUPS_SHOWN]
    ]
    heads = ("Group", "Topic", "Lag, records", "Lag, time", "Unread, removed by compaction", "Unread, expired")
    hint = "Consumer groups with a lag, and the unread records that compaction would remove or retention has removed."
    return _section("Consumer groups", hint, _table(heads, rows, (2, 3, 4, 5)) if rows else "")


def _retries(retries: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        (
            f'<span class="name">{escape(r["group"])}</span>',
            f"{r['retries']:,}",
            format_bytes(r["retryBytes"]),
            f"{r['deadLetters']:,}",
            format_bytes(r["deadLetterBytes"]),
        )
        for r in retries[:GROUPS_SHOWN]
    ]
    heads = ("Group", "Retries", "Retry bytes", "Dead letters", "Dead letter bytes")
    hint = "Messages that consumers sent back, and messages that failed too often."
    return _section("Retries and dead letters", hint, _table(heads, rows, (1, 2, 3, 4)) if rows else "")


def _system(topics: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        (
            f'<span class="name">{escape(t["topic"])}</span>',
            f"{t['records']:,}",
            format_bytes(t["bytes"]),
        )
        for t in topics
        if t["kind"] == "system"
    ][:SYSTEM_TOPICS_SHOWN]
    hint = "Delayed messages, transactions and control records. Compaction does not apply to them."
    return _section("System topics", hint, _table(("Topic", "Records", "Bytes"), rows, (1, 2)) if rows else "")


def _damage(damage: Mapping[str, Any]) -> str:
    rows = [
        (escape(d["log"]), f"{d['offset']:,}", f"{d['bytes']:,}", escape(d["reason"]))
        for d in damage["list"][:DAMAGE_SHOWN]
    ]
    ranges = format_count(damage["ranges"], "range")
    hint = f"{ranges} of the log without readable records, {format_bytes(damage['bytes'])} in all. They are skipped."
    return _section("Damage", hint, _table(("Log", "Offset", "Bytes", "Reason"), rows, (1, 2)) if rows else "")


def _missing(parts: Sequence[str]) -> str:
    """Say first what the figures below leave out."""
    if not parts:
        return ""
    text = f"This report lacks: {', '.join(parts)}. The notes at its end say why."
    return f'<section class="bad"><h2>A part is missing</h2><p>{escape(text)}</p></section>'


def _notes(notes: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(n)}</li>" for n in notes)
    return _section("Notes", "Limits of this report.", f"<ul>{items}</ul>" if items else "")
