"""The site of docs/: each page has a place, each link leads somewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from distributions import site


def test_the_site_is_built_strictly(tmp_path: Path) -> None:
    site.build(tmp_path / "site")
    start = (tmp_path / "site/start/index.html").read_text()
    assert 'href="../replication/"' in start
    assert "failover.svg" in start
    assert list((tmp_path / "site/adr").glob("*/index.html"))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small project."""
    (tmp_path / "docs/adr").mkdir(parents=True)
    (tmp_path / "docs/README.md").write_text(
        "# Docs\n\n## Begin\n\n| | |\n|---|---|\n| [one](one.md), [two](two.md) | x |\n"
    )
    (tmp_path / "docs/one.md").write_text("# One\n\n[two](two.md#two), [code](../a.py), [start](../README.md)\n")
    (tmp_path / "docs/two.md").write_text("# Two\n\n```\n[code](../a.py)\n```\n")
    (tmp_path / "a.py").write_text("")
    for name in site.OUTSIDE:
        (tmp_path / name).write_text("# Page\n\n[one](docs/one.md)\n")
    monkeypatch.setattr(site, "ROOT", tmp_path)
    return tmp_path


def test_links_lead_to_pages_or_to_the_source(project: Path) -> None:
    version = site.project()["version"]
    assert site.markdown_of("docs/one.md", None) == "# One\n\n[two](two.md#two), code, [start](start.md)\n"
    source = f"https://example.org/x/blob/v{version}/a.py"
    assert f"[code]({source})" in site.markdown_of("docs/one.md", "https://example.org/x")
    assert "[code](../a.py)" in site.markdown_of("docs/two.md", None), "code blocks stay as they are"
    assert site.markdown_of("README.md", None) == "# Page\n\n[one](one.md)\n"
    assert site.navigation()[0] == ("Begin", [("One", "one.md"), ("Two", "two.md")])


def test_a_page_without_a_place_is_refused(project: Path) -> None:
    (project / "docs/three.md").write_text("# Three\n")
    with pytest.raises(site.SiteError, match=r"no link to three\.md"):
        site.navigation()


@pytest.mark.parametrize("link", ["nowhere.md", "two.md#nowhere", "../nowhere.py"])
def test_a_link_that_leads_nowhere_ends_the_build(project: Path, link: str, tmp_path: Path) -> None:
    (project / "docs/two.md").write_text(f"# Two\n\n[lost]({link})\n")
    with pytest.raises(site.SiteError, match="does not exist"):
        site.build(tmp_path / "built")
    assert not (tmp_path / "built").exists()
