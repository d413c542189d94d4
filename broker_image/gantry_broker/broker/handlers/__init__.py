"""What the broker does with each request code: one module per subject, all filled into one table."""

from gantry_broker.broker.handlers import (
    admin,
    clients,
    groupadmin,
    offsets,
    query,
    reply,
    retry,
    topicadmin,
    transaction,
)

__all__ = [
    "admin",
    "clients",
    "groupadmin",
    "offsets",
    "query",
    "reply",
    "retry",
    "topicadmin",
    "transaction",
]
