"""Errors that a user can fix."""

from __future__ import annotations

import re
from typing import Final

_SHUT_DOWN: Final = "cancelled because SparkContext was shut down"
_JAVA_CAUSE: Final = re.compile(r"^(?:: |Caused by: )([\w.$]+): (.+)$", re.MULTILINE)
"""Matches the causes in the text of a Java exception, the outermost first."""
_OURS: Final = re.compile(r"gantry_spark\.[\w.]*?(\w+): (.+)")
"""Matches an error of ours in the text of an exception of Spark's workers."""


class GantrySparkError(Exception):
    """An error with a message for the user and no stack trace. `retry`: a later run may succeed."""

    retry = True


class SourceError(GantrySparkError):
    """The log does not exist, is not readable, or an option of the source is wrong."""


class NotACommitLog(SourceError):
    """The files hold no commit log."""

    retry = False


class NoSuchTopic(SourceError):
    """The log has no topic with a requested name."""

    retry = False


def error_name(error: BaseException) -> str:
    """Return the name of an error's class, also of an error from Spark's workers."""
    named = [] if isinstance(error, GantrySparkError) else _OURS.findall(str(error))
    return str(named[-1][0]) if named else type(error).__name__


def error_message(error: BaseException) -> str:
    """Return the message for the user of an error, also of an error from Spark's workers."""
    if isinstance(error, GantrySparkError | ValueError):
        return str(error)
    named = _OURS.findall(str(error))
    if named:
        return str(named[-1][1]).strip()
    if _SHUT_DOWN in str(error):
        return (
            "Spark has stopped because its executors failed too often. The logs of their pods name the reason (too "
            "little memory, an image that cannot be pulled, no connection to the driver)"
        )
    causes = _JAVA_CAUSE.findall(str(error))
    if causes:
        return f"{causes[-1][0].rpartition('.')[2]}: {causes[-1][1].strip()}"
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"


class OutputError(GantrySparkError):
    """The output is not writable."""

    retry = False


class OutputBusy(OutputError):
    """Another run is writing to the output."""

    retry = True


class Expired(SourceError):
    """No member holds these bytes any more."""
