"""`python -m distributions.krew [--at URL] [FOLDER]`: build the archive of the kubectl plug-in and its Krew manifest.

The archive has one program, `kubectl-gantry`. It runs the command of `gantry-mq[operator]` in the version of this tree,
by uv or pipx, which keep it in an environment of its own: the plug-in itself needs no build for each system. URL is
where the archive will be; by default the files of a release at the project's address (distributions/address.py). Equal
sources give equal bytes, so the digest can be checked.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import sys
import tarfile
from pathlib import Path
from typing import Any, Final

import yaml

from distributions.address import AddressError, home, release_files
from distributions.build import ROOT, project

PLATFORMS: Final = (("linux", "amd64"), ("linux", "arm64"), ("darwin", "amd64"), ("darwin", "arm64"))
"""Systems that have a shell; the command talks to the API server only, and needs nothing else of them."""
PROGRAM: Final = """#!/bin/sh
# kubectl gantry: the command of gantry-mq, in an environment that uv or pipx keeps.
wanted='gantry-mq[operator]==@VERSION@'
if command -v uvx >/dev/null 2>&1; then
    exec uvx --quiet --from "$wanted" kubectl-gantry "$@"
elif command -v pipx >/dev/null 2>&1; then
    exec pipx run --quiet --spec "$wanted" kubectl-gantry "$@"
fi
echo "kubectl gantry needs uv (https://docs.astral.sh/uv) or pipx (https://pipx.pypa.io) on the PATH" >&2
exit 1
"""
DESCRIPTION: Final = """\
Shows the health of RocketMQ-protocol clusters that the Gantry operator runs, live in a terminal, and changes them:
switchovers, restarts, fencing, topics, users, offset resets, dead letters, migrations, archives. Each answer ends with
what to do next.
"""


def archive() -> bytes:
    """The archive of the plug-in."""
    files = {
        "kubectl-gantry": (PROGRAM.replace("@VERSION@", project()["version"]).encode(), 0o755),
        "LICENSE": ((ROOT / "LICENSE").read_bytes(), 0o644),
    }
    tarred = io.BytesIO()
    with tarfile.open(fileobj=tarred, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, (content, mode) in sorted(files.items()):
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), mode
            tar.addfile(info, io.BytesIO(content))
    return gzip.compress(tarred.getvalue(), mtime=0)


def manifest(packed: bytes, url: str) -> dict[str, Any]:
    """The manifest for Krew's index. `url`: of the archive."""
    made = project()
    common = {
        "uri": url,
        "sha256": hashlib.sha256(packed).hexdigest(),
        "bin": "kubectl-gantry",
        "files": [{"from": name, "to": "."} for name in ("kubectl-gantry", "LICENSE")],
    }
    return {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "gantry"},
        "spec": {
            "version": f"v{made['version']}",
            "homepage": home() or url.rpartition("/")[0],
            "shortDescription": "Watch and change RocketMQ-protocol clusters",
            "description": DESCRIPTION,
            "caveats": "It needs uv or pipx on the PATH, which install the command at its first run.\n",
            "platforms": [{"selector": {"matchLabels": {"os": s, "arch": a}}, **common} for s, a in PLATFORMS],
        },
    }


def build(url: str, folder: Path) -> list[Path]:
    """Write the archive and `gantry.yaml`, and return both. `url`: of the folder where the archive will be."""
    folder.mkdir(parents=True, exist_ok=True)
    packed = archive()
    made = folder / f"kubectl-gantry-{project()['version']}.tar.gz"
    made.write_bytes(packed)
    described = folder / "gantry.yaml"
    described.write_text(yaml.safe_dump(manifest(packed, f"{url.rstrip('/')}/{made.name}"), sort_keys=False))
    return [made, described]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--at", metavar="URL")
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / "dist")
    arguments = parser.parse_args()
    try:
        for path in build(arguments.at or release_files(project()["version"]), arguments.folder):
            print(path)
    except AddressError as error:
        sys.exit(f"error: {error}")
