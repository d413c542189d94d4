"""The kernel's fdatasync in the background, and the thread where the kernel does not offer it."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from pathlib import Path

import pytest
from gantry_broker.protocol.message import pack_host
from gantry_broker.settings import BrokerSettings
from gantry_broker.store import async_sync
from gantry_broker.store.async_sync import AsyncSync
from gantry_broker.store.errors import FlushFailed
from gantry_broker.store.group_commit import GroupCommit
from gantry_broker.store.store import MessageStore
from gantry_broker.store.types import Put, StoreConfig

HOST = pack_host("10.1.2.3", 50_000)


def put(store: MessageStore, count: int = 1) -> int:
    store.put([Put("Orders", n % 3, 0, 0, 1, HOST, b"x" * 200, b"") for n in range(count)], 1)
    return store.end


def flush_threads() -> int:
    return sum(thread.name == "store-flush" for thread in threading.enumerate())


async def test_it_reports_each_end_and_takes_a_file_that_is_closed_meanwhile(tmp_path: Path) -> None:
    ended: asyncio.Queue[OSError | None] = asyncio.Queue()
    sync = AsyncSync(ended.put_nowait)
    for number in range(50):
        fd = os.open(tmp_path / f"{number}", os.O_RDWR | os.O_CREAT)
        os.write(fd, bytes(5_000))
        assert sync.begin(fd)
        os.close(fd)
        async with asyncio.timeout(10):
            assert await ended.get() is None
    sync.close()
    sync.close()
    assert not sync.begin(0)


async def test_a_file_that_it_cannot_sync_ends_its_use() -> None:
    sync = AsyncSync(lambda error: None)
    read, write = os.pipe()
    directory = os.open("/", os.O_RDONLY)
    try:
        assert not sync.begin(write)
        assert not sync.begin(directory), "it asks the kernel once only"
    finally:
        for fd in (read, write, directory):
            os.close(fd)
        sync.close()


async def test_group_commit_needs_no_thread_but_for_a_new_segment(tmp_path: Path, small: BrokerSettings) -> None:
    store = MessageStore.open(StoreConfig(tmp_path, small, sync_flush=True))
    commit = GroupCommit(store)
    took: list[float] = []
    commit.took = took.append
    put(store)
    await commit.flush()  # The directory has the name of a new file.
    sync = commit._async_sync
    assert sync is not None
    begun: list[int] = []
    begin = sync.begin

    def counted(fd: int) -> bool:
        begun.append(fd)
        return begin(fd)

    sync.begin = counted  # type: ignore[method-assign]
    for _ in range(20):
        end = put(store)
        assert await commit.wait(end) == end == store.flushed
    assert len(begun) == 20
    while store.end < 2 * small.mappedFileSizeCommitLog:
        put(store, 20)
        assert await commit.flush() == store.end == store.flushed
    assert len(took) > len(begun)
    await commit.close()
    store.close()
    again = MessageStore.open(StoreConfig(tmp_path, small, sync_flush=True))
    assert again.damage is None
    again.close()


@pytest.mark.parametrize("missing", ["machine", "setup", "request"])
async def test_without_the_kernels_help_a_thread_flushes(
    tmp_path: Path, small: BrokerSettings, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    if missing == "machine":
        monkeypatch.setattr(async_sync.platform, "machine", lambda: "other")
    elif missing == "setup":
        monkeypatch.setattr(async_sync, "_NUMBERS", {async_sync.platform.machine(): (-1, -1, -1, -1)})
    store = MessageStore.open(StoreConfig(tmp_path, small, sync_flush=True))
    commit = GroupCommit(store)
    assert (commit._async_sync is None) == (missing != "request")
    if commit._async_sync is not None:
        commit._async_sync._request.opcode = 99
    before = flush_threads()
    for _ in range(5):
        end = put(store)
        assert await commit.wait(end) == end
    assert flush_threads() == before + 1
    await commit.close()
    store.close()


async def test_an_error_that_the_kernel_reports_ends_all_writes(tmp_path: Path, small: BrokerSettings) -> None:
    store = MessageStore.open(StoreConfig(tmp_path, small, sync_flush=True))
    commit = GroupCommit(store)
    put(store)
    await commit.flush()
    sync = commit._async_sync
    assert sync is not None
    done, sync._done = sync._done, lambda error: done(OSError(errno.EIO, "as planted"))
    put(store)
    with pytest.raises(FlushFailed):
        await commit.flush()
    assert store.failed is not None
    assert store.flushed < store.end
    with pytest.raises(FlushFailed):
        put(store)
    await commit.close()
    store.close(clean=False)


async def test_a_truncation_during_the_flush_makes_its_result_void(tmp_path: Path, small: BrokerSettings) -> None:
    store = MessageStore.open(StoreConfig(tmp_path, small, sync_flush=True))
    commit = GroupCommit(store)
    first = put(store)
    await commit.flush()
    put(store, 3)
    commit.begin()
    store.truncate(first)
    other = put(store, 9)
    while commit._flushing:
        await commit._turn()
    assert store.flushed == first
    assert await commit.wait(other) == other
    await commit.close()
    store.close()
