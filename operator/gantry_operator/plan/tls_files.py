"""Names of files with a certificate, its key and the authorities, as in Kubernetes' TLS Secrets."""

from __future__ import annotations

from typing import Final

CERTIFICATE: Final = "tls.crt"
KEY: Final = "tls.key"
AUTHORITIES: Final = "ca.crt"
