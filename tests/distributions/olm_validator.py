"""`python -m tests.distributions.olm_validator`: the bundle of the chart before OLM's own validators.

Needs `helm` in PATH, and Go for the first time.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from benchmarks.rig import golang
from distributions import olm
from distributions.build import ROOT

SOURCES: Final = Path(__file__).with_name("bundlecheck")
RENDER: Final = (
    "helm",
    "template",
    "gantry",
    str(ROOT / "helm/gantry"),
    "-n",
    "gantry-system",
    "--kube-version",
    "1.29.0",
)


def complaints(manifests: Path) -> list[str]:
    """What the validators say of a folder of manifests, errors and warnings."""
    program = golang.build(SOURCES, ".", "bundlecheck")
    done = subprocess.run([str(program), str(manifests)], capture_output=True, text=True, check=False)
    said = done.stdout.splitlines() + done.stderr.splitlines()
    return said or ([] if done.returncode == 0 else [f"it ended with {done.returncode}"])


def main() -> int:
    rendered = subprocess.run(RENDER, stdout=subprocess.PIPE, text=True, check=True).stdout
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "bundle"
        olm.build(rendered, made)
        found = complaints(made / "manifests")
        # What is broken on purpose must be found, or the validators look at nothing.
        version = made / "manifests/gantry.clusterserviceversion.yaml"
        version.write_text(version.read_text().replace("installModes:", "installModesNot:"))
        broken = complaints(made / "manifests")
    for line in found:
        print(line)
    if not broken:
        print("error: the validators do not notice a bundle without install modes")
    return 1 if found or not broken else 0


if __name__ == "__main__":
    sys.exit(main())
