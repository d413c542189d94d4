"""The error of an action: one sentence for the person, and its kind for programs."""

from __future__ import annotations

from enum import Enum, auto


class Cause(Enum):
    """Why an action was not done."""

    FAILED = auto()
    BAD_INPUT = auto()
    """What the person gave cannot be used; another try with the same input ends the same way."""
    NO_CLUSTER = auto()
    NOT_IN_TIME = auto()
    """It was asked for, and may still happen."""


class ActionError(Exception):
    """An action was not done. The text is a sentence that says why, and what to do."""

    def __init__(self, message: str, cause: Cause = Cause.FAILED) -> None:
        super().__init__(message)
        self.cause = cause


def api_server_error(error: Exception) -> ActionError:
    """For refusals of the Kubernetes API server, and for one that does not answer."""
    return ActionError(f"the Kubernetes API server refuses or does not answer: {error}")
