"""Errors of message decoding."""

from __future__ import annotations


class RecordError(ValueError):
    """Bytes are not a complete and undamaged record."""
