"""The checked-in dashboards are those of the description, and the description keeps the rules of a calm dashboard."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from helm.dashboards.__main__ import FOLDER, main, texts
from helm.dashboards.boards import BOARDS
from helm.dashboards.grafana import dashboard
from helm.dashboards.model import WIDTH, Board, Panel, placed, selected
from helm.dashboards.pictures import Line, Shown, formatted, page, top_of

ROOT: Final = Path(__file__).parents[2]
ALL: Final = [pytest.param(board, id=name) for name, board in BOARDS.items()]


def test_the_checked_in_files_are_current(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 0, capsys.readouterr().err


def test_a_file_that_differs_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(BOARDS, "topics", BOARDS["analytics"])
    assert main(["--check"]) == 1
    assert capsys.readouterr().err == "topics.json is not current: python -m helm.dashboards\n"


def test_dashboards_have_names_of_their_own_and_fit_into_config_maps() -> None:
    assert len({board.uid for board in BOARDS.values()}) == len({b.title for b in BOARDS.values()}) == len(BOARDS) == 6
    assert all(len(text) < 900_000 for text in texts().values())
    assert {path.stem for path in FOLDER.glob("*.json")} == set(BOARDS)


@pytest.mark.parametrize("board", ALL)
def test_panels_have_titles_texts_and_their_own_place(board: Board) -> None:
    panels = list(board.panels())
    titles = [panel.title for panel in panels]
    assert len(titles) == len(set(titles)), "pictures and people know panels by their titles"
    assert all(panel.text.endswith(".") for panel in panels), [p.title for p in panels if not p.text.endswith(".")]
    taken: set[tuple[int, int]] = set()
    for at in placed(board):
        cells = {(x, y) for x in range(at.x, at.x + at.w) for y in range(at.y, at.y + at.h)}
        assert not cells & taken, at.what
        assert at.x + at.w <= WIDTH
        taken |= cells


@pytest.mark.parametrize("board", ALL)
def test_the_first_row_is_health(board: Board) -> None:
    """One line of figures. Only a colour that says good or bad is one; the rest of the page has no such colours."""
    first, *others = board.rows
    assert first.title == ""
    assert {panel.kind for panel in first.panels} == {"stat"}
    assert sum(panel.width for panel in first.panels) == WIDTH
    assert len([p for p in first.panels if len(p.steps) > 1]) >= 2
    assert all(row.title for row in others)
    assert {panel.kind for row in others for panel in row.panels} <= {"graph", "table", "bars"}


@pytest.mark.parametrize("board", ALL)
def test_queries_use_choices_and_labels_that_exist(board: Board) -> None:
    choices = {variable.name for variable in board.variables} | {"__rate_interval"}
    for panel in board.panels():
        for query in panel.queries:
            expr = selected(query.expr)
            assert "@" not in expr, expr
            assert set(re.findall(r"\$(\w+)", expr)) <= choices, f"{panel.title}: {expr}"
            shown = set(re.findall(r"\{\{(\w+)\}\}", query.name))
            grouped = [set(re.split(r",\s*", by)) for by in re.findall(r"by \(([^)]*)\)", expr)]
            assert not grouped or any(shown <= by for by in grouped), f"{panel.title}: {query.name}"


def panels_of(board: Board) -> list[dict[str, Any]]:
    return [panel for panel in dashboard(board)["panels"] if panel["type"] != "row"]


@pytest.mark.parametrize("board", ALL)
def test_grafana_gets_the_source_and_all_choices_as_variables(board: Board) -> None:
    made = dashboard(board)
    assert [v["name"] for v in made["templating"]["list"]] == ["datasource", *(v.name for v in board.variables)]
    for panel in panels_of(board):
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    assert len({panel["id"] for panel in made["panels"]}) == len(made["panels"])


def test_a_stat_shows_words_and_colours_by_value() -> None:
    made = next(p for p in panels_of(BOARDS["cluster-overview"]) if p["title"] == "Without a master")
    config = made["fieldConfig"]["defaults"]
    assert config["mappings"] == [{"type": "value", "options": {"0": {"text": "none"}}}]
    assert [step["value"] for step in config["thresholds"]["steps"]] == [None, 1]
    full = next(p for p in panels_of(BOARDS["cluster-overview"]) if p["title"] == "Disk full in")
    assert full["fieldConfig"]["defaults"]["mappings"] == [
        {"type": "value", "options": {"Infinity": {"text": "not in sight"}}}
    ]


def test_a_table_has_its_labels_first_and_its_queries_as_columns() -> None:
    made = next(p for p in panels_of(BOARDS["cluster-overview"]) if p["title"] == "Members")
    merge, organize = made["transformations"]
    assert merge["id"] == "merge"
    names = organize["options"]["renameByName"]
    assert list(names.values())[:5] == ["Namespace", "Cluster", "Group", "Member", "Role"]
    assert names["Value #A"] == "Role"


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0, "bytes", "0 B"), (1536, "bytes", "1.5 KiB"), (64 * 2**30, "bytes", "64 GiB"), (2048, "bytes/s", "2 KiB/s"),
        (0.00025, "seconds", "250 µs"), (0.042, "seconds", "42 ms"), (93, "seconds", "93 s"),
        (300, "seconds", "5 min"), (90_000, "seconds", "25 h"), (12.5, "messages/s", "12.5 msg/s"),
        (1_250_000, "messages", "1.2 Mil"), (0.646, "percent", "64.6 %"), (float("inf"), "seconds", "∞"),
        (86_400_000 * 3, "time", "in 3 days"),
    ],
)  # fmt: skip
def test_values_in_pictures_have_units(value: float, unit: str, text: str) -> None:
    assert formatted(value, unit) == text  # type: ignore[arg-type]


@pytest.mark.parametrize(("most", "end"), [(0, 1), (0.7, 0.8), (1, 1), (1.1, 1.2), (37, 40), (290, 300), (9.5, 10)])
def test_an_axis_ends_at_a_round_number(most: float, end: float) -> None:
    assert top_of(most) == pytest.approx(end)


def test_a_picture_has_every_panel_with_and_without_data() -> None:
    board = BOARDS["cluster-overview"]
    labels = {"namespace": "shop", "cluster": "<demo>", "group": "a", "member": "0"}
    data = {
        (panel.title, number): [Line(labels, [(100.0 + n, n % 3) for n in range(60)])]
        for panel in board.panels()
        for number in range(len(panel.queries))
    }
    for some in ({}, data):
        html, height = page(Shown(board, some, 100, 160))
        assert all(f"<h3>{panel.title}</h3>" in html for panel in board.panels())
        assert height > 1000
    assert "&lt;demo&gt;" in html
    assert "<demo>" not in html


def test_the_documents_show_every_dashboard() -> None:
    text = (ROOT / "docs" / "metrics.md").read_text()
    for name in BOARDS:
        picture = ROOT / "docs" / "dashboards" / f"{name}.png"
        assert picture.read_bytes()[:4] == b"\x89PNG"
        assert f"](dashboards/{name}.png)" in text, name


def test_the_chart_ships_them_under_the_usual_label() -> None:
    """e2e/test_l_chart.py renders the templates with helm."""
    values = yaml.safe_load((ROOT / "helm/gantry/values.yaml").read_text())
    assert (values["dashboards"]["label"], values["dashboards"]["labelValue"]) == ("grafana_dashboard", "1")
    template = (ROOT / "helm/gantry/templates/dashboards.yaml").read_text()
    assert 'Files.Glob "dashboards/*.json"' in template
    assert 'Files.Get "files/alerts.yaml"' in (ROOT / "helm/gantry/templates/alerts.yaml").read_text()


def test_no_panel_is_only_a_title() -> None:
    panels: list[Panel] = [panel for board in BOARDS.values() for panel in board.panels()]
    assert len(panels) > 90
    assert all(panel.queries for panel in panels)
