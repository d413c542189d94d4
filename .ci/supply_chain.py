"""What the images contain, and known weaknesses of it: an SBOM for each image, then an audit of each lock file.

`python .ci/supply_chain.py` writes build/sbom/IMAGE.cdx.json (CycloneDX) from requirements/IMAGE.txt. The tools are in
an environment of their own, from requirements/audit.txt with hashes. The audit asks a service on the network. If that
cannot be reached, the script says so, and an audit that did not run is no failure. The exit code is 1 for a weakness.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ("broker", "operator", "spark")
TOOLS = ROOT / "build" / "supply-chain"
OUTPUT = ROOT / "build" / "sbom"
UNREACHABLE = re.compile(
    r"ConnectionError|ConnectTimeout|ReadTimeout|NewConnectionError|Max retries|ServiceError|ProxyError|HTTPError"
)
PINNED = re.compile(r"^([A-Za-z0-9._-]+)==", re.MULTILINE)


def tools() -> Path:
    """The folder with the tools' commands, made again after a change of their lock file."""
    lock = ROOT / "requirements" / "audit.txt"
    mark = TOOLS / "lock"
    commands = TOOLS / "bin"
    if not mark.exists() or mark.read_text() != lock.read_text():
        venv.create(TOOLS, clear=True, with_pip=True)
        install = [commands / "python", "-m", "pip", "install", "--quiet", "--require-hashes", "-r", lock]
        subprocess.run(install, check=True)
        mark.write_text(lock.read_text())
    return commands


def write_sbom(commands: Path, image: str) -> int:
    """Write the SBOM of an image. Returns the number of its components. Raises SystemExit if one is missing."""
    lock = ROOT / "requirements" / f"{image}.txt"
    made = OUTPUT / f"{image}.cdx.json"
    command = [commands / "cyclonedx-py", "requirements", lock, "--output-reproducible", "--of", "JSON", "-o", made]
    subprocess.run(command, check=True)
    found = {c["name"].lower().replace("_", "-") for c in json.loads(made.read_text())["components"]}
    wanted = {name.lower().replace("_", "-") for name in PINNED.findall(lock.read_text())}
    if missing := wanted - found:
        raise SystemExit(f"{made}: these packages of {lock.name} are missing: {', '.join(sorted(missing))}")
    return len(found)


def audit(commands: Path, image: str) -> str:
    """Empty: no known weakness; else what was found, or why nothing was asked (that begins with "not audited")."""
    lock = ROOT / "requirements" / f"{image}.txt"
    command = [commands / "pip-audit", "--requirement", lock, "--require-hashes", "--disable-pip"]
    done = subprocess.run([*command, "--progress-spinner", "off"], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return ""
    if not done.stdout.strip() and UNREACHABLE.search(done.stderr):
        last = done.stderr.strip().splitlines()[-1][:200]
        return f"not audited: the service with known weaknesses cannot be reached from here ({last})"
    return f"{done.stdout}\n{done.stderr}".strip()


def main() -> int:
    OUTPUT.mkdir(parents=True, exist_ok=True)
    commands = tools()
    weak = False
    for image in IMAGES:
        count = write_sbom(commands, image)
        print(f"{image}: {count} components in {(OUTPUT / image).relative_to(ROOT)}.cdx.json", flush=True)
        said = audit(commands, image)
        print(f"  {said or 'no known weakness'}", flush=True)
        weak = weak or bool(said and not said.startswith("not audited"))
    return 1 if weak else 0


if __name__ == "__main__":
    sys.exit(main())
