"""Reading a live cluster over HTTP: slaves first, confirmed records only, retries, expired segments, the token."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest
from gantry_broker.http.models import LogInfo, MemberRef, SegmentInfo
from gantry_spark import remote
from gantry_spark.errors import SourceError
from gantry_spark.report import Job, run
from gantry_spark.schema import spark_schema
from gantry_spark.source import CommitLogReader, Options
from livecluster import LiveCluster
from plainlog import LogWriter, Message, read_plain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    made = LiveCluster(tmp_path_factory.mktemp("cluster"), token="secret")
    try:
        yield made
    finally:
        made.close()


def rows_of(options: dict[str, str]) -> list[dict[str, Any]]:
    columns = ("log", "topic", "keys", "body", "physical_offset", "damage")
    chosen = Options(options)
    reader = CommitLogReader(spark_schema(columns, chosen.damage_rows), chosen)
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


def test_a_live_cluster(spark: SparkSession, cluster: LiveCluster, tmp_path: Path) -> None:
    keys = [f"k{i % 40:02d}" for i in range(400)]
    bodies = [f"body {i:03d}".encode() for i in range(400)]
    results = cluster.send("Orders", bodies, keys)
    assert len(results) == 400
    cluster.caught_up()
    assert cluster.token_file is not None
    token = str(cluster.token_file)

    with pytest.raises(SourceError, match=r"refuses to be read \(401\): give the admin token by tokenFile"):
        rows_of({"brokers": ",".join(cluster.urls)})
    options = {"brokers": ",".join(cluster.urls), "tokenFile": token}
    found = [r for r in rows_of(options) if r["topic"] == "Orders"]
    assert [(r["keys"], r["body"]) for r in found] == list(zip(keys, bodies, strict=True))
    assert {r["log"] for r in found} == {"a"}
    by_name_server = rows_of({"cluster": cluster.name_server, "tokenFile": token})
    assert [r for r in by_name_server if r["topic"] == "Orders"] == found
    (log,) = remote.logs(cluster.urls, token, 0)
    assert [url for url, _ in log.sources] == [cluster.urls[1], cluster.urls[0]]  # the slave first
    assert log.master == cluster.urls[0]

    job = Job(brokers=tuple(cluster.urls), token_file=token, name="demo", out=str(tmp_path / "out"), rate=64 << 20)
    report = run(spark, job).report
    orders = next(t for t in report["topics"] if t["topic"] == "Orders")
    assert (orders["records"], orders["distinctKeys"], orders["supersededRecords"]) == (400, 40, 360)
    assert orders["supersededBytes"] == orders["savedBytes"] == 360 * orders["bytes"] // 400
    assert report["growth"]["disks"][0]["freeBytes"] > 0
    assert not report["notes"]

    # Without the slave nothing more is confirmed, and the bytes come from the master.
    cluster.kill(1)
    first = cluster.send_unconfirmed("Orders", b"nobody confirmed this")
    assert first != "SEND_OK"
    after = [r for r in rows_of(options) if r["topic"] == "Orders"]
    assert after == found


class Answers:
    """A broker's HTTP interface over the bytes of a store directory, which can be told to fail."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.segments = sorted((root / "commitlog").iterdir())
        self.size = self.segments[0].stat().st_size
        self.end = max(r.phys_offset + r.size for r in read_plain(root)[0])
        self.asked: list[tuple[int, int]] = []
        self.fail: Callable[[int, int], int] = lambda start, stop: 200

    def info(self) -> LogInfo:
        starts = [int(p.name) for p in self.segments]
        segments = [SegmentInfo(start=s, end=min(s + self.size, self.end)) for s in starts]
        return LogInfo(
            cluster="demo", group="a", member=MemberRef(member=0, incarnation="x"), role="Master", start=starts[0],
            confirmed=self.end, segment_bytes=self.size, segments=segments,
        )  # fmt: skip

    def get(self, path: str) -> tuple[int, bytes]:
        parts = urlsplit(path)
        if parts.path == "/v1/log":
            return 200, self.info().model_dump_json().encode()
        query = parse_qs(parts.query)
        start, stop = int(query["from"][0]), int(query["to"][0])
        self.asked.append((start, stop))
        code = self.fail(start, stop)
        if code != 200:
            return code, b"{}"
        base = start - start % self.size
        data = (self.root / "commitlog" / f"{base:020d}").read_bytes()
        return 200, data[start - base : min(stop - base, self.size, start - base + 10_000)]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Answers, str]]:
    writer = LogWriter(tmp_path / "store")
    writer.extend(Message(body=b"x" * 500, key=str(i)) for i in range(400))
    answers = Answers(tmp_path / "store")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            code, body = answers.get(self.path)
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield answers, f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_failed_answers_are_asked_for_again(served: tuple[Answers, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_FIRST_PAUSE_S", 0.01)
    answers, url = served
    seen: set[int] = set()

    def fail(start: int, stop: int) -> int:
        if start in seen:
            return 200
        seen.add(start)
        return 503

    answers.fail = fail
    rows = rows_of({"brokers": url})
    assert [r["keys"] for r in rows] == [str(i) for i in range(400)]
    answers.fail = lambda start, stop: 500
    with pytest.raises(SourceError, match=r"bytes 0 to .* of the log cannot be had: .*500"):
        rows_of({"brokers": url})


def test_a_segment_that_expires_meanwhile_is_left_out_and_said(served: tuple[Answers, str]) -> None:
    answers, url = served
    reader = CommitLogReader(
        spark_schema(("keys", "physical_offset", "damage"), True), Options({"brokers": url, "damaged": "rows"})
    )
    parts = reader.partitions()
    answers.fail = lambda start, stop: 410 if start < answers.size else 200
    rows = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
    gone = [r for r in rows if r["damage"] is not None]
    assert [r["damage"].split(":")[0] for r in gone] == ["expired while it was read"]
    expected = [r.props["KEYS"] for r in read_plain(answers.root)[0] if r.phys_offset >= answers.size]
    assert [r["keys"] for r in rows if r["damage"] is None] == expected
    # A read that begins now does not stumble over it either.
    again = CommitLogReader(spark_schema(("keys",)), Options({"brokers": url}))
    assert sum(b.num_rows for p in again.partitions() for b in again.read(p)) == len(expected)


def test_reading_is_limited_in_rate(served: tuple[Answers, str]) -> None:
    answers, url = served
    began = time.monotonic()
    rows_of({"brokers": url, "rateLimit": str(answers.end)})
    # The first answers come at once; then a second for the whole log.
    assert time.monotonic() - began > 0.3
    # The limit of a run is that of its tasks together.
    assert Job(brokers=(url,), rate=1000).options(4)["rateLimit"] == "250"


def test_what_is_no_broker_is_said(served: tuple[Answers, str]) -> None:
    answers, url = served
    answers.get = lambda path: (200, b"<html>")  # type: ignore[method-assign]
    with pytest.raises(SourceError, match=r"gives no listing of a log"):
        rows_of({"brokers": url})
    answers.get = lambda path: (404, b"not here")  # type: ignore[method-assign]
    with pytest.raises(SourceError, match=r"answers 404: not here"):
        rows_of({"brokers": url})
