"""The report as one HTML file. It contains its plots and the plotting library and loads nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

from plotly.offline import get_plotlyjs

from gantry_spark import plots
from gantry_spark.format import format_bytes, format_count, format_hours, format_share
from gantry_spark.recommendations import COMPACT, LENGTHEN, SHORTEN

_BADGES: Final = {COMPACT: "good", SHORTEN: "warn", LENGTHEN: "bad"}
_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1c2733; --dim: #5d6b7a; --line: #e3e8ee; --paper: #ffffff;
  --ground: #f5f7fa; --good: #14804a; --warn: #a15c00; --bad: #c0352b;
  --good-ground: #e3f5ea; --warn-ground: #fdf1dd; --bad-ground: #fde8e6; --badge-ground: #eef1f5; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --dim: #9aa7b4; --line: #2c3540; --paper: #161b22; --ground: #0d1117; --good: #56d18a;
    --warn: #e3b052; --bad: #ff8d85; --good-ground: #12301f; --warn-ground: #36290f; --bad-ground: #3d1815;
    --badge-ground: #262d36; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 28px 24px 60px; }
h1 { font-size: 26px; line-height: 1.25; margin: 0 0 2px; letter-spacing: -0.01em; overflow-wrap: anywhere; }
h2 { font-size: 17px; margin: 0 0 2px; }
.sub { color: var(--dim); margin: 0 0 20px; }
.hint { color: var(--dim); margin: 0 0 10px; font-size: 13.5px; }
/* The last row of tiles fills its width, whatever their number. */
.tiles { display: flex; flex-wrap: wrap; gap: 14px; margin-bottom: 18px; }
.tile, section { background: var(--paper); border: 1px solid var(--line); border-radius: 10px; }
.tile { flex: 1 1 150px; padding: 14px 16px; }
.tile b { display: block; font-size: 23px; letter-spacing: -0.01em; }
.tile span { color: var(--dim); font-size: 13px; }
section { padding: 18px 20px; margin-bottom: 18px; min-width: 0; }
/* Fixed columns: a plot takes its width as soon as it is parsed, before the one beside it is there. */
.cards { display: grid; grid-template-columns: minmax(0, 1fr) minmax(0, 1fr); gap: 0 18px; }
.cards .wide { grid-column: 1 / -1; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 14px; color: var(--dim); font-size: 13px; margin-bottom: 6px; }
.legend span { overflow-wrap: anywhere; }
.legend i { display: inline-block; width: 10px; height: 10px; border-radius: 2px; margin-right: 6px; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th { text-align: left; color: var(--dim); font-weight: 600; border-bottom: 1px solid var(--line); padding: 6px 10px; }
td { border-bottom: 1px solid var(--line); padding: 7px 10px; vertical-align: top; }
tr:last-child td { border-bottom: 0; }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.name { font-weight: 600; overflow-wrap: anywhere; display: inline-block; min-width: 90px; }
.badge { display: inline-block; border-radius: 999px; padding: 1px 9px; font-size: 12.5px; font-weight: 600;
  background: var(--badge-ground); color: var(--dim); white-space: nowrap; }
.badge.good { background: var(--good-ground); color: var(--good); }
.badge.warn { background: var(--warn-ground); color: var(--warn); }
.badge.bad { background: var(--bad-ground); color: var(--bad); }
.scroll { overflow-x: auto; }
footer { color: var(--dim); font-size: 13px; }
.xtick text, .ytick text, .xtitle, .ytitle { fill: var(--ink) !important; }
.annotation-text { fill: var(--ink) !important; }
.gridlayer path { stroke: var(--line) !important; }
@media (max-width: 900px) { .cards { grid-template-columns: minmax(0, 1fr); } }
/* On a phone a row of a table is a list of its cells, each with its heading. */
@media (max-width: 640px) {
  main { padding: 18px 12px 40px; }
  section { padding: 14px 14px; }
  table, tbody, tr, td { display: block; }
  thead { display: none; }
  tr { padding: 10px 0; border-bottom: 1px solid var(--line); }
  tr:last-child { border-bottom: 0; }
  td { border: 0; padding: 2px 0; display: flex; justify-content: space-between; gap: 14px; white-space: normal; }
  td::before { content: attr(data-head); color: var(--dim); flex: none; }
  td.text, td:first-child { display: block; }
  td.text::before, td:first-child::before { display: none; }
}
"""
DAMAGE_SHOWN: Final = 30
GROUPS_SHOWN: Final = 50
SYSTEM_TOPICS_SHOWN: Final = 30


def render(report: Mapping[str, Any]) -> str:
    """Return the page of a report (see `report_model.build`)."""
    title = f"Compaction report of {report['source']}"
    body = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="sub">{escape(_subtitle(report))}</p>',
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
        f"<title>{escape(title)}</title><style>{_STYLE}</style>"
        f'<script type="text/javascript">{get_plotlyjs()}</script></head>'
        f"<body><main>{''.join(body)}</main></body></html>"
    )


def _subtitle(report: Mapping[str, Any]) -> str:
    since = f", records since {report['since']}" if report["since"] else ""
    return f"As of {report['asOf']}{since}. Compaction keeps tombstones for {report['tombstoneHours']:g} h."


def _tiles(report: Mapping[str, Any]) -> str:
    totals, growth = report["totals"], report["growth"]
    saved = totals["savedBytes"]
    share = f"{format_share(saved, totals['bytes'])} of the log" if totals["bytes"] else "of the log"
    topics = format_count(totals["topics"], "topic")
    tiles = [
        (format_bytes(totals["bytes"]), f"in {format_count(totals['records'], 'record')} of {topics}"),
        (format_bytes(saved), f"saved by compaction, {share}"),
        (
            f"{totals['distinctKeys']:,}",
            f"distinct keys, {format_count(totals['supersededRecords'], 'superseded version')}",
        ),
        (f"{format_bytes(growth['bytesPerHour'])}/h", "growth"),
        _disk_tile(growth),
    ]
    made = "".join(f'<div class="tile"><b>{escape(big)}</b><span>{escape(small)}</span></div>' for big, small in tiles)
    return f'<div class="tiles">{made}</div>'


def _disk_tile(growth: Mapping[str, Any]) -> tuple[str, str]:
    """Return the time until the disk is full, or the size of the log under retention if that fits the disk."""
    if not growth["disks"]:
        return "unknown", "time until the disk is full: no disk was measured"
    if growth["diskFullBeforeRetention"]:
        return format_hours(growth["hoursToFull"]), "until the disk is full"
    hours = growth["reservedHours"]
    return format_bytes(growth["steadyStateBytes"]), f"with {hours} h of retention at this growth: fits on the disk"


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
    made = "".join(
        _section(*card, kind="wide" if index == len(shown) - 1 and index % 2 == 0 else "")
        for index, card in enumerate(shown)
    )
    return f'<div class="cards">{made}</div>' if made else ""


def _versions_hint(topics: Sequence[Mapping[str, Any]]) -> str:
    hint = "Number of keys by their number of versions."
    equal = plots.equal_versions(topics)
    return hint if equal is None else f"{hint} No key is hot: the most frequent keys have {equal:,} versions each."


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[int], text: int = -1) -> str:
    """Return a table. The cells are HTML. `numeric`: columns of numbers. `text`: a column of sentences."""
    kinds = ["n" if i in numeric else "text" if i == text else "" for i in range(len(heads))]
    classes = [f' class="{kind}"' if kind else "" for kind in kinds]
    head = "".join(f"<th{c}>{h}</th>" for c, h in zip(classes, heads, strict=True))
    body = "".join(
        "<tr>"
        + "".join(f'<td{c} data-head="{escape(h)}">{cell}</td>' for c, h, cell in zip(classes, heads, row, strict=True))
        + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


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
                f"{t['records']:,}",
                format_bytes(t["bytes"]),
                f"{t['distinctKeys']:,}",
                f"{t['supersededRecords']:,}",
                escape(saved) if t["savedBytes"] else "-",
                f'<span class="badge {kind}">{escape(t["recommendation"])}</span>',
                escape(t["reason"]),
            )
        )
    if not rows:
        return "<p>This log has no topics of users.</p>"
    heads = ("Topic", "Records", "Bytes", "Keys", "Superseded", "Saves", "Recommendation", "Reason")
    return _table(heads, rows, (1, 2, 3, 4, 5), text=7)


def _growth_hint(growth: Mapping[str, Any]) -> str:
    text = (
        f"The log grows by {format_bytes(growth['bytesPerHour'])} an hour. {growth['reservedHours']} h of retention "
        f"hold {format_bytes(growth['steadyStateBytes'])} at this rate."
    )
    if growth["diskFullBeforeRetention"] and growth["fullAt"]:
        text += f" The disk is full at {growth['fullAt']}."
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


def _notes(notes: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(n)}</li>" for n in notes)
    return _section("Notes", "Limits of this report.", f"<ul>{items}</ul>" if items else "")
