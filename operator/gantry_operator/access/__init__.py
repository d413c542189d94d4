"""From users, Secrets and the changes of mqadmin to the access table of the members. Pure: time is an argument."""

from gantry_operator.access.decide import Decision, Observed, UserResult, decide
from gantry_operator.access.keys import KeyPlan, next_keys, valid_keys
from gantry_operator.access.state import AccessState, Keys
from gantry_operator.access.wish import ADMIN, Wish, admin_wish, secret_name, wish_of

__all__ = [
    "ADMIN",
    "AccessState",
    "Decision",
    "KeyPlan",
    "Keys",
    "Observed",
    "UserResult",
    "Wish",
    "admin_wish",
    "decide",
    "next_keys",
    "secret_name",
    "valid_keys",
    "wish_of",
]
