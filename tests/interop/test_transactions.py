"""Transactional messages with the official client."""

from __future__ import annotations

from benchmarks.rig.driver import Driver
from benchmarks.rig.target import Target
from tests.interop.test_send import make

PLAN = ["commit", "rollback", "unknown-commit", "unknown-rollback", "unknown"]


def test_commit_rollback_and_check(driver: Driver, target: Target, fresh: str) -> None:
    """Half messages are invisible until committed; the broker checks open ones, and rolls them back in the end."""
    make(driver, target, fresh)
    consumer = driver.start(
        "consume", topic=fresh, group=f"g_{fresh}", run=fresh, count=4, each=True, timeout_s=60, settle_ms=3000
    )
    consumer.wait_for("started")
    sent = driver.run(
        "transactions", topic=fresh, group=f"t_{fresh}", run=fresh, count=10, plan=",".join(PLAN), keys="k",
        stay_s=14,
    )  # fmt: skip
    assert [line["status"] for line in sent.of("sent")] == ["SEND_OK"] * 10
    got = consumer.finish(90)
    committed = {n for n in range(10) if PLAN[n % 5] in ("commit", "unknown-commit")}
    assert {line["n"] for line in got.of("message")} == committed
    assert got.summary["repeated"] == 0
    at_once = {n for n in range(10) if PLAN[n % 5] in ("commit", "rollback")}
    checks = {int(n): times for n, times in sent.summary["checks"].items()}
    assert not at_once & checks.keys(), "a decided transaction is not checked again"
    assert checks.keys() == set(range(10)) - at_once
    for n, times in checks.items():
        if PLAN[n % 5] == "unknown":
            assert 1 <= times <= 4, f"given up after transactionCheckMax (3) checks, not {times}"
    assert {line["topic"] for line in sent.of("check")} == {fresh}
    for line in got.of("message"):
        assert line["keys"] == f"k{line['n']}"
