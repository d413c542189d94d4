"""What all tests share: how generated cases are chosen, and disks that are soon full or fail."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from gantry_broker.starting import importing
from gantry_broker.store.log import commit_log
from hypothesis import settings

from tests.support.planted_syncs import let_a_thread_flush

# The same cases in every run, so that a red run is a change's doing. HYPOTHESIS_PROFILE=explore looks for new ones.
# No case has a time limit: on a busy machine it would be the machine's doing.
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("explore", print_blob=True, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


LONG = (
    "tests/spark/test_report.py",
    "tests/spark/",
    "tests/console/test_browser.py",
    "tests/interop/test_consume.py",
    "tests/migration/test_cutover.py",
    "tests/archive/test_old_messages.py",
    "tests/archive/test_faults.py",
    "tests/simulation/test_simulation.py",
    "tests/local/test_topics.py",
    "tests/local/test_examples.py",
    "tests/local/test_groups.py",
    "tests/local/test_two_sites.py",
    "tests/local/test_restore.py",
    "tests/broker/test_loop_holds.py",
    "tests/delivery/",
    "tests/chaos/",
    "tests/interop/",
    "tests/dashboards/test_live.py",
    "tests/store/test_histories.py",
    "tests/drain/",
    "tests/cluster/test_switchover_by_service.py",
    "tests/migration/",
)
"""Files of a minute and more (`python .ci/slowest.py`). They begin first: a run must not end with one alone."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Looks of the collector of reference cycles are two fifths of a collection, and find little."""
    with importing():
        return (yield)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        return next((n for n, begin in enumerate(LONG) if item.nodeid.startswith(begin)), len(LONG))

    items.sort(key=place)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """End the run when a worker crashes: xdist would give its file to another one, and then waits for ever."""
    if error:
        scheduling = node.config.pluginmanager.getplugin("dsession")
        scheduling.shouldstop = f"worker {node.gateway.id} crashed: {error}"


@pytest.fixture(params=["kernel", "thread"])
def flushed_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Who runs fdatasync: both ways of group commit. (For a new segment it is the thread in both.)"""
    way = str(request.param)
    if way == "thread":
        let_a_thread_flush(monkeypatch.setattr)
    return way


@pytest.fixture
def small_disk() -> Iterator[Callable[[Path, int], Path]]:
    """Makes a folder that is a disk of so many bytes (a tmpfs of its own); it is gone after the test."""
    mounted: list[Path] = []

    def make(folder: Path, size: int) -> Path:
        folder.mkdir()
        words = ["mount", "-t", "tmpfs", "-o", f"size={size}", "gantry-test", str(folder)]
        try:
            subprocess.run(words, check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            why = getattr(error, "stderr", None) or str(error)
            pytest.skip(
                "a disk that gets full is a small tmpfs: run it as root, in a container with --privileged; "
                f"`mount` says: {why.strip()}"
            )
        mounted.append(folder)
        return folder

    yield make
    for folder in mounted:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def bad_sector(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """`{"path": ..., "at": ...}`: 4 KiB that cannot be read until they are written over, as disks have it."""
    bad: dict[str, Any] = {}
    read, write = commit_log.read_all, commit_log.write_all

    def is_of(fd: int) -> bool:
        return bool(bad) and os.readlink(f"/proc/self/fd/{fd}") == bad["path"]

    def read_all(fd: int, count: int, at: int) -> bytes:
        if is_of(fd) and at < bad["at"] + 4096 and at + count > bad["at"]:
            raise OSError(errno.EIO, "Input/output error")
        return read(fd, count, at)

    def write_all(fd: int, data: Any, at: int) -> None:
        if is_of(fd) and at <= bad["at"] and at + len(data) >= bad["at"] + 4096:
            bad.clear()
        write(fd, data, at)

    monkeypatch.setattr(commit_log, "read_all", read_all)
    monkeypatch.setattr(commit_log, "write_all", write_all)
    return bad
