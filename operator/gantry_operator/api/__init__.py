"""The custom resource: models, validation, and the CRD generated from them.

The pydantic models are the one source of defaults, limits and descriptions. The CRD YAML, the reference page and the
checks of local mode are derived from them.
"""
