"""Files that are replaced while other processes read them."""

from __future__ import annotations

from pathlib import Path

import pytest
from gantry_operator.registry.file import write_durably, write_whole


@pytest.mark.parametrize("write", [write_durably, write_whole])
def test_the_new_text_takes_the_place_of_the_old_and_nothing_else_stays(write, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "leadership.json"
    write(path, "a longer text")
    write(path, "short")
    assert path.read_text() == "short"
    assert [p.name for p in tmp_path.iterdir()] == ["leadership.json"]


@pytest.mark.parametrize("write", [write_durably, write_whole])
def test_a_reader_of_the_old_file_reads_on_in_it(write, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "leadership.json"
    write(path, "the old text")
    with path.open() as reader:
        write(path, "new")
        assert reader.read() == "the old text"
