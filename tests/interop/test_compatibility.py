"""docs/compatibility.md and the handlers agree, and running servers behave as it says."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from gantry_broker.protocol.codes import ResponseCode

from benchmarks.rig.target import Target
from benchmarks.rig.wire import Wire
from tests.interop import compatibility

ALL = sorted({n for row in compatibility.codes() for n in (row["in_4_9_7"], row["in_5_5_0"]) if n is not None})
HOSTILE = ["", " ", "x", "-1", "9" * 30, "\x00\x01\x02", "y" * 30_000]
FIELDS = (
    "topic", "queueId", "offset", "consumerGroup", "group", "groupName", "key", "timestamp", "maxNum", "clientId",
    "clientID", "namespace", "brokerName", "beginTimestamp", "endTimestamp", "producerGroup", "commitOffset", "msgId",
    "statsName", "statsKey", "readQueueNums", "writeQueueNums", "perm", "a", "b", "e", "g", "i", "queueOffset",
)  # fmt: skip


@pytest.fixture(scope="module")
def plain(_targets: Callable[[str], Target]) -> Target:
    """Gantry's broker and NameServer, without Java."""
    return _targets("gantry")


def test_the_table_is_up_to_date() -> None:
    assert compatibility.rendered() == compatibility.DOCUMENT.read_text(), (
        "docs/compatibility.md is stale: run `python -m tests.interop.compatibility`"
    )


def test_every_proof_exists() -> None:
    text = compatibility.DOCUMENT.read_text()
    named = set(compatibility.PROOF.values()) | {compatibility.ANSWERS}
    named |= {f"tests/{found}" for found in re.findall(r"`(?:tests/)?(\w+/\w+\.py(?:::\w+)?)`", text)}
    for proof in sorted(named):
        file, _, test = proof.partition("::")
        source = Path(compatibility.ROOT / file).read_text()
        assert not test or f"def {test}(" in source, proof


@pytest.mark.parametrize("code", ALL)
def test_answers(plain: Target, code: int) -> None:
    """A code without any field gets an answer, and is supported exactly when the table says so."""
    for address, served in ((plain.broker_address, compatibility.BROKER), (plain.namesrv, compatibility.NAME_SERVER)):
        with Wire(address, 5) as wire:
            answer = wire.ask(code, {})
        supported = answer.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert supported == (code in served), f"{address}: {answer}"
        assert answer.code == 0 or answer.remark, f"a refusal gives the reason: {answer}"


@pytest.mark.parametrize("code", sorted(compatibility.BROKER))
def test_hostile_fields(plain: Target, code: int) -> None:
    """Empty, wrongly typed or enormous fields get an answer with a short remark, and nothing crashes."""
    with Wire(plain.broker_address, 5) as wire:
        for value in HOSTILE:
            answer = wire.ask(code, dict.fromkeys(FIELDS, value), b"\x00\xff{")
            assert len(answer.remark or "") < 2000, answer.remark
            assert "Traceback" not in (answer.remark or "")
    assert "Traceback" not in plain.log.read_text(), plain.log.read_text()[-3000:]
