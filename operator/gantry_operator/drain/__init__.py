"""Broker groups that come and go: which topics a new group gets, and when a leaving group is empty. Pure."""

from gantry_operator.drain.extension import GroupConfigs, Missing, homeless, missing_on
from gantry_operator.drain.machine import DrainStep, LeavingGroup, Obstacle, Policy, Progress, decide

__all__ = [
    "DrainStep",
    "GroupConfigs",
    "LeavingGroup",
    "Missing",
    "Obstacle",
    "Policy",
    "Progress",
    "decide",
    "homeless",
    "missing_on",
]
