"""The slowest tests of the last run of all layers, as a table: `python .ci/slowest.py [COUNT]`.

Reads build/junit/*.xml, which `make test` and e2e/run write. The time of a test includes its fixtures.
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from pathlib import Path

JUNIT = Path(__file__).resolve().parent.parent / "build" / "junit"
COUNT = 30


def main() -> int:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else COUNT
    files = sorted(JUNIT.glob("*.xml"))
    if not files:
        sys.exit(f"error: {JUNIT} has no *.xml: run `make test` or e2e/run first")
    found: dict[str, float] = {}
    for path in files:
        for case in ET.parse(path).iter("testcase"):
            name = f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"
            found[name] = max(found.get(name, 0.0), float(case.get("time", "0")))
    print("| seconds | test |\n|---|---|")
    for name, seconds in sorted(found.items(), key=lambda item: -item[1])[:count]:
        print(f"| {seconds:.0f} | `{name}` |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
