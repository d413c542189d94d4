"""What may go wrong while a RocketMQ master is followed."""

from __future__ import annotations


class MigrationError(Exception):
    """The source cannot be followed now; a later try may succeed."""


class SourceBroken(MigrationError):
    """The source sent what no intact source sends, or is not the one that was followed. The migration stops for good:
    no later try can make the copy right.
    """
