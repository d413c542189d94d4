"""The error of a command: one line that says what to do, and an exit code for programs."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of `gantry`."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NO_CLUSTER = 3
    NOT_IN_TIME = 4


class CliError(Exception):
    """Shown as `error: ...` on stderr."""

    def __init__(self, message: str, code: Exit = Exit.FAILED) -> None:
        super().__init__(message)
        self.code = code


def api_server(error: Exception) -> CliError:
    """For refusals of the Kubernetes API server, and for one that does not answer."""
    return CliError(f"the Kubernetes API server refuses or does not answer: {error}")
