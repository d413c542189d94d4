"""Runs of tables as Jobs."""
