"""Right and wrong keys, rights, replayed frames: Gantry's answers beside those of Apache RocketMQ 4.9.7 and 5.5.0."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from benchmarks.rig.processes import NamespaceUnavailable
from tests.interop.access_answers import BEGIN, END, PAGE, REASONS, RECORDED, SYSTEMS, differences, record, table

ANSWERS: dict[str, dict[str, str]] = json.loads(RECORDED.read_text())
PLAYED = list(SYSTEMS) if os.environ.get("INTEROP") == "full" else ["gantry"]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", PLAYED)
def test_answers_are_the_recorded_ones(java_side: Path, tmp_path: Path, name: str) -> None:
    """With INTEROP=full the same test checks the recording against Apache RocketMQ itself."""
    try:
        found = record(name, tmp_path / name)
    except NamespaceUnavailable as error:
        pytest.skip(f"Apache RocketMQ is not compared with here: {error}")
    assert found == ANSWERS[name]


def test_each_difference_has_a_reason_on_the_page() -> None:
    assert differences(ANSWERS).keys() == REASONS.keys()
    assert f"{BEGIN}{table(ANSWERS)}{END}" in PAGE.read_text()


def test_each_refusal_is_a_refusal_everywhere_and_each_right_request_succeeds() -> None:
    """Where Apache's servers refuse, Gantry does; where the key and the right are there, all of them serve."""
    served = {"0", "SEND_OK", "FOUND"}
    for case, answer in ANSWERS["gantry"].items():
        others = [ANSWERS[name][case] for name in ("4.9.7", "5.5.0")]
        if case.endswith("right key"):
            assert {answer, *others} <= served, case
        elif not served & set(others):
            assert answer not in served, case
