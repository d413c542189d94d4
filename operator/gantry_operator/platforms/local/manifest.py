"""The manifest of a local cluster in its folder, and the changes that a cluster with data does not allow."""

from __future__ import annotations

from gantry_operator.api.archive import BOOTSTRAP_IS_FIXED, changed_bootstrap
from gantry_operator.api.cluster import BrokerCluster
from gantry_operator.api.spec import MODE_IS_FIXED
from gantry_operator.platforms.local import control
from gantry_operator.platforms.local.certificates import NOT_HERE, NOT_HERE_EITHER
from gantry_operator.platforms.local.folder import ClusterFolder
from gantry_operator.registry.file import write_durably


def save_manifest(folder: ClusterFolder, cluster: BrokerCluster) -> None:
    write_durably(folder.manifest, cluster.model_dump_json(exclude={"status"}, exclude_none=True, indent=1))


def load_saved(folder: ClusterFolder) -> BrokerCluster:
    """Return the cluster as it was last started. Raises OSError, pydantic.ValidationError."""
    return BrokerCluster.model_validate_json(folder.manifest.read_bytes())


def refuse_change(old: BrokerCluster, new: BrokerCluster) -> None:
    """Refuse changes that a cluster with data does not allow. Raises ControlError with the field and the reason."""
    if new.name != old.name:
        raise control.ControlError(
            f"metadata.name is {new.name!r}, but this folder holds {old.name!r}: use another --dir"
        )
    if new.spec.mode != old.spec.mode:
        raise control.ControlError(f"spec.mode is {new.spec.mode}, was {old.spec.mode}: {MODE_IS_FIXED}")
    before, after = (c.spec.security.tls.between_members(kubernetes=False) for c in (old, new))
    if before != after:
        raise control.ControlError(
            f"spec.security.tls.internal is {str(after).lower()}, was {str(before).lower()}: members with TLS and "
            "members without it could not reach each other while they are replaced; write the former value"
        )
    if new.broker_cluster_name != old.broker_cluster_name:
        raise control.ControlError(
            f"spec.brokerClusterName is {new.broker_cluster_name}, was {old.broker_cluster_name}: clients, "
            "messages and consumers' progress have the former name; write that one"
        )
    for group in old.spec.brokerGroups:
        if new.broker_name(group.name) != group.broker_name:
            raise control.ControlError(
                f"spec.brokerGroups: brokerName of {group.name} is {new.broker_name(group.name)}, was "
                f"{group.broker_name}: clients and consumers' progress have the former name; write that one"
            )
    if changed := changed_bootstrap(old.spec.bootstrap, new.spec.bootstrap):
        raise control.ControlError(f"spec.{changed}: {BOOTSTRAP_IS_FIXED}")
    refuse_elsewhere(new)
    size = "mappedFileSizeCommitLog"
    if getattr(new.spec.broker, size) != getattr(old.spec.broker, size):
        raise control.ControlError(f"spec.broker.{size} is fixed for life: write {getattr(old.spec.broker, size)}")


def refuse_elsewhere(cluster: BrokerCluster) -> None:
    """Refuse a spec that only Kubernetes can run. Raises ControlError."""
    if cluster.spec.security.tls.issuer == "Secret":
        raise control.ControlError(NOT_HERE)
    proxy = cluster.spec.proxy
    if proxy is not None and proxy.tls is not None and proxy.tls.secretName is not None:
        raise control.ControlError(NOT_HERE_EITHER)
