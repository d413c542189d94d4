"""The cluster that chaos runs play with."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.chaos.cluster import Cluster, PortsTaken
from tests.support.free_ports import HOST


@pytest.mark.parametrize("use", ["c-a-1", "c-a-1/http"])
async def test_a_port_that_was_taken_before_the_start_is_reported(tmp_path: Path, use: str) -> None:
    """The cluster uses another port then, and a run would wait for an answer at the one that it knows."""
    cluster = Cluster(tmp_path / "cluster", 1, mode="MasterSlave", flush="Async", min_in_sync=1, small_disks=False)
    with socket.socket() as taken:
        taken.bind((HOST, cluster.real[use]))
        taken.listen()
        # A test beside this one may take another of its ports.
        with pytest.raises(PortsTaken, match=f"the ports of (.*, )?{use}(, .*)? were taken before the cluster started"):
            async with cluster:
                pass
    assert not cluster._records()
