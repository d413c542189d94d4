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

from gantry_broker.store.files import sync_failure

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
    """One fdatasync at a time, for one event loop.

    The kernel keeps the file and the eventfd until the end, and reads the request only in `begin`. So neither has to
    outlive a request here.
    """

    def __init__(self, done: Callable[[OSError | None], None]) -> None:
        """`done` is called in the running loop at the end of each fdatasync, with its error. Raises OSError when the
        system does not offer this.
        """
        numbers = _NUMBERS.get(platform.machine())
        if numbers is None or sys.platform != "linux" or sys.byteorder != "little" or sys.maxsize < 2**32:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        setup, self._destroy, getevents, submit = numbers
        # The interpreter's lock stays locked during a call, because these do not block: the kernel queues the work.
        self._call = ctypes.PyDLL(None, use_errno=True).syscall
        self._call.restype = ctypes.c_long
        context = ctypes.c_ulong(0)
        if self._call(ctypes.c_long(setup), ctypes.c_long(1), ctypes.byref(context)) < 0:
            number = ctypes.get_errno()
            raise OSError(number, f"io_setup: {os.strerror(number)}")
        self._context: ctypes.c_ulong = context
        try:
            self._eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        except OSError:
            self.destroy()
            raise
        self._done = done
        self.offered = True
        """False: the kernel has refused a request, and gets no more."""
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
        """Begin an fdatasync. The file may be closed meanwhile. False: nothing has begun, use a thread."""
        if not self.offered:
            return False
        self._request.fd = fd
        if self._call(*self._submit) == 1:
            return True
        self.offered = ctypes.get_errno() == errno.EAGAIN
        return False

    def _ended(self) -> None:
        try:
            os.eventfd_read(self._eventfd)
        except BlockingIOError:
            return
        # The result is there before the eventfd says so. One that cannot be read is a failure: it may be one.
        got = self._call(*self._getevents) == 1
        self._report(self._event.result if got else -errno.EIO)

    def _report(self, result: int) -> None:
        """Report a result: 0, or an error's negative number."""
        self._done(sync_failure(-result) if result < 0 else None)

    def stop(self) -> None:
        """Begin and report nothing more. Call `destroy` then."""
        if self._eventfd >= 0:
            self.offered = False
            self._loop.remove_reader(self._eventfd)
            os.close(self._eventfd)
            self._eventfd = -1

    def destroy(self) -> None:
        """Give the kernel's memory back, in any thread. It takes tens of milliseconds, and as long as a request runs;
        a process that ends waits for that, too.
        """
        context, self._context = self._context, ctypes.c_ulong(0)
        if context.value:
            ctypes.CDLL(None).syscall(ctypes.c_long(self._destroy), context)
