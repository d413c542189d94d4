"""fdatasync without a thread: the kernel's asynchronous I/O, which reports the end to the event loop.

A thread changes the interpreter's lock twice for every flush, which costs more CPU time than the flush itself. Python
has no functions for these system calls, so this module makes them by `ctypes`. A system that does not offer them is no
error: the caller then uses a thread.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import platform
import sys
from collections.abc import Callable
from typing import Any, Final

_FDSYNC: Final = 3
"""IOCB_CMD_FDSYNC of linux/aio_abi.h; Linux 4.18 and later."""
_RESFD: Final = 1
"""IOCB_FLAG_RESFD: report the end to an eventfd."""
_NUMBERS: Final = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2)}
"""By machine: the numbers of io_setup, io_destroy, io_getevents, io_submit."""


class _Request(ctypes.Structure):
    """struct iocb."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("key", ctypes.c_uint32),
        ("rw_flags", ctypes.c_uint32),
        ("opcode", ctypes.c_uint16),
        ("priority", ctypes.c_int16),
        ("fd", ctypes.c_uint32),
        ("buffer", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
        ("offset", ctypes.c_int64),
        ("reserved", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("result_fd", ctypes.c_uint32),
    )


class _Event(ctypes.Structure):
    """struct io_event."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("request", ctypes.c_uint64),
        ("result", ctypes.c_int64),
        ("result2", ctypes.c_int64),
    )


class AsyncSync:
    """One fdatasync at a time, for one event loop."""

    def __init__(self, done: Callable[[OSError | None], None]) -> None:
        """`done` is called in the running loop at the end of each fdatasync, with its error. Raises OSError when the
        system does not offer this.
        """
        numbers = _NUMBERS.get(platform.machine())
        if numbers is None or sys.platform != "linux" or sys.byteorder != "little" or sys.maxsize < 2**32:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        setup, self._destroy, getevents, submit = numbers
        # The library's own lock stays locked during a call: none of them blocks.
        self._call = ctypes.PyDLL(None, use_errno=True).syscall
        self._call.restype = ctypes.c_long
        context = ctypes.c_ulong(0)
        if self._call(ctypes.c_long(setup), ctypes.c_long(1), ctypes.byref(context)) < 0:
            raise OSError(ctypes.get_errno(), "io_setup")
        self._context: ctypes.c_ulong = context
        try:
            self._eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        except OSError:
            self._call(ctypes.c_long(self._destroy), context)
            raise
        self._done = done
        self._offered = True
        self._request = _Request(opcode=_FDSYNC, flags=_RESFD, result_fd=self._eventfd)
        self._event = _Event()
        requests = (ctypes.c_void_p * 1)(ctypes.addressof(self._request))
        no_time = (ctypes.c_int64 * 2)(0, 0)
        one = ctypes.c_long(1)
        self._submit: tuple[Any, ...] = (ctypes.c_long(submit), context, one, requests)
        self._getevents: tuple[Any, ...] = (
            ctypes.c_long(getevents), context, one, one, ctypes.byref(self._event), no_time
        )  # fmt: skip
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._eventfd, self._ended)

    def begin(self, fd: int) -> bool:
        """Begin an fdatasync. The file may be closed meanwhile. False: use a thread."""
        if not self._offered:
            return False
        self._request.fd = fd
        if self._call(*self._submit) == 1:
            return True
        self._offered = ctypes.get_errno() == errno.EAGAIN
        return False

    def _ended(self) -> None:
        try:
            os.eventfd_read(self._eventfd)
        except BlockingIOError:
            return
        if self._call(*self._getevents) == 1:
            result = self._event.result
            self._done(OSError(-result, os.strerror(-result)) if result < 0 else None)

    def close(self) -> None:
        """End it; nothing may be under way."""
        if self._eventfd >= 0:
            self._offered = False
            self._loop.remove_reader(self._eventfd)
            self._call(ctypes.c_long(self._destroy), self._context)
            os.close(self._eventfd)
            self._eventfd = -1
