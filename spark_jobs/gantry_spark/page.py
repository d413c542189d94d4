"""The report as a page: one HTML file with its plots and the plotting library in it, nothing is loaded at view time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

from plotly.offline import get_plotlyjs

from gantry_spark import plots
from gantry_spark.format import format_bytes, format_count, format_hours
from gantry_spark.recommendations import COMPACT, LENGTHEN, SHORTEN

_BADGES: Final = {COMPACT: "good", SHORTEN: "warn", LENGTHEN: "bad"}
_STYLE: Final = """
:root { --ink: #1c2733; --dim: #5d6b7a; --line: #e3e8ee; --paper: #ffffff; --ground: #f5f7fa; --accent: #1f6feb;
  --good: #14804a; --warn: #a15c00; --bad: #c0352b; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 28px 24px 60px; }
h1 { font-size: 26px; margin: 0 0 2px; letter-spacing: -0.01em; }
h2 { font-size: 17px; margin: 0 0 2px; }
.sub { color: var(--dim); margin: 0 0 20px; }
.hint { color: var(--dim); margin: 0 0 10px; font-size: 13.5px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(170px, 1fr)); gap: 14px; margin-bottom: 18px; }
.tile, section { background: var(--paper); border: 1px solid var(--line); border-radius: 10px; }
.tile { padding: 14px 16px; }
.tile b { display: block; font-size: 23px; letter-spacing: -0.01em; }
.tile span { color: var(--dim); font-size: 13px; }
section { padding: 18px 20px; margin-bottom: 18px; }
/* Fixed columns: a plot takes its width as soon as it is parsed, before the one beside it is there. */
.pair { display: grid; grid-template-columns: minmax(0, 1fr) minmax(0, 1fr); gap: 18px; }
@media (max-width: 900px) { .pair { grid-template-columns: minmax(0, 1fr); } }
.pair section { min-width: 0; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th { text-align: left; color: var(--dim); font-weight: 600; border-bottom: 1px solid var(--line); padding: 6px 10px; }
td { border-bottom: 1px solid var(--line); padding: 7px 10px; vertical-align: top; }
tr:last-child td { border-bottom: 0; }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.name { font-weight: 600; overflow-wrap: anywhere; display: inline-block; min-width: 90px; }
.badge { display: inline-block; border-radius: 999px; padding: 1px 9px; font-size: 12.5px; font-weight: 600;
  background: #eef1f5; color: var(--dim); white-space: nowrap; }
.badge.good { background: #e3f5ea; color: var(--good); }
.badge.warn { background: #fdf1dd; color: var(--warn); }
.badge.bad { background: #fde8e6; color: var(--bad); }
.scroll { overflow-x: auto; }
footer { color: var(--dim); font-size: 13px; }
"""


def render(report: Mapping[str, Any]) -> str:
    """The page of a report (`model.build`)."""
    title = f"What the log of {report['source']} holds"
    body = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="sub">{escape(_subtitle(report))}</p>',
        _tiles(report),
        _section("What to do", "Topics by what compaction would save.", _topics(report["topics"])),
        _section(
            "Savings by topic",
            "Bytes of each topic: what would stay, and what compaction would remove.",
            plots.savings(report["topics"]),
        ),
        '<div class="pair">',
        _section("Growth and forecast", _growth_hint(report["growth"]), plots.growth(report["growth"])),
        _section(
            "Saving by window",
            "What compacting only the newest part of the log would save.",
            plots.windows(report["topics"]),
        ),
        "</div>",
        '<div class="pair">',
        _section("Hot keys", "Keys with the most versions.", plots.hot_keys(report["topics"])),
        _section("Versions per key", "How often keys were written.", plots.versions(report["topics"])),
        "</div>",
        '<div class="pair">',
        _section("Ages", "Bytes by the time since they were stored.", plots.ages(report["topics"])),
        _section("Sizes", "Records by size.", plots.sizes(report["topics"])),
        "</div>",
        _groups(report["groups"]),
        _retries(report["retries"]),
        _system(report["topics"]),
        _damage(report["damage"]),
        _notes(report["notes"]),
        f"<footer>Run {escape(str(report.get('run', '')))}, {report.get('durationSeconds', 0)} s. Figures behind "
        "this page: report.json, keys, hours.parquet and queues.parquet beside it.</footer>",
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
    return f"As of {report['asOf']}{since}. Tombstones are kept for {report['tombstoneHours']:g} h."


def _tiles(report: Mapping[str, Any]) -> str:
    totals, growth = report["totals"], report["growth"]
    saved = totals["savedBytes"]
    share = f"{saved / totals['bytes']:.0%} of the log" if totals["bytes"] else "of the log"
    full = growth["hoursToFull"]
    if full is None:
        disk = ("-", "until the disk is full: not known")
    elif growth["diskFullBeforeRetention"]:
        disk = (format_hours(full), "until the disk is full")
    else:
        disk = ("no", "does the disk fill: retention comes first")
    tiles = [
        (format_bytes(totals["bytes"]), f"in {totals['records']:,} records of {totals['topics']} topics"),
        (format_bytes(saved), f"compaction would save, {share}"),
        (f"{totals['distinctKeys']:,}", f"keys, {totals['supersededRecords']:,} superseded versions"),
        (f"{format_bytes(growth['bytesPerHour'])}/h", "growth"),
        disk,
    ]
    made = "".join(f'<div class="tile"><b>{escape(big)}</b><span>{escape(small)}</span></div>' for big, small in tiles)
    return f'<div class="tiles">{made}</div>'


def _section(title: str, hint: str, content: str) -> str:
    if not content:
        return ""
    return f'<section><h2>{escape(title)}</h2><p class="hint">{escape(hint)}</p>{content}</section>'


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[int]) -> str:
    """Cells are HTML already."""
    head = "".join(f"<th{' class=n' if i in numeric else ''}>{h}</th>" for i, h in enumerate(heads))
    body = "".join(
        "<tr>" + "".join(f"<td{' class=n' if i in numeric else ''}>{c}</td>" for i, c in enumerate(row)) + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _topics(topics: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for t in topics:
        if t["kind"] != "user":
            continue
        kind = _BADGES.get(t["recommendation"], "")
        saved = f"{format_bytes(t['savedBytes'])} ({t['savedBytes'] / t['bytes']:.0%})" if t["savedBytes"] else "-"
        rows.append(
            (
                f'<span class="name">{escape(t["topic"])}</span>',
                f"{t['records']:,}",
                format_bytes(t["bytes"]),
                f"{t['distinctKeys']:,}",
                f"{t['supersededRecords']:,}",
                saved,
                f'<span class="badge {kind}">{escape(t["recommendation"])}</span>',
                escape(t["reason"]),
            )
        )
    if not rows:
        return "<p>There are no topics of users in this log.</p>"
    heads = ("Topic", "Records", "Bytes", "Keys", "Superseded", "Saves", "Do", "Why")
    return _table(heads, rows, (1, 2, 3, 4, 5))


def _growth_hint(growth: Mapping[str, Any]) -> str:
    text = (
        f"{format_bytes(growth['bytesPerHour'])} an hour; at that rate {growth['reservedHours']} h of retention hold "
    )
    text += format_bytes(growth["steadyStateBytes"])
    if growth["diskFullBeforeRetention"] and growth["fullAt"]:
        text += f", and the disk is full at {growth['fullAt']}"
    return text + "."


def _groups(groups: Sequence[Mapping[str, Any]]) -> str:
    shown = [g for g in groups if g["compactedUnreadRecords"] or g["expiredUnreadRecords"] or g["lagRecords"]][:50]
    rows = [
        (
            f'<span class="name">{escape(g["group"])}</span>',
            escape(g["topic"]),
            f"{g['lagRecords']:,}",
            f"{g['lagHours']:,.1f} h",
            f"{g['compactedUnreadRecords']:,}",
            f"{g['expiredUnreadRecords']:,}",
        )
        for g in shown
    ]
    heads = ("Group", "Topic", "Behind", "Oldest unread", "Compaction would take", "Expired unread")
    hint = "Consumer groups that have not read everything: what compaction would take from them, what retention took."
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
        for r in retries[:50]
    ]
    heads = ("Group", "Retries", "Bytes", "Dead letters", "Bytes")
    hint = "Messages that consumers sent back, and those that they gave up."
    return _section("Retries and dead letters", hint, _table(heads, rows, (1, 2, 3, 4)) if rows else "")


def _system(topics: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        (
            f'<span class="name">{escape(t["topic"])}</span>',
            escape(t["kind"]),
            f"{t['records']:,}",
            format_bytes(t["bytes"]),
        )
        for t in topics
        if t["kind"] == "system"
    ][:30]
    hint = "Delays, transactions and control records: they cannot be compacted."
    heads = ("Topic", "Kind", "Records", "Bytes")
    return _section("The broker's own topics", hint, _table(heads, rows, (2, 3)) if rows else "")


def _damage(damage: Mapping[str, Any]) -> str:
    rows = [(escape(d["log"]), f"{d['offset']:,}", f"{d['bytes']:,}", escape(d["reason"])) for d in damage["list"][:30]]
    hint = f"{format_count(damage['ranges'], 'place')} of the log, {format_bytes(damage['bytes'])}, held no records: skipped."
    return _section("Damage", hint, _table(("Log", "Offset", "Bytes", "Why"), rows, (1, 2)) if rows else "")


def _notes(notes: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(n)}</li>" for n in notes)
    return _section("Notes", "What could not be looked at.", f"<ul>{items}</ul>" if items else "")
