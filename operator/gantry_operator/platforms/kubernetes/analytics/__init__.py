"""Schedules and follows the Spark runs of `spec.analytics`; the commands `analyze`, `compact` and `report`."""
