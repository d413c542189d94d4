"""Errors of actions as a command shows them."""

from __future__ import annotations

import pytest
from gantry_operator.actions.errors import ActionError, Cause
from gantry_operator.cli.errors import CliError, Exit, presented
from gantry_operator.cli.target import run_async

from tests.cli.test_output import run

CODES = {
    Cause.FAILED: Exit.FAILED,
    Cause.BAD_INPUT: Exit.USAGE,
    Cause.NO_CLUSTER: Exit.NO_CLUSTER,
    Cause.NOT_IN_TIME: Exit.NOT_IN_TIME,
}


async def fail(cause: Cause) -> None:
    raise ActionError("orders is refused", cause)


@pytest.mark.parametrize("cause", Cause)
def test_every_cause_has_an_exit_code(cause: Cause) -> None:
    assert presented(ActionError("orders is refused", cause)).code is CODES[cause]
    with pytest.raises(CliError, match="orders is refused") as caught:
        run_async(fail(cause))
    assert caught.value.code is CODES[cause]


def test_an_error_outside_an_event_loop_is_one_line_too() -> None:
    done = run("import gantry_operator.actions.errors as e; raise e.ActionError('x is refused', e.Cause.NOT_IN_TIME)")
    assert (done.returncode, done.stderr) == (4, b"error: x is refused\n")
