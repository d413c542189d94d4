"""Keeps the page of the last report in a Secret of the cluster, where the console reads it.

The driver may change this one Secret alone. A page that is too large for a Secret replaces the former one
by none.
"""

from __future__ import annotations

import base64
import logging
import urllib.request
from pathlib import Path
from typing import Any, Final

import orjson
from gantry_broker import report_page
from gantry_broker.remoting.tls import TlsOptions, client_context

logger = logging.getLogger(__name__)

ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
API: Final = "https://kubernetes.default.svc"
TIMEOUT_S: Final = 30.0
MANAGER: Final = "gantry-report"
"""The owner of the page among the fields of the Secret."""


def patch_of(packed: bytes | None) -> dict[str, Any]:
    """Return the change of the Secret. None removes the page."""
    return {"data": {report_page.KEY: None if packed is None else base64.b64encode(packed).decode()}}


def keep_page(secret: str, page: str, api: str = API, account: Path = ACCOUNT) -> None:
    """Write the page into the Secret of this name. The report is good without it, so a failure is a warning."""
    packed = report_page.pack(page.encode())
    if packed is None:
        logger.warning(
            "the page is too large for Secret %s (more than %d bytes packed): gantry report fetches it",
            secret, report_page.MAX_PACKED,
        )  # fmt: skip
    try:
        namespace, token = ((account / name).read_text().strip() for name in ("namespace", "token"))
        request = urllib.request.Request(
            f"{api}/api/v1/namespaces/{namespace}/secrets/{secret}?fieldManager={MANAGER}",
            orjson.dumps(patch_of(packed)),
            {"Authorization": f"Bearer {token}", "Content-Type": "application/merge-patch+json"},
            method="PATCH",
        )
        trusted = client_context(TlsOptions(ca_file=account / "ca.crt")) if api.startswith("https:") else None
        with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=trusted):
            logger.info("the page is in Secret %s", secret)
    except (OSError, ValueError) as error:
        logger.warning("the page could not be written to Secret %s: %s", secret, error)
