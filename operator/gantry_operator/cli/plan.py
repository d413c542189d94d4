"""`gantry plan`: what a manifest, or another image of the operator's chart, would change. It changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gantry_broker.protocol.printable import printable
from rich.markup import escape

from gantry_operator.actions.target import Target
from gantry_operator.cli.manifest_files import read_manifest
from gantry_operator.cli.output import console, print_json
from gantry_operator.cli.target import run_async

FIELDS = 6


def show_plan(target: Target, file: Path | None, image: str, as_json: bool) -> None:
    """Print the effect. Raises CliError for a manifest that is refused."""
    manifest = None if file is None else read_manifest(file)
    effect = run_async(target.preview(manifest, image))
    if as_json:
        print_json(effect)
        return
    _show(effect)


def _show(effect: dict[str, Any]) -> None:
    out = console()
    for change in effect["changes"]:
        fields = change["fields"]
        more = f", and {len(fields) - FIELDS} more" if len(fields) > FIELDS else ""
        where = f": {', '.join(fields[:FIELDS])}{more}" if fields else ""
        out.print(
            escape(f"{change['action']} {change['kind']} {change['name']}{where}"), highlight=False, soft_wrap=True
        )
    for key, text in (("replaced", "replace, in this order"), ("started", "start"), ("stopped", "stop")):
        if effect[key]:
            out.print(escape(f"{text}: {', '.join(effect[key])}"), highlight=False, soft_wrap=True)
    for warning in effect.get("warnings") or []:
        out.print(escape(f"note: {printable(warning)}"), highlight=False, soft_wrap=True)
    if not any(effect[key] for key in ("changes", "replaced", "started", "stopped")):
        out.print("nothing would change", highlight=False)
