"""Every alert fires when it should and only then, and has a section in docs/runbooks.md."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.dashboards.alert_cases import CASES, MORE, Series
from tests.dashboards.programs import program

ROOT: Final = Path(__file__).parents[2]
FILE: Final = ROOT / "helm" / "gantry" / "files" / "alerts.yaml"
RULES: Final = [rule for group in yaml.safe_load(FILE.read_text())["groups"] for rule in group["rules"]]
NAMES: Final = [rule["alert"] for rule in RULES]
FUNCTIONS: Final = {"humanize", "humanize1024", "humanizeDuration", "humanizePercentage"}


def promtool(*words: str | Path) -> None:
    done = subprocess.run([program("promtool"), *map(str, words)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def fired(name: str, severity: str, labels: dict[str, str], at: int) -> dict[str, Any]:
    """The series of an alert that fires."""
    shown = {"alertname": name, "alertstate": "firing", "severity": severity} | labels
    inner = ",".join(f'{key}="{value}"' for key, value in sorted(shown.items()))
    return {"eval_time": f"{at}m", "exp_samples": [{"labels": f"ALERTS{{{inner}}}", "value": 1}]}


def case(name: str, series: Series, expected: dict[str, Any]) -> dict[str, Any]:
    """One test of promtool: these series, and what `ALERTS` has then."""
    return {
        "interval": "1m",
        "input_series": [{"series": key, "values": values} for key, values in series.items()],
        "promql_expr_test": [{"expr": f'ALERTS{{alertname="{name}",alertstate="firing"}}'} | expected],
    }


def test_every_alert_has_cases_that_fire_and_that_do_not() -> None:
    assert len(NAMES) == len(set(NAMES))
    assert list(CASES) == [name for name in CASES if name in NAMES]
    assert set(CASES) == set(NAMES)
    assert all(made.fires and made.quiet for made in CASES.values())


@pytest.mark.parametrize("name", NAMES)
def test_an_alert_fires_when_it_should_and_only_then(name: str, tmp_path: Path) -> None:
    made = CASES[name]
    tests = [case(name, made.fires, fired(name, made.severity, made.labels, made.at))]
    tests += [case(name, series, {"eval_time": f"{made.at}m", "exp_samples": []}) for series in made.quiet]
    tests += [
        case(name, series, fired(name, made.severity, labels, made.at))
        for other, labels, series in MORE
        if other == name
    ]
    rules, file = tmp_path / "rules.yaml", tmp_path / "test.yaml"
    # Alone: promtool would evaluate all the others at each step, too.
    rules.write_text(yaml.safe_dump({"groups": [{"name": "g", "rules": [r for r in RULES if r["alert"] == name]}]}))
    file.write_text(yaml.safe_dump({"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": tests}))
    promtool("test", "rules", file)


def test_the_file_is_one_that_prometheus_loads() -> None:
    promtool("check", "rules", FILE)


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_an_alert_says_what_it_is_about(rule: dict[str, Any]) -> None:
    """Its texts use labels that it has, and known functions; anything else would be empty in the message."""
    assert rule["labels"].keys() == {"severity"}
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}
    known = {label.strip() for by in re.findall(r"by \(([^)]*)\)", rule["expr"]) for label in by.split(",")}
    for text in rule["annotations"].values():
        for inner in re.findall(r"\{\{(.*?)\}\}", text):
            subject, *pipes = (part.strip() for part in inner.split("|"))
            assert subject == "$value" or subject.removeprefix("$labels.") in known, inner
            assert set(pipes) <= FUNCTIONS, inner


def anchor(heading: str) -> str:
    """The anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def sections() -> dict[str, str]:
    """The text of each section of docs/runbooks.md by its heading."""
    parts = re.split(r"^## (.+)\n", (ROOT / "docs" / "runbooks.md").read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_every_alert_has_its_section_and_every_section_its_alert() -> None:
    assert list(sections()) == NAMES, "in the order of the file"
    for rule in RULES:
        assert rule["annotations"]["runbook_url"] == f"docs/runbooks.md#{anchor(rule['alert'])}"


@pytest.mark.parametrize("name", NAMES)
def test_a_section_says_what_to_look_at_and_what_to_do(name: str) -> None:
    text = sections()[name]
    places = [text.find(f"**{word}") for word in ("Meaning.**", "Look at", "Do")]
    assert -1 not in places, f"{name} lacks Meaning, Look at or Do"
    assert places == sorted(places)


def test_links_of_the_runbooks_lead_somewhere() -> None:
    page = ROOT / "docs" / "runbooks.md"
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        file, _, name = target.partition("#")
        path = page if not file else page.parent / file
        assert path.exists(), target
        if name:
            headings = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
            assert name in map(anchor, headings), target
