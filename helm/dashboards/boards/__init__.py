"""What each dashboard shows. The first row is the health: green says that nothing needs a person."""

from __future__ import annotations

from typing import Final

from helm.dashboards.boards.analytics import ANALYTICS
from helm.dashboards.boards.consumers import CONSUMERS
from helm.dashboards.boards.operator import OPERATORS
from helm.dashboards.boards.overview import OVERVIEW
from helm.dashboards.boards.replication import REPLICATION
from helm.dashboards.boards.topics import TOPICS

BOARDS: Final = {
    "cluster-overview": OVERVIEW,
    "group-and-replication": REPLICATION,
    "topics": TOPICS,
    "consumer-groups": CONSUMERS,
    "operator": OPERATORS,
    "analytics": ANALYTICS,
}
"""By the name of the file."""
