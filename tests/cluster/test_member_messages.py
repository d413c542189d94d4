"""The fast parser of a status line returns the same as the model."""

from __future__ import annotations

import pytest
from gantry_broker.contracts.leadership import InSyncSetProposal, MemberId
from gantry_broker.contracts.models import FollowerStatus, LeaderLink, MemberRef, MemberStatus, ProposalModel
from gantry_operator.cluster.member_messages import BadStatus, report_from
from gantry_operator.failover.model import FollowerView, Report

A, B = MemberId(0, "x"), MemberId(1, "y")


def test_a_line_as_the_model_writes_it() -> None:
    status = MemberStatus(
        cluster="demo", group="a", name="demo-a-0", member=MemberRef.of(A), broker_id=0, role="Master", epoch=3,
        version=7, highest_seen_epoch=4, log_trusted=False, last_epoch=3, end=900,
        confirmed=800, in_sync=[MemberRef.of(A)],
        proposal=ProposalModel.of(InSyncSetProposal(7, frozenset({A, B}))), writes_paused=True,
        followers=[FollowerStatus(member=MemberRef.of(B), acked=850, last_fetch_ms=12, in_sync=False)],
        leader_link=LeaderLink(member=MemberRef.of(B), state="silent", last_answer_ms=1_500),
    )  # fmt: skip
    assert report_from(status.model_dump(mode="json")) == Report(
        id=A, role="Master", epoch=3, version=7, highest_seen_epoch=4, log_trusted=False, last_epoch=3, end=900,
        confirmed=800, in_sync=frozenset({A}), proposal=InSyncSetProposal(7, frozenset({A, B})),
        followers=(FollowerView(B, 850, 12),), link="silent", link_leader=B, link_answer_ms=1_500, writes_paused=True,
    )  # fmt: skip


@pytest.mark.parametrize("line", [{}, {"member": 3}, {"member": {"member": 0, "incarnation": "x"}, "role": "Slave"}])
def test_an_invalid_status_is_reported(line: dict[str, object]) -> None:
    with pytest.raises(BadStatus, match="not a member's status"):
        report_from(line)
