"""From users, Secrets and the changes of mqadmin to the access table of the members. Pure: time is an argument."""

from gantry_operator.access.decide import Decision, Observed, UserResult, decide
from gantry_operator.access.keys import KeyPlan, next_keys, valid_keys
from gantry_operator.access.state import AccessState, Keys
from gantry_operator.access.wanted import (
    ADMIN,
    PROXY,
    WantedUser,
    secret_name,
    wanted_admin,
    wanted_proxy,
    wanted_user,
)

__all__ = [
    "ADMIN",
    "PROXY",
    "AccessState",
    "Decision",
    "KeyPlan",
    "Keys",
    "Observed",
    "UserResult",
    "WantedUser",
    "decide",
    "next_keys",
    "secret_name",
    "valid_keys",
    "wanted_admin",
    "wanted_proxy",
    "wanted_user",
]
