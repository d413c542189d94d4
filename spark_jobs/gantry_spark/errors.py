"""What goes wrong in a way that the user can put right."""

from __future__ import annotations


class GantrySparkError(Exception):
    """A message for the user, without a stack trace. `retry`: the same run may well succeed a little later."""

    retry = True


class SourceError(GantrySparkError):
    """There is no such log, it cannot be read, or an option of the source is wrong."""


class NotACommitLog(SourceError):
    """There are bytes, but they are no commit log."""

    retry = False


class NoSuchTopic(SourceError):
    """No topic of the log has a name that was asked for."""

    retry = False


class OutputError(GantrySparkError):
    """The output cannot be written."""

    retry = False


class OutputBusy(OutputError):
    """Another run is writing to the output."""

    retry = True


class Expired(SourceError):
    """The bytes are no longer held by anyone."""
