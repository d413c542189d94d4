"""The operator's own metrics and HTTP server."""
