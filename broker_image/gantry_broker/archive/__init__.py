"""The archive of a cluster in object storage: format, manifest, upload, ranged reading. docs/archive-format.md."""
