"""The version of this release. Images hold the sources without the package's metadata, so it stands here."""

from typing import Final

VERSION: Final = "0.1.0"
