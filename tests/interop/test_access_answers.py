"""Right and wrong keys, rights, replayed frames: Gantry's answers beside those of Apache RocketMQ 4.9.7 and 5.5.0."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.rig.processes import NamespaceUnavailable
from benchmarks.rig.target import Target
from tests.interop.access_answers import (
    BEGIN,
    END,
    GO,
    PAGE,
    REASONS,
    RECORDED,
    SYSTEMS,
    differences,
    play_go,
    play_java,
    system,
    table,
)

ANSWERS: dict[str, dict[str, str]] = json.loads(RECORDED.read_text())
PLAYED = list(SYSTEMS) if os.environ.get("INTEROP") == "full" else ["gantry"]


@pytest.fixture(scope="module", params=PLAYED)
def guarded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Target]]:
    """With INTEROP=full the same tests check the recording against Apache RocketMQ itself."""
    name: str = request.param
    if name != "gantry":
        request.getfixturevalue("java_side")
    with ExitStack() as stack:
        try:
            target = stack.enter_context(system(name, tmp_path_factory.mktemp("guarded") / name))
        except NamespaceUnavailable as error:
            pytest.skip(f"Apache RocketMQ is not compared with here: {error}")
        yield name, target


def recorded(name: str, of_go: bool) -> dict[str, str]:
    return {case: answer for case, answer in ANSWERS[name].items() if case.startswith(GO) == of_go}


@pytest.mark.timeout(300)
def test_frames_and_java_clients_get_the_recorded_answers(
    java_side: Path, guarded: tuple[str, Target], tmp_path: Path
) -> None:
    name, target = guarded
    assert play_java(target, tmp_path) == recorded(name, of_go=False)


@pytest.mark.timeout(300)
def test_the_go_client_shows_the_recorded_answers(go_side: Path, guarded: tuple[str, Target], tmp_path: Path) -> None:
    name, target = guarded
    assert play_go(target, tmp_path) == recorded(name, of_go=True)


def test_each_difference_has_a_reason_on_the_page() -> None:
    assert differences(ANSWERS).keys() == REASONS.keys()
    assert f"{BEGIN}{table(ANSWERS)}{END}" in PAGE.read_text()


def test_each_refusal_is_a_refusal_everywhere_and_each_right_request_succeeds() -> None:
    """Where Apache's servers refuse, Gantry does; where the key and the right are there, all of them serve."""
    served = {"0", "SEND_OK", "FOUND"}
    for case, answer in ANSWERS["gantry"].items():
        others = [ANSWERS[name][case] for name in ("4.9.7", "5.5.0")]
        if case.endswith("right key") and case != f"{GO}, pull: right key":
            assert {answer, *others} <= served, case
        elif not served & set(others):
            assert answer not in served, case
