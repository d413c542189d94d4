"""Open files: how often their size is looked at."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from gantry_broker.store import files
from gantry_broker.store.files import FdCache, is_there


@pytest.fixture
def fds() -> Iterator[FdCache]:
    made = FdCache(2)
    yield made
    made.close_all()


def test_a_file_of_known_size_is_not_looked_at_again(
    fds: FdCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "segment")
    fd = fds.get(path, create_size=100)
    looks: list[int] = []
    real = os.fstat
    monkeypatch.setattr(files.os, "fstat", lambda fd: looks.append(fd) or real(fd))
    assert fds.get(path, create_size=100) == fds.get(path, create_size=60) == fds.get(path) == fd
    assert looks == []
    fds.get(path, create_size=200)
    assert (os.path.getsize(path), looks) == (200, [fd])


@pytest.mark.parametrize("forgotten_by", ["may_shrink", "close", "the limit", "close_all"])
def test_a_file_that_became_shorter_is_extended(fds: FdCache, tmp_path: Path, forgotten_by: str) -> None:
    path = str(tmp_path / "segment")
    fds.get(path, create_size=100)
    os.truncate(path, 10)
    if forgotten_by == "the limit":
        for name in ("one", "two"):
            fds.get(str(tmp_path / name), create_size=1)
    elif forgotten_by == "close_all":
        fds.close_all()
    else:
        getattr(fds, forgotten_by)(path)
    fds.get(path)
    fds.get(path, create_size=100)
    assert os.path.getsize(path) == 100


def test_what_cannot_be_looked_at_is_not_taken_for_absent(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert is_there(tmp_path / "file")
    assert not is_there(tmp_path / "absent")
    assert not is_there(tmp_path / "file" / "below")
    with pytest.raises(OSError, match="symbolic links"):
        is_there(tmp_path / "loop")
