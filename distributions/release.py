"""`python -m distributions.release packages|rest [--tag TAG] [--images FILE] [FOLDER]`: build what a release publishes.

`packages` builds the wheels and source archives. `rest` builds the chart, the plug-in for kubectl and the bundle for
OLM, after the images were pushed; FILE is what `docker buildx bake --push --metadata-file FILE` wrote. Then it looks
into each file for the project's address, `PROJECT_URL` (distributions/address.py). It refuses without that address, for
a tag of another version, and for a version that the changelog does not have.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tarfile
import zipfile
from email.parser import HeaderParser
from pathlib import Path
from typing import Any, Final

import yaml

from distributions import chart, krew, olm
from distributions.address import AddressError, relative_links, release_files, required, urls
from distributions.build import ROOT, build, project

TEMPLATE: Final = ("helm", "template", "gantry", str(ROOT / "helm/gantry"), "-n", "gantry-system")


class ReleaseError(Exception):
    """A release cannot be made; the text says what is missing."""


def missing(tag: str | None, changelog: str) -> list[str]:
    """What a release lacks before anything is built."""
    version = project()["version"]
    found = []
    try:
        required()
    except AddressError as error:
        found.append(str(error))
    if tag is not None and tag != f"v{version}":
        found.append(f"the tag is {tag}, and the version in pyproject.toml is {version}")
    if f"\n## [{version}]" not in changelog:
        found.append(f"CHANGELOG.md has no section [{version}]")
    return found


def metadata(path: Path) -> Any:
    """The metadata of a wheel or source archive."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as packed:
            text = packed.read(next(n for n in packed.namelist() if n.endswith(".dist-info/METADATA")))
    else:
        with tarfile.open(path) as tar:
            member = next(m for m in tar.getmembers() if m.name.count("/") == 1 and m.name.endswith("/PKG-INFO"))
            file = tar.extractfile(member)
            text = file.read() if file is not None else b""
    return HeaderParser().parsestr(text.decode())


def lacks_of_package(path: Path) -> list[str]:
    """Links that a wheel or source archive lacks, and links of its description that lead nowhere."""
    made = metadata(path)
    wanted = {f"{name}, {url}" for name, url in urls(project()["version"]).items()}
    lost = sorted(wanted - set(made.get_all("Project-URL") or []))
    relative = relative_links(made.get_payload())
    return [f"{path.name} has no Project-URL {one}" for one in lost] + [
        f"{path.name} has a description with the relative link {one}" for one in relative
    ]


def lacks_of_rest(files: list[Path]) -> list[str]:
    """Links that the chart, the manifest for Krew and the bundle for OLM lack."""
    base, version = required(), project()["version"]
    found = []
    for path in files:
        if path.suffix == ".tgz":
            with tarfile.open(path) as tar:
                file = tar.extractfile("gantry/Chart.yaml")
                about = yaml.safe_load(file.read()) if file is not None else {}
            if about.get("home") != base or about.get("sources") != [base]:
                found.append(f"{path.name} has no home or no sources")
            if base not in about["annotations"].get("artifacthub.io/links", ""):
                found.append(f"{path.name} has no artifacthub.io/links")
        elif path.name == "gantry.yaml":
            spec = yaml.safe_load(path.read_text())["spec"]
            if spec["homepage"] != base or not all(
                platform["uri"].startswith(release_files(version)) for platform in spec["platforms"]
            ):
                found.append(f"{path.name} names another address")
        elif path.name.endswith(".clusterserviceversion.yaml"):
            (service,) = olm.load_all(path.read_text())
            if {link["url"] for link in service["spec"]["links"]} != set(urls(version).values()):
                found.append(f"{path.name} has no links")
    return found


def make(part: str, folder: Path, tag: str | None = None, images: Path | None = None) -> list[Path]:
    """Build, and return the files. Raises ReleaseError and what the builders raise."""
    if lost := missing(tag, (ROOT / "CHANGELOG.md").read_text()):
        raise ReleaseError("; ".join(lost))
    if part == "packages":
        files = build(folder)
        lost = [lack for path in files for lack in lacks_of_package(path)]
    else:
        if images is None:
            raise ReleaseError("--images FILE is missing: what `docker buildx bake --push --metadata-file FILE` wrote")
        files = chart.build(folder, images) + krew.build(release_files(project()["version"]), folder)
        rendered = subprocess.run(
            [*TEMPLATE, "--values", str(folder / chart.VALUES)], capture_output=True, text=True, check=False
        )
        if rendered.returncode:
            raise ReleaseError(f"helm template: {rendered.stderr.strip()}")
        files += olm.build(rendered.stdout, folder / "bundle")
        lost = lacks_of_rest(files)
    if lost:
        raise ReleaseError("; ".join(lost))
    return files


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("packages", "rest"))
    parser.add_argument("--tag")
    parser.add_argument("--images", type=Path)
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / "dist")
    arguments = parser.parse_intermixed_args()
    try:
        for path in make(arguments.part, arguments.folder, arguments.tag, arguments.images):
            print(path)
    except (ReleaseError, AddressError, chart.ChartError, olm.BundleError, OSError, ValueError) as error:
        sys.exit(f"error: {error}")
