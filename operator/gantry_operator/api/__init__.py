"""The custom resource: models, validation, and the CRD generated from them.

The pydantic models are the one source of defaults, limits and descriptions. The CRD YAML, the reference page and the
checks of local mode are derived from them.
"""

from typing import TYPE_CHECKING

from gantry_broker.lazily import lazily

if TYPE_CHECKING:
    from gantry_operator.api.analytics import Analytics
    from gantry_operator.api.annotations import GROUP
    from gantry_operator.api.cluster import API_VERSION, KIND, PLURAL, VERSION, BrokerCluster, Metadata
    from gantry_operator.api.consumer_group import ConsumerGroup, ConsumerGroupStatus
    from gantry_operator.api.external import External
    from gantry_operator.api.manifest import (
        Documents,
        ManifestError,
        Problem,
        load_documents,
        load_manifest,
        load_users,
        parse_group,
        parse_manifest,
        parse_topic,
        parse_user,
    )
    from gantry_operator.api.proxy import Proxy
    from gantry_operator.api.security import Authentication, Security
    from gantry_operator.api.spec import BrokerClusterSpec, BrokerGroup, Failover, NameServers, Storage
    from gantry_operator.api.status import (
        BrokerClusterStatus,
        Condition,
        LastFailover,
        MemberRow,
        NameServerRow,
        ProxyRow,
        ProxyStatus,
    )
    from gantry_operator.api.topic import BrokerTopic, BrokerTopicStatus
    from gantry_operator.api.user import BrokerUser, BrokerUserStatus

__all__ = [
    "API_VERSION",
    "GROUP",
    "KIND",
    "PLURAL",
    "VERSION",
    "Analytics",
    "Authentication",
    "BrokerCluster",
    "BrokerClusterSpec",
    "BrokerClusterStatus",
    "BrokerGroup",
    "BrokerTopic",
    "BrokerTopicStatus",
    "BrokerUser",
    "BrokerUserStatus",
    "Condition",
    "ConsumerGroup",
    "ConsumerGroupStatus",
    "Documents",
    "External",
    "Failover",
    "LastFailover",
    "ManifestError",
    "MemberRow",
    "Metadata",
    "NameServerRow",
    "NameServers",
    "Problem",
    "Proxy",
    "ProxyRow",
    "ProxyStatus",
    "Security",
    "Storage",
    "load_documents",
    "load_manifest",
    "load_users",
    "parse_group",
    "parse_manifest",
    "parse_topic",
    "parse_user",
]

__getattr__ = lazily(
    __name__,
    {
        "gantry_operator.api.analytics": "Analytics",
        "gantry_operator.api.annotations": "GROUP",
        "gantry_operator.api.cluster": "API_VERSION KIND PLURAL VERSION BrokerCluster Metadata",
        "gantry_operator.api.consumer_group": "ConsumerGroup ConsumerGroupStatus",
        "gantry_operator.api.external": "External",
        "gantry_operator.api.manifest": (
            "Documents ManifestError Problem load_documents load_manifest load_users parse_group parse_manifest "
            "parse_topic parse_user"
        ),
        "gantry_operator.api.proxy": "Proxy",
        "gantry_operator.api.security": "Authentication Security",
        "gantry_operator.api.spec": "BrokerClusterSpec BrokerGroup Failover NameServers Storage",
        "gantry_operator.api.status": (
            "BrokerClusterStatus Condition LastFailover MemberRow NameServerRow ProxyRow ProxyStatus"
        ),
        "gantry_operator.api.topic": "BrokerTopic BrokerTopicStatus",
        "gantry_operator.api.user": "BrokerUser BrokerUserStatus",
    },
)
