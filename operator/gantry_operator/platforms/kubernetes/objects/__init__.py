"""Applies objects, and keeps what outlives them: volumes, certificates, mounted files."""
