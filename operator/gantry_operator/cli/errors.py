"""The error of a command: one line that says what to do, and an exit code for programs."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from gantry_operator.actions.errors import ActionError, Cause


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


_CODES: Final = {
    Cause.FAILED: Exit.FAILED,
    Cause.BAD_INPUT: Exit.USAGE,
    Cause.NO_CLUSTER: Exit.NO_CLUSTER,
    Cause.NOT_IN_TIME: Exit.NOT_IN_TIME,
}


def presented(error: ActionError) -> CliError:
    """Return the error of an action as that of a command."""
    return CliError(str(error), _CODES[error.cause])
