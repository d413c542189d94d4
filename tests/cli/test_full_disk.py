"""Commands on a disk without room: they name the file, the disk and what to do, and leave nothing behind."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gantry_operator.cli.errors import CliError
from gantry_operator.cli.target import run_async
from gantry_operator.platforms.local.folder import ClusterFolder
from gantry_operator.platforms.local.users import changed_users, write_key
from gantry_operator.registry.disk_errors import DiskError, in_words
from gantry_operator.registry.file import write_durably, write_whole

from tests.support.failing_calls import raising


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every fsync fails as on a disk without room."""
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", raising(OSError(errno.ENOSPC, "No space left on device")))
        yield


def test_a_write_without_room_names_file_disk_and_remedy(tmp_path: Path, full: None) -> None:
    path = tmp_path / "users.json"
    with pytest.raises(DiskError) as caught:
        write_durably(path, "{}")
    said = str(caught.value)
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(path))
    assert said.startswith(f"{path} cannot be written: the disk at /")
    assert "KiB free" in said
    assert said.endswith(" is full: free space there, then try again")
    assert list(tmp_path.iterdir()) == [], "what was begun is removed: it would take room, too"


def test_the_file_keeps_what_it_had(tmp_path: Path) -> None:
    path = tmp_path / "users.json"
    write_whole(path, "old")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(errno.EDQUOT, "Disk quota exceeded")))
        with pytest.raises(DiskError, match="has no room left in your quota"):
            write_whole(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "change", [lambda f: write_key(f, "s", {"secretKey": "k" * 20}), lambda f: changed_users(f).__enter__()]
)
def test_a_command_says_it_in_one_line(tmp_path: Path, change: Any) -> None:
    folder = ClusterFolder(tmp_path / "cluster")
    folder.make()

    async def command() -> None:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(os, "open", _refused)
            patched.setattr("builtins.open", _refused)
            change(folder)

    with pytest.raises(CliError) as caught:
        run_async(command())
    assert str(caught.value).startswith(str(folder.access))
    assert "is full: free space there" in str(caught.value)


def _refused(path: Any, *_: Any, **__: Any) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device", os.fspath(path))


@pytest.mark.parametrize(
    ("number", "remedy"), [(errno.EROFS, "mount it for writing"), (errno.EIO, "dmesg"), (errno.ENOSPC, "free space")]
)
def test_each_error_of_a_disk_has_its_remedy(tmp_path: Path, number: int, remedy: str) -> None:
    said = in_words(OSError(number, os.strerror(number), str(tmp_path / "a/file")))
    assert remedy in said
    # Reads fail so, too, on a disk that is broken; on a full one only writes do.
    assert ("cannot be read or written" in said) is (number == errno.EIO)
    assert str(tmp_path / "a/file") in said


def test_other_errors_stay_as_the_system_says_them() -> None:
    assert in_words(OSError(errno.ENOSPC, "No space left on device")) == "[Errno 28] No space left on device"
    assert in_words(PermissionError(errno.EACCES, "Permission denied", "/x")) == "[Errno 13] Permission denied: '/x'"
