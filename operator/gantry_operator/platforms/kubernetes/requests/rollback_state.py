"""What a rollback has copied, in a ConfigMap of the cluster: the next operator goes on behind it."""

from __future__ import annotations

import base64
import binascii
import gzip
import zlib
from typing import Any, Final

from gantry_operator.migration.cutover_steps import Refused
from gantry_operator.platforms.kubernetes.api.client import CONFIG_MAP, KubeApi

KEY: Final = "copy.json.gz"
MOST: Final = 64 << 20
"""Bytes of the text: a ConfigMap has 1 MiB, and could name any size."""


class ConfigMapState:
    """A ConfigMap without the cluster's labels: no pass over the cluster's objects looks at it."""

    pause_s = 5.0

    def __init__(self, api: KubeApi, namespace: str, name: str, owner: dict[str, Any]) -> None:
        self._api, self._namespace, self._name, self._owner = api, namespace, name, owner

    def __str__(self) -> str:
        return f"ConfigMap {self._name}"

    async def load(self) -> str | None:
        """Return the text; None: there is none. Raises Refused for another content, ApiError, ApiUnavailable."""
        config_map = await self._api.get(CONFIG_MAP, self._namespace, self._name)
        if config_map is None:
            return None
        if not any(one.get("uid") == self._owner["uid"] for one in config_map["metadata"].get("ownerReferences") or []):
            raise Refused(f"{self} is not of this cluster: delete it")
        try:
            unpack = zlib.decompressobj(16 + zlib.MAX_WBITS)
            data = unpack.decompress(base64.b64decode(config_map["binaryData"][KEY], validate=True), MOST)
            if not unpack.eof:
                raise ValueError(f"it has more than {MOST} bytes, or is torn")
            return data.decode()
        except (KeyError, TypeError, ValueError, binascii.Error, zlib.error) as error:
            raise Refused(f"{self} is no record of a copy: {error!r}: delete it to copy from the cutover on") from None

    async def save(self, text: str) -> None:
        """Raise ApiError, ApiUnavailable."""
        packed = base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode()
        meta = {"name": self._name, "namespace": self._namespace, "ownerReferences": [self._owner]}
        await self._api.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "binaryData": {KEY: packed}})
