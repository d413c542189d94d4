"""`python -m tests.dashboards.pictures [--minutes 12]`: draw docs/dashboards/*.png from a real cluster's data.

Runs a cluster under load with a switchover and a failover in between, fetches what each panel shows from Prometheus,
and draws it in Chromium.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Final

from helm.dashboards.boards import BOARDS
from helm.dashboards.model import Board
from helm.dashboards.pictures import PAGE, Data, Line, Shown, page
from tests.dashboards.rig import Prometheus, expanded, rig
from tests.support.browser import chromium_path

FOLDER: Final = Path(__file__).parents[2] / "docs" / "dashboards"
STEPS: Final = 160
"""Points of a graph."""


def fetch(asked: Prometheus, board: Board, start: float, end: float) -> Data:
    """Return what each panel of a dashboard shows."""
    found: Data = {}
    step = (end - start) / STEPS
    for panel in board.panels():
        for number, query in enumerate(panel.queries):
            expr = expanded(query.expr, "30s")
            if panel.kind == "graph":
                series = asked.query_range(expr, start, end, step)
            else:
                series = [{"metric": s["metric"], "values": [s["value"]]} for s in asked.query(expr)]
            lines = [Line(s["metric"], [(t, float(v)) for t, v in s["values"]]) for s in series]
            found[panel.title, number] = lines
    return found


def draw(html: str, height: int, target: Path) -> None:
    """Draw a page in Chromium."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "page.html"
        file.write_text(html)
        words = [
            chromium_path(), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
            f"--user-data-dir={folder}/p", "--disable-background-networking", "--disable-component-update",
            "--disable-sync", "--no-first-run", "--host-resolver-rules=MAP * ~NOTFOUND",
            f"--window-size={PAGE},{height}", f"--screenshot={target}", f"file://{file}",
        ]  # fmt: skip
        subprocess.run(words, check=True, capture_output=True, timeout=120)


async def main(minutes: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with rig(Path(folder), each=0.05) as (cluster, asked):
            await asyncio.sleep(minutes * 60 * 0.35)
            master = cluster.master()
            other = next(m["name"] for m in cluster.members().values() if m["role"] == "Slave")
            words = ("switchover", "a", "--to", other, "--dir", str(cluster.folder.root))
            await asyncio.to_thread(cluster.gantry, *words)
            await asyncio.sleep(minutes * 60 * 0.3)
            os.kill(int(cluster.master()["pid"]), signal.SIGKILL)
            await asyncio.sleep(minutes * 60 * 0.35)
            print(f"first master {master['name']}, then {other}, then {cluster.master()['name']}")
            end = time.time()
            # Rates need a minute of data.
            start = end - minutes * 60 + min(60, minutes * 20)
            FOLDER.mkdir(exist_ok=True)
            for name, board in BOARDS.items():
                html, height = page(Shown(board, await asyncio.to_thread(fetch, asked, board, start, end), start, end))
                await asyncio.to_thread(draw, html, height, FOLDER / f"{name}.png")
                print(FOLDER / f"{name}.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--minutes", type=float, default=12, help="how long the cluster runs (default: 12)")
    asyncio.run(main(parser.parse_args().minutes))
