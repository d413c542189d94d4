"""What goes wrong with an archive."""

from __future__ import annotations


class ArchiveError(Exception):
    """An archive cannot be read or written. The text names the object and the reason."""


class Damaged(ArchiveError):
    """An object does not hold what it held when it was written."""


class Fenced(ArchiveError):
    """Another cluster owns the archive, or a newer manifest exists. The text says what to do."""


class Overtaken(Fenced):
    """Another member of the group wrote to the manifest meanwhile: read it again, and decide again."""


class Unavailable(ArchiveError):
    """The object store does not answer, or refuses for now. The same call may work later."""


class TooWide(Unavailable):
    """One request would read too much. The store is not to blame."""


class Missing(ArchiveError):
    """The archive has no such object, or not this part of the log."""


class Replaced(ArchiveError):
    """An object was merged into another one while it was read: the same call works now."""
