"""What goes wrong in a way that the user can put right."""

from __future__ import annotations


class GantrySparkError(Exception):
    """A message for the user, without a stack trace."""


class SourceError(GantrySparkError):
    """There is no such log, it cannot be read, or an option of the source is wrong."""


class OutputError(GantrySparkError):
    """The output cannot be written."""


class Expired(SourceError):
    """The bytes are no longer held by anyone."""
