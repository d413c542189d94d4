"""The chart as it is published: its pages, its icon, and the images of a release by digest."""

from __future__ import annotations

from base64 import b64decode
from typing import Any

import pytest
import yaml

from distributions import chart
from distributions.build import ROOT, project
from distributions.olm import ICON

DIGEST = "sha256:" + "0f" * 32


def pushed(part: str) -> dict[str, Any]:
    """What bake says of an image that it pushed."""
    name = f"registry.example.com/team/gantry-{part}:0.1.0"
    return {"image.name": name, "containerimage.digest": DIGEST, "buildx.build.ref": "b/b0/x"}


def test_the_values_name_each_image_with_tag_and_digest() -> None:
    found = chart.image_values({part: pushed(part) for part in chart.PARTS} | {"buildx.build.warnings": []})
    known = yaml.safe_load((chart.CHART / "values.yaml").read_text())["image"]
    assert set(found["image"]) == set(chart.PARTS) <= set(known)
    for part, name in found["image"].items():
        assert name == f"registry.example.com/team/{known[part]}@{DIGEST}"


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ({}, "no image spark"),
        ({"spark": pushed("spark") | {"containerimage.digest": "sha256:0"}}, "no digest"),
        ({"spark": {"containerimage.digest": DIGEST}}, "no name"),
        ({"spark": "x"}, "no image spark"),
    ],
)
def test_an_image_that_was_not_pushed_is_refused(broken: dict[str, Any], said: str) -> None:
    whole = {"operator": pushed("operator"), "broker": pushed("broker")}
    with pytest.raises(chart.ChartError, match=said):
        chart.image_values(whole | broken)


def test_the_icon_is_that_of_the_console() -> None:
    kind, _, content = yaml.safe_load((chart.CHART / "Chart.yaml").read_text())["icon"].partition(",")
    assert kind == "data:image/svg+xml;base64"
    assert b64decode(content, validate=True).strip() == ICON.read_bytes().strip()


def test_a_chart_without_an_address_is_as_it_is_written() -> None:
    plain = (chart.CHART / "Chart.yaml").read_text()
    assert chart.described(plain, {}) == plain


def test_the_annotations_list_every_definition_and_the_license() -> None:
    notes = yaml.safe_load((chart.CHART / "Chart.yaml").read_text())["annotations"]
    listed = {one["name"]: one for one in yaml.safe_load(notes["artifacthub.io/crds"])}
    own = [yaml.safe_load(path.read_text()) for path in (ROOT / "crds").glob("*.yaml")]
    assert set(listed) == {definition["metadata"]["name"] for definition in own}
    for definition in own:
        one = listed[definition["metadata"]["name"]]
        assert one["kind"] == definition["spec"]["names"]["kind"]
        assert one["version"] in {v["name"] for v in definition["spec"]["versions"] if v["served"]}
    assert notes["artifacthub.io/license"] == project()["license"]
