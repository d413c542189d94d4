"""Errors that a user can fix."""

from __future__ import annotations


class GantrySparkError(Exception):
    """An error with a message for the user and no stack trace. `retry`: a later run may succeed."""

    retry = True


class SourceError(GantrySparkError):
    """The log does not exist, is not readable, or an option of the source is wrong."""


class NotACommitLog(SourceError):
    """The files hold no commit log."""

    retry = False


class NoSuchTopic(SourceError):
    """The log has no topic with a requested name."""

    retry = False


class OutputError(GantrySparkError):
    """The output is not writable."""

    retry = False


class OutputBusy(OutputError):
    """Another run is writing to the output."""

    retry = True


class Expired(SourceError):
    """No member holds these bytes any more."""
