"""Open files: how often their size is looked at."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from gantry_broker.store import files
from gantry_broker.store.files import FdCache, ReservedFile, is_there

from tests.support.failing_calls import raising


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


def _fill(folder: Path) -> None:
    """Takes every free block."""
    with (folder / "filler").open("ab", buffering=0) as file:
        for size in (65_536, 4_096, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))


def test_a_reserved_file_is_replaced_on_a_full_disk(small_disk: Callable[[Path, int], Path], tmp_path: Path) -> None:
    disk = small_disk(tmp_path / "disk", 1 << 20)
    file = ReservedFile(disk / "role.json")
    file.write(b"first")
    _fill(disk)
    with pytest.raises(OSError, match="No space left"):
        files.atomic_write(disk / "other.json", b"x" * 100)
    for content in (b"second", b"third " * 1_000, b"4"):
        file.write(content)
        assert file.path.read_bytes().rstrip(b" ") == content.rstrip(b" ")
    ReservedFile(disk / "role.json").write(b"of the next process")
    assert file.path.read_bytes().rstrip(b" ") == b"of the next process"


class Died(BaseException):
    """The process dies. No handler of OSError catches it."""


@pytest.mark.parametrize("before", [True, False], ids=["before the call", "after the call"])
def test_a_reserved_file_is_whole_after_a_crash_at_any_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    path = tmp_path / "role.json"
    calls = ("open", "pwrite", "ftruncate", "fsync", "link", "replace", "unlink")
    left = [1 << 30]

    def dying(call: Callable[..., Any]) -> Callable[..., Any]:
        def instead(*args: Any, **more: Any) -> Any:
            left[0] -= 1
            if before and not left[0]:
                raise Died
            result = call(*args, **more)
            if not left[0]:
                raise Died
            return result

        return instead

    for name in calls:
        monkeypatch.setattr(os, name, dying(getattr(os, name)))
    for first_life in (2, 1):
        died = number = 0
        while number < 100:
            number += 1
            for leftover in tmp_path.iterdir():
                leftover.unlink()
            left[0] = 1 << 30
            file = ReservedFile(path)
            for life in range(first_life):
                file.write(b"old %d" % life)
            old = path.read_bytes()
            left[0] = number
            try:
                file.write(b"new")
            except Died:
                died += 1
            else:
                break
            finally:
                left[0] = 1 << 30
            assert path.read_bytes().rstrip() in (old.rstrip(), b"new"), f"died at call {number}"
            for content in (b"next", b"the one behind it"):
                ReservedFile(path).write(content)
                assert path.read_bytes().rstrip() == content
        assert died > 5


def test_a_reserved_file_where_there_are_no_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", raising(OSError(errno.EPERM, "no links here")))
    file = ReservedFile(tmp_path / "role.json")
    for content in (b"a", b"b", b"c"):
        file.write(content)
        assert file.path.read_bytes().rstrip() == content
    assert (tmp_path / "role.json.spare").stat().st_size == file.path.stat().st_size
