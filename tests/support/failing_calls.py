"""The system calls of a store that may fail, and how each may fail."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any, Final

ERRORS: Final = {
    "open": {errno.EMFILE, errno.ENOSPC, errno.EIO},
    "pwrite": {errno.ENOSPC, errno.EIO},
    "pwritev": {errno.ENOSPC},
    "pread": {errno.EIO},
    "fsync": {errno.EIO, errno.ENOSPC},
    "fdatasync": {errno.EIO},
    "ftruncate": {errno.EIO, errno.ENOSPC},
    "replace": {errno.EIO, errno.ENOSPC},
    "unlink": {errno.EIO},
}
"""By the name of the function of `os`."""


def fail(name: str, error: int, call: Callable[..., Any], args: tuple[Any, ...], *, partly: bool) -> None:
    """Raises OSError where a call with these arguments may fail so; `partly`: a full disk accepted half of the
    bytes.
    """
    makes = name != "open" or args[1] & os.O_CREAT
    if error not in ERRORS[name] or (error == errno.ENOSPC and not makes):
        return
    if name == "pwrite" and error == errno.ENOSPC and partly:
        call(args[0], bytes(args[1])[: len(args[1]) // 2], args[2])
    raise OSError(error, os.strerror(error))


def raising(error: Exception) -> Callable[..., Any]:
    """A call that always ends with this error."""

    def call(*_: object, **__: object) -> Any:
        raise error

    return call
