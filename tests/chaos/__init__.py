"""Seeded faults on clusters of real processes, and a check of what clients saw: `python -m tests.chaos.run`."""
