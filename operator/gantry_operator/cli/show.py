"""The output of `gantry status` for users."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table

from gantry_operator.cli.next_steps import Step
from gantry_operator.cli.output import console
from gantry_operator.cluster.amounts import size
from gantry_operator.cluster.plain import plain
from gantry_operator.cluster.unsupervised import unsupervised

EVENTS = 8
_PROMISED = ("mode", "replication", "minInSyncReplicas", "flush")
"""The fields of a spec that are shown."""
COLOURS = {"Running": "green", "Updating": "yellow", "Creating": "yellow", "Degraded": "yellow"}


def _promise(spec: dict[str, Any]) -> str:
    """Return the condition of an acknowledgement: the settings that apply in this mode."""
    if spec.get("mode") == "Raft":
        return "a majority of the members has it on disk, mode Raft"
    return (
        f"{spec.get('replication')}, minInSyncReplicas {spec.get('minInSyncReplicas')}, flush {spec.get('flush')}, "
        f"mode {spec.get('mode')}"
    )


def _effective(resource: dict[str, Any]) -> dict[str, Any]:
    """Return the spec with the defaults of this version. A refused spec as it is written."""
    spec = resource["spec"]
    if all(field in spec for field in _PROMISED):  # Of a cluster on this machine, all fields are written.
        return dict(spec)
    from gantry_operator.api.manifest import ManifestError, parse_manifest

    try:
        return parse_manifest(resource).spec.model_dump(mode="json")
    except ManifestError:
        return dict(spec)


def show_resource(resource: dict[str, Any], steps: Sequence[Step] = ()) -> None:
    """In the order of `kubectl describe`: metadata, conditions, processes, events; last what to do next."""
    out = console()
    status, spec, name = resource.get("status", {}), _effective(resource), resource["metadata"]["name"]
    phase = status.get("phase", "Pending")
    out.print(f"[bold]{escape(name)}[/bold]  [{COLOURS.get(phase, 'red')}]{phase}[/]", highlight=False)
    facts = [
        ("Name servers", status.get("addresses", {}).get("nameServers", "")),
        ("Outside", status.get("addresses", {}).get("external", "")),
        ("gRPC", (status.get("proxy") or {}).get("address", "")),
        ("gRPC outside", (status.get("proxy") or {}).get("external", "")),
        ("Replication", _promise(spec)),
    ]  # fmt: skip
    last = status.get("lastFailover")
    if last:
        kind = "switchover" if last.get("planned") else "failover"
        facts.append(
            ("Last change", f"{last['time']}  {kind} from {last.get('from') or '-'} to {last['to']} "
                            f"in {last.get('durationMs', 0)} ms: {last['reason']}")
        )  # fmt: skip
    if status.get("supervised") is False:
        facts.append(("Supervisor", unsupervised(status)))
    for label, value in facts:
        if value:
            out.print(f"  {label + ':':<14}{escape(value)}", highlight=False)
    _conditions(out, status)
    _members(out, status)
    _archives(out, status)
    _name_servers(out, status)
    _proxies(out, status)
    _events(out, status)
    _steps(out, steps)


def _table(*columns: str) -> Table:
    return Table(*columns, box=None, pad_edge=False, padding=(0, 2, 0, 2), header_style="bold")


def _conditions(out: Any, status: dict[str, Any]) -> None:
    table = _table("CONDITION", "STATUS", "SINCE", "MESSAGE")
    for c in status.get("conditions", []):
        table.add_row(c["type"], c["status"], c["lastTransitionTime"], escape(plain(c.get("message", ""))))
    out.print()
    out.print(table)


def _members(out: Any, status: dict[str, Any]) -> None:
    rows = status.get("members", [])
    pods = any(r.get("node") for r in rows)
    table = _table(
        "MEMBER", "GROUP", "ROLE", "ID", "EPOCH", "OFFSET", "LAG", "IN SYNC", "ADDRESS", "NODE" if pods else "PID"
    )
    for r in rows:
        role = r["role"] if r["role"] != "Master" else "[green]Master[/green]"
        table.add_row(
            r["name"], r["group"], role, *_figures(r),
            {True: "yes", False: "no"}.get(r.get("inSync"), "-"), escape(plain(r.get("address", ""))),
            str(r.get("node" if pods else "pid") or "-"),
        )  # fmt: skip
    out.print()
    out.print(table)
    for r in rows:
        if r.get("reason"):
            out.print(f"  {r['name']}: {escape(plain(r['reason']))}", highlight=False)


def _archives(out: Any, status: dict[str, Any]) -> None:
    rows = [(g["name"], g["archive"]) for g in status.get("groups", []) if g.get("archive")]
    if not rows:
        return
    table = _table("ARCHIVE", "RECOVERABLE FROM", "UNTIL", "OFFSET", "BEHIND", "SIZE", "OBJECTS", "READ", "VERIFIED")
    for name, row in rows:
        behind = row.get("behindBytes")
        table.add_row(
            f"group {name}", row.get("recoverableFrom") or "-", row.get("archivedUntil") or "-",
            *(["-"] * 6 if row.get("offset") is None else [
                str(row["offset"]), f"{size(behind or 0)}, {row.get('behindSeconds') or 0} s",
                size(row.get("bytes") or 0), str(row.get("objects") or 0), str(row.get("readMessages") or 0),
                f"{row.get('verified') or 'never'}, overdue" if row.get("overdue") else row.get("verified") or "-",
            ]),
        )  # fmt: skip
    out.print()
    out.print(table)
    for name, row in rows:
        if row.get("error"):
            out.print(f"  group {name}: {escape(plain(row['error']))}", highlight=False)
        if row.get("faults"):
            text = f"{row['faults']} objects are damaged or missing: {row.get('fault', '')}"
            out.print(f"  group {name}: {escape(plain(text))}", highlight=False)
        if row.get("readError"):
            text = f"old messages cannot be read: {row['readError']}"
            out.print(f"  group {name}: {escape(plain(text))}", highlight=False)


def _figures(row: dict[str, Any]) -> tuple[str, str, str, str]:
    """ID, epoch, offset and lag of a member. A dash: not known, since it does not answer."""
    figures = [str(row[k]) if row.get(k) is not None else "-" for k in ("epoch", "maxOffset")]
    lag = row.get("lag")
    return str(row["brokerId"]) if row["brokerId"] >= 0 else "-", *figures, "-" if lag is None else size(lag)  # type: ignore[return-value]


def _name_servers(out: Any, status: dict[str, Any]) -> None:
    rows = status.get("nameServerMembers", [])
    place = "node" if any(s.get("node") for s in rows) else "pid"
    table = _table("NAME SERVER", "READY", "ADDRESS", place.upper())
    for s in rows:
        table.add_row(s["name"], "yes" if s["ready"] else "no", s["address"], str(s.get(place) or "-"))
    out.print()
    out.print(table)


def _proxies(out: Any, status: dict[str, Any]) -> None:
    proxy = status.get("proxy")
    if not proxy:
        return
    table = _table("PROXY", "READY", "ADDRESS", "NODE" if any(r.get("node") for r in proxy["members"]) else "PID")
    for r in proxy["members"]:
        table.add_row(r["name"], "yes" if r["ready"] else "no", r["address"], str(r.get("node") or r.get("pid") or "-"))
    out.print()
    out.print(table)
    for r in proxy["members"]:
        if r.get("reason"):
            out.print(f"  {r['name']}: {escape(plain(r['reason']))}", highlight=False)


def _events(out: Any, status: dict[str, Any]) -> None:
    events = status.get("events", [])[-EVENTS:]
    if not events:
        return
    table = _table("EVENT", "TIME", "ABOUT", "MESSAGE")
    for e in events:
        reason_text = escape(plain(e["reason"]))
        reason = f"[yellow]{reason_text}[/yellow]" if e["type"] == "Warning" else reason_text
        table.add_row(reason, e["time"], escape(plain(e.get("object", ""))), escape(plain(e["message"])))
    out.print()
    out.print(table)


def _steps(out: Any, steps: Sequence[Step]) -> None:
    if not steps:
        return
    out.print()
    out.print("[bold]NEXT[/bold]", highlight=False)
    for step in steps:
        out.print(f"  {escape(plain(step.about))}: {escape(plain(step.do))}", highlight=False, soft_wrap=True)
