"""The part of a local cluster in a pair of sites: kept in its folder."""

from __future__ import annotations

import json

from gantry_broker.store.sealed import fault_of, seal, unseal

from gantry_operator.cluster.second_site import SiteState
from gantry_operator.platforms.local.folder import ClusterFolder
from gantry_operator.registry.file import write_durably


class LocalSiteStore:
    """`site.json` of a cluster's folder."""

    def __init__(self, folder: ClusterFolder) -> None:
        self._folder = folder

    def load(self) -> SiteState | None:
        """Read the state; None: there is none. Raises ValueError, OSError."""
        return load_site(self._folder)

    async def save(self, state: SiteState) -> None:
        """Keep the state. Raises OSError."""
        write_durably(self._folder.site, seal(json.dumps(state.to_json()).encode()).decode())


def load_site(folder: ClusterFolder) -> SiteState | None:
    """None: the cluster has never had another site. Raises ValueError, OSError."""
    try:
        return SiteState.from_json(json.loads(unseal(folder.site.read_bytes())))
    except FileNotFoundError:
        return None
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise ValueError(f"{folder.site}: {fault_of(error)}; move it away: the members know what it says") from None
