"""What `gantry top` draws: a view of the cluster as lines that fit the terminal. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from textwrap import wrap
from typing import Any, Final, NamedTuple

from rich.text import Text

from gantry_operator.cli.next_steps import Step
from gantry_operator.cluster.amounts import size
from gantry_operator.cluster.live import ConsumerLag, MemberLine, Rates, View

PHASES: Final = {"Running": "green", "Updating": "yellow", "Creating": "yellow", "Degraded": "yellow"}
STEPS_SHOWN: Final = 2
WRAPPED: Final = 2
"""Lines of one sentence, at most."""
SECTION: Final = 3
"""Lines of the smallest part: a blank one, the heading, a row."""
DISK_WARN: Final = 0.85
"""Share of the disk from which it is marked."""
KEYS: Final = "q quit   space pause   s sort members   g sort groups"

MEMBER_SORTS: Final[dict[str, Callable[[MemberLine], Any]]] = {
    "name": lambda m: (m.group, m.name),
    "lag": lambda m: (m.lag is not None, -(m.lag or 0), m.name),
    "rate": lambda m: (-_total(m.rates), m.name),
    "disk": lambda m: (-(m.disk_used or 0), m.name),
}
"""The orders of members. A member whose lag is not known comes first."""
GROUP_SORTS: Final[dict[str, Callable[[ConsumerLag], Any]]] = {
    "lag": lambda c: (-c.messages, c.group),
    "age": lambda c: (-c.oldest_ms, c.group),
    "name": lambda c: c.group,
}
"""The orders of consumer groups."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What the user has chosen by keys."""

    members: str = "name"
    groups: str = "lag"
    paused: bool = False
    quit: bool = False


def pressed(choice: Choice, key: str) -> Choice:
    """Return the choice after a key."""
    if key in ("q", "Q", "\x03"):
        return replace(choice, quit=True)
    if key in (" ", "p"):
        return replace(choice, paused=not choice.paused)
    if key == "s":
        return replace(choice, members=_next(MEMBER_SORTS, choice.members))
    if key == "g":
        return replace(choice, groups=_next(GROUP_SORTS, choice.groups))
    return choice


def _next(orders: dict[str, Any], now: str) -> str:
    names = list(orders)
    return names[(names.index(now) + 1) % len(names)]


def _total(rates: Rates | None) -> float:
    return 0.0 if rates is None else rates.messages_in + rates.messages_out


def shares(room: int, wants: Sequence[int]) -> list[int]:
    """Divide lines among parts: every part that fits gets its least, the rest goes to the first that want more."""
    given = []
    for want in wants:
        least = min(want, SECTION) if want >= SECTION else 0
        given.append(least if least <= room else 0)
        room -= given[-1]
    for i, want in enumerate(wants):
        if given[i]:
            more = min(want - given[i], room)
            given[i] += more
            room -= more
    return given


def screen(
    view: View, steps: Sequence[Step], choice: Choice, now: str, width: int, height: int | None, *, keys: bool = True
) -> Text:
    """Return at most `height` lines of at most `width` characters; `height` None: all rows.

    `now`: the time of day of the view. `keys`: whether the last line names the keys.
    """
    lines = [_head(view, choice, now)]
    if view.last_failover:
        lines += _said("last change", view.last_failover, width)
    if view.problem:
        lines += _said("old figures", view.problem, width, "red")
    for step in steps[:STEPS_SHOWN]:
        lines += _said("next", f"{step.about}: {step.do}", width, "yellow")
    members = sorted(view.members, key=MEMBER_SORTS[choice.members])
    groups = sorted(view.consumers, key=GROUP_SORTS[choice.groups])
    wants = [len(members) + 2, max(len(groups), 1) + 2, len(view.events) + 2 if view.events else 0]
    room = sum(wants) if height is None else height - len(lines) - (1 if keys else 0)
    for_members, for_groups, for_events = shares(room, wants)
    if for_members:
        lines += [Text(), *_members(members, for_members - 2, choice, width)]
    if for_groups:
        lines += [Text(), *_groups(groups, for_groups - 2, choice, view, width)]
    if for_events:
        lines += [Text(), *_events(view, for_events - 2, width)]
    if keys:
        lines.append(Text(KEYS, style="dim"))
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return Text("\n", no_wrap=True).join(lines if height is None else lines[:height])


def _said(label: str, sentence: str, width: int, style: str = "") -> list[Text]:
    """Return a sentence with a label, in at most `WRAPPED` lines."""
    indent = len(label) + 2
    parts = wrap(sentence, max(width - indent, 20), max_lines=WRAPPED, placeholder=" …", break_on_hyphens=False)
    return [
        Text.assemble((f"{label}  " if i == 0 else " " * indent, "dim"), (part, style)) for i, part in enumerate(parts)
    ]


def _head(view: View, choice: Choice, now: str) -> Text:
    parts: list[Any] = [
        (view.cluster, "bold"), "  ", (view.phase, PHASES.get(view.phase, "red")),
        f"  {sum(m.follows for m in view.members) if view.standby else view.in_sync}/{len(view.members)} "
        f"{'follow the archive' if view.standby else 'in sync'}",
    ]  # fmt: skip
    if choice.paused:  # Before what a narrow terminal cuts off.
        parts.append(("  PAUSED", "bold yellow"))
    if view.rates is not None:
        r = view.rates
        parts.append(f"  in {_rate(r.messages_in)}/s {size(int(r.bytes_in))}/s")
        parts.append(f"  out {_rate(r.messages_out)}/s {size(int(r.bytes_out))}/s")
    parts.append(f"  {now}")
    return Text.assemble(*parts)


class Column(NamedTuple):
    """A column of a table. `order`: the name of the order by it; empty: none. `spare`: a narrow terminal leaves it out,
    the highest first; 0: never.
    """

    heading: str
    order: str = ""
    right: bool = False
    spare: int = 0


Row = Sequence[Text | str]


def _table(columns: Sequence[Column], rows: Sequence[Row], sort: str, width: int) -> list[Text]:
    """Lines of a table. In a narrow terminal the first and the last column give way, and spare ones are left out."""
    heads = [c.heading + ("*" if c.order and c.order == sort else "") for c in columns]
    cells = [[cell if isinstance(cell, Text) else Text(cell) for cell in row] for row in rows]
    widths = [max(len(head), *(row[i].cell_len for row in cells), 0) for i, head in enumerate(heads)]
    widths[0] = min(widths[0], max(width // 3, 12))
    shown = _shown(columns, [*widths[:-1], len(heads[-1])], width)
    columns = [columns[i] for i in shown]
    heads, widths = [heads[i] for i in shown], [widths[i] for i in shown]
    cells = [[row[i] for i in shown] for row in cells]
    lines = []
    for row in [[Text(head, "bold") for head in heads], *cells]:
        line = Text()
        for i, (column, cell) in enumerate(zip(columns, row, strict=True)):
            room = widths[i]
            if i == 0 and cell.cell_len > room:
                cell = Text("…") + cell[len(cell) - room + 1 :]  # Names of members differ at their ends.
            gap = " " * (room - cell.cell_len)
            last = i == len(columns) - 1
            line.append(gap if column.right else "").append_text(cell)
            line.append("" if last else ("" if column.right else gap) + "  ")
        line.rstrip()
        lines.append(line)
    return lines


def _shown(columns: Sequence[Column], widths: Sequence[int], width: int) -> list[int]:
    """Return the places of the columns that a terminal has room for."""
    shown = list(range(len(columns)))
    while sum(widths[i] + 2 for i in shown) - 2 > width and any(columns[i].spare for i in shown):
        shown.remove(max(shown, key=lambda i: columns[i].spare))
    return shown


def _members(members: Sequence[MemberLine], room: int, choice: Choice, width: int) -> list[Text]:
    rows: list[Row] = []
    for m in _fitting(members, room):
        disk = "-" if m.disk_used is None else f"{m.disk_used:.0%}"
        warn = "red" if m.disk_full else "yellow" if (m.disk_used or 0) >= DISK_WARN else ""
        role = {"Master": "green", "Unknown": "red"}.get(m.role, "")
        rows.append((
            m.name, m.group, Text(m.role, role), "-" if m.epoch is None else str(m.epoch),
            "-" if m.lag is None else size(m.lag),
            Text("-") if m.in_sync is None else Text("yes") if m.in_sync else Text("no", "yellow"), Text(disk, warn),
            "-" if m.rates is None else _rate(m.rates.messages_in),
            "-" if m.rates is None else _rate(m.rates.messages_out),
            Text(m.reason, "dim" if m.follows else "yellow") if m.reason else Text("ok", "dim"),
        ))  # fmt: skip
    columns = (
        Column("MEMBER", "name"), Column("GROUP", spare=5), Column("ROLE"), Column("EPOCH", right=True, spare=6),
        Column("LAG", "lag", right=True, spare=1), Column("SYNC"), Column("DISK", "disk", right=True, spare=2),
        Column("IN/S", "rate", right=True, spare=3), Column("OUT/S", right=True, spare=4), Column("STATE"),
    )  # fmt: skip
    return _table(columns, rows, choice.members, width) + _more(len(members), room)


def _groups(groups: Sequence[ConsumerLag], room: int, choice: Choice, view: View, width: int) -> list[Text]:
    unknown = f"without group {', '.join(view.blind)}: no master answers" if view.blind else ""
    if not unknown and view.standby:
        unknown = "a standby counts no unread messages: ask the other site"
    rows: list[Row] = [
        (c.group, f"{c.messages:,}", f"{c.inflight:,}", duration(c.oldest_ms) if c.messages else "-",
         Text(unknown if i == 0 else "", "yellow"))
        for i, c in enumerate(_fitting(groups, room))
    ]  # fmt: skip
    columns = (
        Column("CONSUMER GROUP", "name"), Column("UNREAD", "lag", right=True), Column("IN FLIGHT", right=True, spare=1),
        Column("OLDEST", "age", right=True), Column(""),
    )  # fmt: skip
    table = _table(columns, rows, choice.groups, width)
    if not groups:
        table.append(Text(unknown, "yellow") if unknown else Text("none has read from this cluster yet", "dim"))
    return table + _more(len(groups), room)


def _events(view: View, room: int, width: int) -> list[Text]:
    rows: list[Row] = [
        (Text(reason, "yellow" if kind == "Warning" else ""), _time(when), message)
        for when, reason, message, kind in view.events[:room]
    ]
    return _table((Column("EVENT"), Column("TIME"), Column("MESSAGE")), rows, "", width)


def _fitting(rows: Sequence[Any], room: int) -> Sequence[Any]:
    """Return the rows that fit; the last line of the room says how many do not."""
    return rows if len(rows) <= room else rows[: room - 1]


def _more(count: int, room: int) -> list[Text]:
    return [Text(f"and {count - room + 1} more", "dim")] if count > room else []


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or not value else f"{value:.1f}"


def _time(rfc3339: str) -> str:
    """Return the time of day of a date and time in UTC."""
    return rfc3339[11:19] or "-"


def duration(ms: int) -> str:
    """Milliseconds for people: 850 ms, 12 s, 4 min, 3 h, 2 d."""
    if ms < 1000:
        return f"{ms} ms"
    for unit, factor, most in (("s", 1_000, 120_000), ("min", 60_000, 7_200_000), ("h", 3_600_000, 172_800_000)):
        if ms < most:
            return f"{ms // factor} {unit}"
    return f"{ms // 86_400_000} d"
