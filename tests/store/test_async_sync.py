"""The kernel's fdatasync in the background, and the thread where the kernel does not offer it."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import platform
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest
from gantry_broker.protocol.message import pack_host
from gantry_broker.settings import BrokerSettings
from gantry_broker.store import async_sync
from gantry_broker.store.async_sync import AsyncSync
from gantry_broker.store.group_commit import GroupCommit
from gantry_broker.store.store import MessageStore
from gantry_broker.store.types import Put, StoreConfig

from tests.support.present import present

HOST = pack_host("10.1.2.3", 50_000)


def put(store: MessageStore, count: int = 1) -> int:
    store.appender.put([Put("Orders", n % 3, 0, 0, 1, HOST, b"x" * 200, b"") for n in range(count)], 1)
    return store.log.end


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
    for _ in range(2):
        sync.stop()
        sync.destroy()
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
        sync.stop()
        sync.destroy()


async def test_group_commit_needs_no_thread_but_for_a_new_segment(tmp_path: Path, small: BrokerSettings) -> None:
    store = MessageStore.open(StoreConfig(tmp_path, small, sync_flush=True))
    commit = GroupCommit(store)
    took: list[float] = []
    commit.took = took.append
    put(store)
    await commit.flush()  # The directory has the name of a new file.
    sync = present(commit._async_sync)
    begun: list[int] = []
    begin = sync.begin

    def counted(fd: int) -> bool:
        begun.append(fd)
        return begin(fd)

    sync.begin = counted  # type: ignore[method-assign]
    for _ in range(20):
        end = put(store)
        assert await commit.wait(end) == end == store.state.flushed
    assert len(begun) == 20
    while store.log.end < 2 * small.mappedFileSizeCommitLog:
        put(store, 20)
        assert await commit.flush() == store.log.end == store.state.flushed
    assert len(took) > len(begun)
    await commit.close()
    store.close()
    again = MessageStore.open(StoreConfig(tmp_path, small, sync_flush=True))
    assert again.state.damage is None
    again.close()


async def test_a_stop_waits_for_no_request(tmp_path: Path) -> None:
    ended: list[OSError | None] = []
    for number in range(20):
        sync = AsyncSync(ended.append)
        fd = os.open(tmp_path / f"{number}", os.O_RDWR | os.O_CREAT)
        os.write(fd, bytes(1 << 20))
        assert sync.begin(fd)
        os.close(fd)
        sync.stop()
        await asyncio.to_thread(sync.destroy)
    await asyncio.sleep(0)
    assert ended == []


async def test_a_result_that_cannot_be_read_is_a_failure(tmp_path: Path) -> None:
    ended: asyncio.Queue[OSError | None] = asyncio.Queue()
    sync = AsyncSync(ended.put_nowait)
    sync._getevents = (ctypes.c_long(-1),)
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    assert sync.begin(fd)
    async with asyncio.timeout(10):
        error = await ended.get()
    assert present(error).errno == errno.EIO
    os.close(fd)
    sync.stop()
    sync.destroy()


def test_several_loops_of_a_process_flush_at_the_same_time(tmp_path: Path, small: BrokerSettings) -> None:
    """Two brokers in one process, each in a thread of its own. A child process inherits nothing."""

    async def flush(name: str) -> int:
        store = MessageStore.open(StoreConfig(tmp_path / name, small, sync_flush=True))
        commit = GroupCommit(store)
        for _ in range(50):
            end = put(store)
            assert await commit.wait(end) == end == store.state.flushed
        assert not os.get_inheritable(present(commit._async_sync)._eventfd)
        await commit.close()
        store.close()
        return end

    with ThreadPoolExecutor(3) as pool:
        ends = list(pool.map(lambda name: asyncio.run(flush(name)), "abc"))
    assert len(set(ends)) == 1


@pytest.mark.parametrize("number", [206, 209], ids=["io_setup", "io_submit"])
@pytest.mark.parametrize("error", [errno.EPERM, errno.ENOSYS, errno.EAGAIN], ids=errno.errorcode.get)
def test_a_thread_flushes_where_a_filter_refuses_the_system_calls(tmp_path: Path, number: int, error: int) -> None:
    """As in a container with a seccomp profile (EPERM, ENOSYS), and beyond fs.aio-max-nr (EAGAIN)."""
    if platform.machine() != "x86_64":
        pytest.skip("the filter has the numbers of system calls of x86_64: run it on such a machine")
    done = subprocess.run(
        [sys.executable, "-c", FILTERED, str(tmp_path), str(number), str(error)],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "flushed by store-flush\n"
    assert ("a thread flushes the log" in done.stderr) == ((number, error) != (209, errno.EAGAIN)), done.stderr


FILTERED: Final = """
import asyncio, ctypes, logging, struct, sys, threading
from pathlib import Path
from gantry_broker.settings import BrokerSettings
from gantry_broker.store.group_commit import GroupCommit
from gantry_broker.store.store import MessageStore
from gantry_broker.store.types import Put, StoreConfig

path, number, error = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
logging.basicConfig(level=logging.INFO)
rules = ((0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x50000 | error), (0x06, 0, 0, 0x7FFF0000))
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *rule) for rule in rules))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(rules), ctypes.addressof(code)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
assert libc.prctl(22, 2, program) == 0, ctypes.get_errno()  # PR_SET_SECCOMP

async def main():
    store = MessageStore.open(StoreConfig(path, BrokerSettings(), sync_flush=True))
    commit = GroupCommit(store)
    for _ in range(3):
        store.appender.put([Put("T", 0, 0, 0, 1, bytes(8), b"x", b"")], 1)
        assert await commit.flush() == store.log.end == store.state.flushed
    print("flushed by", *(t.name for t in threading.enumerate() if t.name == "store-flush"))
    await commit.close()
    store.close()

asyncio.run(main())
"""


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


async def test_a_truncation_during_the_flush_makes_its_result_void(tmp_path: Path, small: BrokerSettings) -> None:
    store = MessageStore.open(StoreConfig(tmp_path, small, sync_flush=True))
    commit = GroupCommit(store)
    first = put(store)
    await commit.flush()
    put(store, 3)
    commit.begin()
    store.truncator.truncate(first)
    other = put(store, 9)
    while commit._flushing:
        await commit._turn()
    assert store.state.flushed == first
    assert await commit.wait(other) == other
    await commit.close()
    store.close()
