"""`python -m helm.dashboards [--check]`: write the chart's dashboards, or say which are not current."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

from helm.dashboards.boards import BOARDS
from helm.dashboards.grafana import dashboard

FOLDER: Final = Path(__file__).parents[1] / "gantry" / "dashboards"


def texts() -> dict[Path, str]:
    """Return the text of each file."""
    return {
        FOLDER / f"{name}.json": json.dumps(dashboard(board), indent=2, ensure_ascii=False) + "\n"
        for name, board in BOARDS.items()
    }


def main(arguments: list[str]) -> int:
    wanted = texts()
    present = {path: path.read_text() for path in FOLDER.glob("*.json")}
    stale = sorted(p for p in wanted.keys() | present.keys() if wanted.get(p) != present.get(p))
    for path in stale:
        if "--check" in arguments:
            print(f"{path.name} is not current: python -m helm.dashboards", file=sys.stderr)
        elif path in wanted:
            path.parent.mkdir(exist_ok=True)
            path.write_text(wanted[path])
        else:
            path.unlink()
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
