"""`python -m distributions.chart [--images FILE] [FOLDER]`: package the chart for a registry, by default into dist/.

The package is helm/gantry, with the project's address (distributions/address.py) as its home and sources, and its
pages as the links of Artifact Hub. FILE is what `docker buildx bake --push --metadata-file FILE` wrote: then
`values-images.yaml` lies beside the package, which names the images that were pushed by their digests. Needs `helm`;
`helm push` brings the package to a registry.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any, Final

import yaml

from distributions.address import urls
from distributions.build import ROOT, project

CHART: Final = ROOT / "helm" / "gantry"
PARTS: Final = ("operator", "broker", "spark")
"""The images, by their names in the chart's values and in docker-bake.json."""
VALUES: Final = "values-images.yaml"
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")


class ChartError(Exception):
    """The chart cannot be packaged; the text says why."""


def image_values(pushed: dict[str, Any]) -> dict[str, Any]:
    """The values that name the pushed images by digest. `pushed`: the metadata of bake. Raises ChartError.

    The tag stays before the digest: the operator reads an image's version from it.
    """
    found = {}
    for part in PARTS:
        about = pushed.get(part)
        if not isinstance(about, dict):
            raise ChartError(f"the metadata of bake has no image {part}")
        name = str(about.get("image.name", "")).partition(",")[0]
        digest = str(about.get("containerimage.digest", ""))
        if not name or not _DIGEST.fullmatch(digest):
            raise ChartError(f"image {part} has no name or no digest: only pushed images have both (bake --push)")
        found[part] = f"{name}@{digest}"
    return {"image": found}


def described(text: str, pages: dict[str, str]) -> str:
    """Chart.yaml with the project's pages, by their labels."""
    if not pages:
        return text
    links = [{"name": name, "url": url} for name, url in pages.items() if name not in ("Homepage", "Source")]
    links.append({"name": "support", "url": pages["Issues"]})
    more = {"home": pages["Homepage"], "sources": [pages["Source"]]}
    note = yaml.safe_dump(links, sort_keys=False, width=200)
    # Annotations are the last part of the file.
    return text + f"  artifacthub.io/links: |\n{textwrap.indent(note, '    ')}" + yaml.safe_dump(more, sort_keys=False)


def stage(folder: Path) -> Path:
    """Write the chart as it is published below a folder, and return its own folder."""
    made = folder / CHART.name
    shutil.copytree(CHART, made)
    about = made / "Chart.yaml"
    about.write_text(described(about.read_text(), urls(project()["version"])))
    return made


def build(folder: Path, images: Path | None = None) -> list[Path]:
    """Package the chart, and return the files. Raises ChartError."""
    folder.mkdir(parents=True, exist_ok=True)
    values = None
    if images is not None:
        values = folder / VALUES
        values.write_text(yaml.safe_dump(image_values(json.loads(images.read_text())), sort_keys=False))
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["version"]
    with tempfile.TemporaryDirectory() as work:
        chart = stage(Path(work))
        for command in (["lint", "--strict", str(chart)], ["package", str(chart), "--destination", str(folder)]):
            if values is not None and command[0] == "lint":
                command += ["--values", str(values)]
            done = subprocess.run(["helm", *command], capture_output=True, text=True, check=False)
            if done.returncode:
                raise ChartError(f"helm {command[0]}: {(done.stdout + done.stderr).strip()}")
    return [folder / f"{CHART.name}-{version}.tgz", *([] if values is None else [values])]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path)
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / "dist")
    arguments = parser.parse_args()
    try:
        for path in build(arguments.folder, arguments.images):
            print(path)
    except (ChartError, OSError, ValueError) as error:
        sys.exit(f"error: {error}")
