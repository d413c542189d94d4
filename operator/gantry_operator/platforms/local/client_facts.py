"""What programs of this user need to call a local cluster, as plain values.

The supervisor answers with it: it has the models of the manifest, which take a command longer to load than all it does.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gantry_operator.access.wanted import ADMIN, ADMIN_NAME, SECRET_KEY, secret_name
from gantry_operator.platforms.local.addresses import name_server_addresses, why_nothing_runs
from gantry_operator.platforms.local.certificates import client_options
from gantry_operator.platforms.local.folder import ClusterFolder
from gantry_operator.platforms.local.key_files import key_file
from gantry_operator.platforms.local.leaving_groups import running_cluster
from gantry_operator.platforms.local.manifest import load_saved


def client_facts(folder: ClusterFolder) -> dict[str, Any]:
    """Read them from the folder. `why`: why nothing runs; empty: something does. `key`: where the super user's key is.

    Raises OSError, pydantic.ValidationError, NoPort.
    """
    saved = load_saved(folder)
    tls = client_options(saved, folder)
    return {
        "servers": name_server_addresses(folder),
        "why": why_nothing_runs(folder, saved),
        "groups": dict(running_cluster(folder, saved).group_names),
        "tls": None if tls is None else [_text(path) for path in (tls.ca_file, tls.cert_file, tls.key_file)],
        "accessKey": ADMIN,
        "key": [str(key_file(folder, secret_name(saved.name, ADMIN_NAME))), SECRET_KEY],
    }


def _text(path: Path | str | None) -> str | None:
    return None if path is None else str(path)
