"""The planted faults of a disk meet the flush that a broker uses: the kernel's."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

PROGRAM: Final = """
import asyncio, json, os, sys
from pathlib import Path
from tests.chaos.broker import Faults, _in_kernel
from tests.support.planted_syncs import plant_async_sync

faults = Faults()
plant_async_sync(setattr, _in_kernel(faults))
from gantry_broker.store.async_sync import AsyncSync

async def main():
    ended = asyncio.Queue()
    sync = AsyncSync(ended.put_nowait)
    fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
    loop = asyncio.get_running_loop()

    async def sync_once(sync_s=0.0, fails=0.0, errors=()):
        faults.sync_s, faults.fails, faults.errors = sync_s, fails, errors
        began = loop.time()
        assert sync.begin(fd)
        error = await ended.get()
        return [loop.time() - began, error and error.errno]

    print(json.dumps([
        await sync_once(), await sync_once(sync_s=0.3), await sync_once(fails=1.0, errors=(5,)),
        await sync_once(fails=1.0, errors=(28,)), await sync_once(),
    ]))

asyncio.run(main())
"""


def test_a_flush_by_the_kernel_is_slow_and_fails_as_planted(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "file")], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    assert [error for _, error in results] == [None, None, 5, None, None]
    assert results[1][0] >= 0.3
