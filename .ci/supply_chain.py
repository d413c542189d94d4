"""What the images contain, and known weaknesses of it: an SBOM for each image, then an audit of each lock file.

`python .ci/supply_chain.py` writes build/sbom/IMAGE.cdx.json (CycloneDX) from requirements/IMAGE.txt. The tools are in
an environment of their own, from requirements/audit.txt with hashes. The audit asks a service on the network. If that
cannot be reached, the script says so, and an audit that did not run is no failure. The exit code is 1 for a weakness.

The first run installs the tools, which takes most of the time; later runs use them again. Each command has a time
limit: beyond it the script ends with an error, and an audit did not run.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ("broker", "operator", "spark")
TOOLS = ROOT / "build" / "supply-chain"
OUTPUT = ROOT / "build" / "sbom"
UNREACHABLE = re.compile(
    r"ConnectionError|ConnectTimeout|ReadTimeout|NewConnectionError|Max retries|ServiceError|ProxyError|HTTPError"
)
INSTALL_S = 900
"""Seconds for the installation of the tools."""
COMMAND_S = 180
"""Seconds for an SBOM, and for an audit."""
PINNED = re.compile(r"^([A-Za-z0-9._-]+)==", re.MULTILINE)


def run(what: str, limit_s: float, command: Sequence[str | Path]) -> None:
    """Raises SystemExit when the command fails or takes longer."""
    try:
        subprocess.run(command, check=True, timeout=limit_s)
    except subprocess.TimeoutExpired:
        raise SystemExit(f"error: {what} did not end within {limit_s:g} s: run it again with less other work") from None
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"error: {what} ended with code {error.returncode}") from None


def tools() -> Path:
    """The folder with the tools' commands, made again after a change of their lock file."""
    lock = ROOT / "requirements" / "audit.txt"
    mark = TOOLS / "lock"
    commands = TOOLS / "bin"
    if not mark.exists() or mark.read_text() != lock.read_text():
        venv.create(TOOLS, clear=True, with_pip=True)
        pip = [commands / "python", "-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet"]
        # The lock file is complete, and bytecode of tools that run once a night is not worth its time.
        install = [*pip, "install", "--no-deps", "--no-compile", "--only-binary", ":all:", "--require-hashes"]
        run("the installation of the tools", INSTALL_S, [*install, "-r", lock])
        mark.write_text(lock.read_text())
    return commands


def write_sbom(commands: Path, image: str) -> int:
    """Write the SBOM of an image. Returns the number of its components. Raises SystemExit if one is missing."""
    lock = ROOT / "requirements" / f"{image}.txt"
    made = OUTPUT / f"{image}.cdx.json"
    command = [commands / "cyclonedx-py", "requirements", lock, "--output-reproducible", "--of", "JSON", "-o", made]
    run(f"the SBOM of {image}", COMMAND_S, command)
    found = {c["name"].lower().replace("_", "-") for c in json.loads(made.read_text())["components"]}
    wanted = {name.lower().replace("_", "-") for name in PINNED.findall(lock.read_text())}
    if missing := wanted - found:
        raise SystemExit(f"{made}: these packages of {lock.name} are missing: {', '.join(sorted(missing))}")
    return len(found)


def audit(commands: Path, image: str) -> str:
    """Empty: no known weakness; else what was found, or why nothing was asked (that begins with "not audited")."""
    lock = ROOT / "requirements" / f"{image}.txt"
    command = [commands / "pip-audit", "--requirement", lock, "--require-hashes", "--disable-pip"]
    command += ["--progress-spinner", "off"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=COMMAND_S)
    except subprocess.TimeoutExpired:
        return f"not audited: the service with known weaknesses has not answered within {COMMAND_S:g} s"
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
