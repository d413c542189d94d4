"""Which broker groups of a cluster answer clients. No answer is not an empty answer: what is missing is said."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from gantry_operator.cluster.failures import in_words

if TYPE_CHECKING:
    from gantry_broker.client import Admin

ASK_S: Final = 3.0
"""Seconds for a master's answer."""
CANNOT_TELL: Final = "group {} has no master: cannot tell"


class CannotTell(Exception):
    """No broker group has a master that answers. The text names the groups."""


def no_master(group: str, why: str = "") -> str:
    """Return the sentence about a broker group whose part of an answer is missing. `why`: what its last master does."""
    sentence = CANNOT_TELL.format(group)
    return f"{sentence} ({why})" if why else sentence


async def leave_out_silent(admin: Admin, groups: Mapping[str, str]) -> list[str]:
    """Ask the master of each broker group, and leave those that do not answer out of later requests of `admin`.

    `groups`: the names that users write, by RocketMQ's brokerName: those that the cluster should have. Returns a
    sentence for each group that is left out. Raises CannotTell if that is all of them, RemotingError and ClientError if
    no NameServer answers.
    """
    masters = await admin.masters()
    names = {broker: broker for broker in masters} | dict(groups)
    if not names:
        raise CannotTell("no broker group has a master: cannot tell")
    problems = await asyncio.gather(*(_problem(admin, masters.get(broker)) for broker in names))
    silent = {broker: why for broker, why in zip(names, problems, strict=True) if why is not None}
    left_out = [no_master(names[broker], why) for broker, why in sorted(silent.items())]
    if len(silent) == len(names):
        raise CannotTell("; ".join(left_out))
    admin.left_out = frozenset(silent)
    return left_out


async def _problem(admin: Admin, address: str | None) -> str | None:
    """Why a master does not answer, empty if there is none; None: it does."""
    from gantry_broker.client import BrokerError
    from gantry_broker.protocol.fields import BodyError
    from gantry_broker.remoting.errors import RemotingError

    if address is None:
        return ""
    try:
        async with asyncio.timeout(ASK_S):
            await admin.runtime_info(address)
    except (BrokerError, BodyError):
        return None  # It answers; what it refuses is for the request that is meant.
    except (RemotingError, TimeoutError) as error:
        return f"{address}: {in_words(error)}"
    return None
