"""Clusters of real processes that are broken by seed, and what clients saw of it: `python -m tests.chaos.run`."""
