"""`python -m tests.console.recording`: record a failover in a terminal, as docs/console/failover.svg.

Runs the commands that it shows, with their real output and times; pauses are cut to `PAUSE_S`. The picture moves by
itself in a browser and on a page of a repository, and needs no script. Also prints `gantry status` for the README.
"""

from __future__ import annotations

import argparse
import html
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FILE: Final = Path(__file__).parents[2] / "docs" / "console" / "failover.svg"
PAUSE_S: Final = 1.2
TYPE_S: Final = 0.04
"""Seconds for each character that is typed."""
HOLD_S: Final = 6.0
"""Seconds for which the last picture stays before it begins again."""
WIDTH, ROW, LEFT, TOP, CHAR = 880, 19, 18, 30, 7.8
COLOURS: Final = {"$": "#7ee787", "kill": "#ff7b72", "Failover": "#d2a8ff", "SEND_OK": "#7ee787", "ready": "#7ee787"}


@dataclass(frozen=True, slots=True)
class Line:
    at: float
    """Seconds since the beginning at which it appears."""
    text: str


class Session:
    """Commands in a shell, and what they print."""

    def __init__(self, state: Path) -> None:
        self.lines: list[Line] = []
        self.at = 0.5
        self.environment = os.environ | {"XDG_STATE_HOME": str(state)}

    def typed(self, text: str) -> None:
        self.lines.append(Line(self.at, f"$ {text}"))
        self.at += TYPE_S * len(text)

    def shown(self, text: str, seconds: float = 0.0) -> None:
        """Add what a command printed after some seconds."""
        self.at += min(seconds, PAUSE_S)
        self.lines += [Line(self.at, line) for line in text.rstrip("\n").split("\n")]
        self.at += PAUSE_S

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "gantry_operator.cli", *words],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=self.environment,
        )  # fmt: skip

    def run(self, *words: str) -> tuple[str, float]:
        began = time.monotonic()
        out, _ = (process := self.start(*words)).communicate(timeout=120)
        assert process.returncode == 0, out
        return out, time.monotonic() - began


def record() -> tuple[list[Line], str]:
    """The lines of a session with a failover, and the status after it."""
    with tempfile.TemporaryDirectory() as folder:
        session = Session(Path(folder))
        try:
            return session.lines, _commands(session)
        finally:
            session.run("down")


def _commands(session: Session) -> str:
    session.typed("gantry up --detach")
    session.shown(*session.run("up", "--detach"))
    before, _ = session.run("status")
    found = re.search(r"^demo-a-\d .* Master .*?(\d+)$", before, re.MULTILINE)
    assert found is not None, before
    session.typed("gantry produce Orders --count 50000 &")
    sending = session.start("produce", "Orders", "--count", "50000", "--size", "200")
    time.sleep(2.5)
    session.typed(f"kill -9 {found[1]}        # the master")
    os.kill(int(found[1]), signal.SIGKILL)
    began = time.monotonic()
    out, _ = sending.communicate(timeout=120)
    assert sending.returncode == 0, out
    session.shown(out, time.monotonic() - began)
    session.typed("gantry consume Orders --group billing --count 50000 --quiet")
    session.shown(*session.run("consume", "Orders", "--group", "billing", "--count", "50000", "--quiet"))
    deadline = time.monotonic() + 60
    status = ""
    while "InSyncSetExpanded" not in status or " no " in status:
        assert time.monotonic() < deadline, status
        time.sleep(0.5)
        status, _ = session.run("status")
    session.typed("gantry status | grep -E 'Last change|demo-a-[0-9] |Failover'")
    kept = [line for line in status.split("\n") if re.search(r"Last change|^demo-a-\d |Failover", line)]
    session.shown("\n".join(kept), 0.6)
    return status


def svg(lines: list[Line]) -> str:
    """The picture. Each line appears at its time, and all go together."""
    lasts = lines[-1].at + HOLD_S
    height = TOP + ROW * len(lines) + 14
    rows = []
    styles = []
    for number, line in enumerate(lines):
        share = 100 * line.at / lasts
        styles.append(f"@keyframes k{number}{{0%,{share:.2f}%{{opacity:0}}{share + 0.01:.2f}%,100%{{opacity:1}}}}")
        styles.append(f"#l{number}{{animation:k{number} {lasts:.1f}s linear infinite}}")
        y = TOP + ROW * (number + 1)
        rows.append(f'<text id="l{number}" x="{LEFT}" y="{y}" xml:space="preserve">{_coloured(line.text)}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'role="img" aria-label="A terminal: a cluster starts, its master is killed under load, every message is '
        'acknowledged and read">\n'
        "<style>text{font:12.5px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;fill:#d0d7de}"
        "@media (prefers-reduced-motion:reduce){text{animation:none!important}}"
        f"{''.join(styles)}</style>\n"
        f'<rect width="{WIDTH}" height="{height}" rx="8" fill="#0d1117"/>\n'
        + "".join(f'<circle cx="{x}" cy="17" r="5" fill="#484f58"/>' for x in (20, 36, 52))
        + "\n".join(("", *rows))
        + "\n</svg>\n"
    )


def _coloured(text: str) -> str:
    plain = text if text.startswith("$") else re.sub(r" {3,}", "  ", text)
    room = int((WIDTH - 2 * LEFT) / CHAR)
    shown = html.escape(plain if len(plain) <= room else f"{plain[: room - 1]}…")
    for word, colour in COLOURS.items():
        pattern = r"^\$" if word == "$" else re.escape(word)
        shown = re.sub(pattern, lambda m, c=colour: f'<tspan fill="{c}">{m[0]}</tspan>', shown, count=1)  # type: ignore[misc]
    return shown


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", type=Path, default=FILE)
    options = parser.parse_args()
    recorded, status_text = record()
    options.file.write_text(svg(recorded))
    print(status_text)
