"""What the broker does with each request code: one module per subject, all filled into one table."""

from . import clients, offsets

__all__ = ["clients", "offsets"]
