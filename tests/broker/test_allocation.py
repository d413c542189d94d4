"""What the C library does with memory that was freed."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from typing import Final

import pytest

BLOCKS: Final = """
import resource
from gantry_broker.allocation import keep_freed_memory
print(keep_freed_memory())
bytes(300_000)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(1_000):
    some = bytearray(300_000)
    del some
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
LARGE_BLOCKS: Final = """
import resource
from gantry_spark.daemon import keep_blocks
keep_blocks()
def blocks(count):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(count):
        some = [bytearray(16_000_000) for _ in range(3)]
        del some
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
blocks(1)
print("True", blocks(10))
"""
HEAPS: Final = """
import ctypes, sys, threading
from gantry_broker.allocation import share_one_heap
print(share_one_heap())
libc = ctypes.CDLL(None)
libc.malloc.restype = libc.fopen.restype = ctypes.c_void_p
together = threading.Barrier(8)
def work():
    together.wait()
    libc.malloc(100_000)
    together.wait()
threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
file = ctypes.c_void_p(libc.fopen(b"/dev/stderr", b"w"))
libc.malloc_info(0, file)
libc.fclose(file)
"""


of_glibc = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="only glibc has limits for freed memory: run it on a Linux with glibc"
)


def pages_taken(program: str = BLOCKS, **environment: str) -> tuple[str, int]:
    """Whether the limits were set, and the pages that 1,000 blocks of 300 kB take from the system."""
    ended = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    taken, pages = ended.stdout.split()
    return taken, int(pages)


@of_glibc
def test_a_block_that_is_freed_is_used_again() -> None:
    taken, pages = pages_taken()
    assert taken == "True"
    assert pages < 1_000


@of_glibc
@pytest.mark.parametrize(("environment", "taken"), [({}, "True"), ({"MALLOC_ARENA_MAX": "4"}, "False")])
def test_threads_share_one_heap(environment: dict[str, str], taken: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", HEAPS], env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    assert ended.stdout.strip() == taken
    heaps = ended.stderr.count("<heap nr=")
    assert heaps == 1 if taken == "True" else heaps > 1


def test_the_limits_of_a_person_hold() -> None:
    taken, pages = pages_taken(MALLOC_TRIM_THRESHOLD_="100000", MALLOC_MMAP_THRESHOLD_="100000")
    assert taken == "False"
    assert pages > 10_000


@of_glibc
def test_a_worker_of_spark_uses_its_blocks_again() -> None:
    _, pages = pages_taken(LARGE_BLOCKS)
    assert pages < 30_000, "each round has 11,700"
