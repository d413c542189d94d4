"""One setting of a release, the project's address: everything published carries it, and nothing is released without."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import yaml

from distributions import address, chart, olm, release, site
from distributions.build import ROOT, project
from tests.distributions.test_chart import pushed
from tests.distributions.test_olm import chart as rendered
from tests.support.present import present

HOME = "https://example.org/gantry"
VERSION = project()["version"]


@pytest.fixture
def public(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(address.VARIABLE, f"{HOME}/")


@pytest.fixture
def private(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(address.VARIABLE, raising=False)


@pytest.mark.usefixtures("public")
def test_packages_have_the_pages_and_no_relative_link(tmp_path: Path) -> None:
    files = release.make("packages", tmp_path, tag=f"v{VERSION}")
    assert len(files) == 4
    for path in files:
        made = release.metadata(path)
        found = dict(one.split(", ") for one in made.get_all("Project-URL"))
        assert set(found) == {"Homepage", "Source", "Documentation", "Changelog", "Issues"}
        assert all(url.startswith(HOME) for url in found.values())
        assert address.relative_links(made.get_payload()) == []
    whole = next(path for path in files if path.name.startswith("gantry_mq-") and path.suffix == ".whl")
    text = release.metadata(whole).get_payload()
    assert f"({HOME}/raw/v{VERSION}/docs/console/failover.svg)" in text
    assert f"({HOME}/blob/v{VERSION}/docs/migration.md)" in text
    assert f"({HOME}/tree/v{VERSION}/examples/)" in text
    assert f"({HOME}/blob/v{VERSION}/README.md#on-kubernetes)" in text
    targets = {
        part.partition("#")[0].split("/", 2)[2] for part in text.replace(")", "(").split("(") if part.startswith(HOME)
        for part in [part.removeprefix(HOME)] if part.count("/") > 2
    }  # fmt: skip
    assert len(targets) > 20
    assert {target for target in targets if not (ROOT / target.partition("/")[2]).exists()} == set()


@pytest.mark.usefixtures("private")
def test_a_build_without_an_address_has_no_pages_and_is_no_release(tmp_path: Path) -> None:
    assert address.urls(VERSION) == {}
    text = (ROOT / "README.md").read_text()
    assert address.absolute_links(text, VERSION) == text
    assert "docs/migration.md" in address.relative_links(text)
    for part in ("packages", "rest"):
        with pytest.raises(release.ReleaseError, match="PROJECT_URL is not set"):
            release.make(part, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("public")
def test_a_tag_or_a_changelog_of_another_version_is_no_release() -> None:
    assert release.missing(f"v{VERSION}", (ROOT / "CHANGELOG.md").read_text()) == []
    assert release.missing("v9.9.9", "# Changelog\n") == [
        f"the tag is v9.9.9, and the version in pyproject.toml is {VERSION}",
        f"CHANGELOG.md has no section [{VERSION}]",
    ]


@pytest.mark.parametrize("wrong", ["example.org/gantry", "http://example.org/x", "https://", "https://e.org/a b"])
def test_what_is_no_address_is_refused(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(address.VARIABLE, wrong)
    with pytest.raises(address.AddressError, match="is no address"):
        address.home()


def test_links_in_code_stay_and_pictures_are_named_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(address.VARIABLE, HOME)
    text = '![p](a.png) [x](b.md#c) <img src="d.svg"> [o](https://other.example)\n```\n[code](b.md)\n```\n'
    found = address.absolute_links(text, "1.0.0")
    assert found == (
        f'![p]({HOME}/raw/v1.0.0/a.png) [x]({HOME}/blob/v1.0.0/b.md#c) <img src="{HOME}/raw/v1.0.0/d.svg"> '
        "[o](https://other.example)\n```\n[code](b.md)\n```\n"
    )
    assert address.relative_links(text) == ["a.png", "b.md#c", "d.svg"]
    assert address.relative_links(found) == []


def programs(folder: Path) -> Path:
    """`helm` where there is none: `package` packs the folder that it is shown, `template` prints a chart in short."""
    folder.mkdir()
    (folder / "rendered.yaml").write_text(yaml.safe_dump_all(rendered()))
    program = folder / "helm"
    program.write_text(
        f'#!/bin/sh\ncase "$1" in\npackage) tar -czf "$4/gantry-{VERSION}.tgz" -C "$(dirname "$2")" gantry ;;\n'
        f'template) cat {folder}/rendered.yaml ;;\nesac\n'
    )  # fmt: skip
    program.chmod(0o755)
    return folder


@pytest.mark.usefixtures("public")
def test_chart_plug_in_and_bundle_have_the_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("helm") is None:
        monkeypatch.setenv("PATH", f"{programs(tmp_path / 'bin')}:{os.environ['PATH']}")
    images = tmp_path / "images.json"
    images.write_text(json.dumps({part: pushed(part) for part in chart.PARTS}))
    with pytest.raises(release.ReleaseError, match="--images FILE is missing"):
        release.make("rest", tmp_path / "dist")
    files = {path.name: path for path in release.make("rest", tmp_path / "dist", images=images)}
    with tarfile.open(files[f"gantry-{VERSION}.tgz"]) as tar:
        about = yaml.safe_load(present(tar.extractfile("gantry/Chart.yaml")).read())
    assert (about["home"], about["sources"]) == (HOME, [HOME])
    links = {link["name"]: link["url"] for link in yaml.safe_load(about["annotations"]["artifacthub.io/links"])}
    assert links["support"] == f"{HOME}/issues"
    assert links["Documentation"] == f"{HOME}/blob/v{VERSION}/docs/README.md"
    plugin = yaml.safe_load(files["gantry.yaml"].read_text())["spec"]
    assert plugin["homepage"] == HOME
    assert plugin["platforms"][0]["uri"] == f"{HOME}/releases/download/v{VERSION}/kubectl-gantry-{VERSION}.tar.gz"
    (service,) = olm.load_all(files["gantry.clusterserviceversion.yaml"].read_text())
    assert {link["url"] for link in service["spec"]["links"]} == set(address.urls(VERSION).values())
    assert service["spec"]["provider"]["url"] == HOME
    assert service["metadata"]["annotations"]["repository"] == HOME


@pytest.mark.usefixtures("private")
def test_what_lacks_the_address_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Built without it, and looked into with it."""
    bare = release.build(tmp_path)
    (tmp_path / "gantry").mkdir()
    shutil.copyfile(chart.CHART / "Chart.yaml", tmp_path / "gantry/Chart.yaml")
    with tarfile.open(tmp_path / "gantry-0.tgz", "w:gz") as tar:
        tar.add(tmp_path / "gantry", "gantry")
    built = olm.build(yaml.safe_dump_all(rendered()), tmp_path / "bundle")
    monkeypatch.setenv(address.VARIABLE, HOME)
    said = [lack for path in bare for lack in release.lacks_of_package(path)]
    assert f"{bare[0].name} has no Project-URL Homepage, {HOME}" in said
    assert any("the relative link docs/migration.md" in lack for lack in said)
    assert release.lacks_of_rest([tmp_path / "gantry-0.tgz", *built]) == [
        "gantry-0.tgz has no home or no sources",
        "gantry-0.tgz has no artifacthub.io/links",
        "gantry.clusterserviceversion.yaml has no links",
    ]


def test_the_site_links_the_source_of_its_version() -> None:
    assert f"]({HOME}/tree/v{VERSION}/examples/)" in site.markdown_of("README.md", HOME)


def test_images_have_labels_from_the_same_setting() -> None:
    """`docker buildx bake --print` shows them with and without the address; null: the label is left out."""
    bake = json.loads((ROOT / "docker-bake.json").read_text())
    assert bake["variable"][address.VARIABLE] == {"default": ""}
    labels = bake["target"]["labels"]["labels"]
    assert {name.rpartition(".")[2] for name in labels} == {"url", "source", "documentation"}
    assert all(f"{address.VARIABLE} == " in value for value in labels.values())
    targets = [name for group in bake["group"].values() for name in group["targets"]]
    assert all(bake["target"][name]["inherits"] == ["labels"] for name in targets)


def test_the_workflow_gives_the_address_to_every_step() -> None:
    made = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())
    assert made["env"][address.VARIABLE] == "${{ github.server_url }}/${{ github.repository }}"


def test_the_command_says_what_is_missing() -> None:
    environment = {name: value for name, value in os.environ.items() if name != address.VARIABLE}
    done = subprocess.run(
        [sys.executable, "-m", "distributions.release", "packages"],
        capture_output=True, text=True, check=False, cwd=ROOT, env=environment,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith("error: PROJECT_URL is not set: it names the public repository")
