"""Errors of disks that a person can do something about: which file, which disk, and what to do."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

_REMEDIES: Final = {
    errno.ENOSPC: "is full: free space there, then try again",
    errno.EDQUOT: "has no room left in your quota: free space there, then try again",
    errno.EROFS: "is mounted for reading only: mount it for writing, or use another folder",
    errno.EIO: "failed: the kernel's log says why (dmesg); replace the disk, or use another folder",
}


class DiskError(OSError):
    """A file that cannot be written. Its text is for people; `filename` is the file."""

    def __str__(self) -> str:
        return _sentence(self.errno or 0, str(self.filename))


def disk_error(error: OSError, path: Path) -> OSError:
    """Return the error of a write to a file, as a DiskError where there is something to say."""
    if error.errno not in _REMEDIES:
        return error
    return DiskError(error.errno, error.strerror, str(path))


def in_words(error: OSError) -> str:
    """Return an error of a file for people. Without the file's name it is the text that the system has."""
    if error.errno not in _REMEDIES or not isinstance(error.filename, str | bytes):
        return str(error)
    return _sentence(error.errno, os.fsdecode(error.filename))


def _sentence(number: int, file: str) -> str:
    what = "read or written" if number == errno.EIO else "written"
    return f"{file} cannot be {what}: the disk at {_disk_of(file)} {_REMEDIES[number]}"


def _disk_of(file: str) -> str:
    """Return the mount point of a file, with what is free."""
    place = Path(file).absolute()
    while not os.path.ismount(place) and place != place.parent:
        place = place.parent
    try:
        stat = os.statvfs(place)
    except OSError:
        return str(place)
    free, total = stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize
    inodes = ", no file name is left" if stat.f_files and not stat.f_favail else ""
    return f"{place} ({free >> 10:,} KiB of {total >> 10:,} KiB free{inodes})"
