"""Real processes: a member whose disk changed while it was down leads later, and every message has its original
bytes.
"""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING, Any

from gantry_broker.remoting.client import RemotingClient

from tests.integration.conftest import until
from tests.integration.test_replication import send_frame, stored

if TYPE_CHECKING:
    from tests.integration.conftest import Group, Member

BODIES = [b"%03d-" % n + b"x" * 100 for n in range(60)]


def spoil(member: Member) -> None:
    """Change one byte of a body in the middle of the log."""
    path = member.config.data_dir / "commitlog" / f"{0:020d}"
    with path.open("r+b") as file:
        at = file.read(1 << 20).index(BODIES[30]) + 50
        file.seek(at)
        file.write(b"y")


async def repaired(member: Member) -> bool:
    return bool(
        re.search(r"^gantry_log_repaired_total{.*} 1\.0$", (await member.http.get("/metrics")).text, re.MULTILINE)
    )


async def test_damaged_bytes_of_a_slave_are_repaired_before_it_leads(make_group: Any) -> None:
    group: Group = await make_group(3, led=True)
    async with RemotingClient() as client:
        for body in BODIES:
            assert (await client.request(group.group_address, send_frame("T", body), 5.0)).code == 0
    slave = group.members[1]
    await slave.kill(signal.SIGTERM)
    spoil(slave)
    await slave.start()
    await until(lambda: repaired(slave), "the scrub has found and repaired the damage")
    await group.all_in_sync()
    await group.members[0].kill()
    await group.lead(1, [1, 2])
    assert (await stored(group.group_address, "T"))[0] == BODIES
