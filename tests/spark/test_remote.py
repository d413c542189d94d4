"""Reading a live cluster over HTTP: slaves first, confirmed records only, retries, expired segments, the token."""

from __future__ import annotations

import json
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import pytest
from gantry_broker.contracts.models import LogInfo, MemberRef, SegmentInfo
from gantry_broker.protocol.bodies import BrokerData, ClusterInfo
from gantry_broker.protocol.frame import Frame
from gantry_operator.api.manifest import load_manifest
from gantry_operator.cli.analytics import resolve
from gantry_operator.cli.errors import CliError
from gantry_operator.plan.plan import plan
from gantry_operator.platforms.kubernetes.analytics.status import summary_text
from gantry_operator.platforms.local.folder import ClusterFolder
from gantry_operator.platforms.local.live import http_urls
from gantry_operator.platforms.local.manifest import save_manifest
from gantry_operator.platforms.local.ports import Ports
from gantry_spark import remote, remoting
from gantry_spark.compact import check_compaction, compact
from gantry_spark.errors import SourceError
from gantry_spark.main import run_summary
from gantry_spark.report import Job, run
from gantry_spark.report import _first_times as first_times
from gantry_spark.schema import spark_schema
from gantry_spark.source import CommitLogReader, CommitLogStream, Options

from tests.spark.live_cluster import LiveCluster
from tests.spark.reference_log import LogWriter, Message, read_plain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with closing(LiveCluster(tmp_path_factory.mktemp("cluster"), token="secret")) as made:
        yield made


def rows_of(options: dict[str, str]) -> list[dict[str, Any]]:
    columns = ("log", "topic", "keys", "body", "physical_offset", "damage")
    chosen = Options(options)
    reader = CommitLogReader(spark_schema(columns, chosen.damage_rows), chosen)
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


def test_a_live_cluster(spark: SparkSession, cluster: LiveCluster, tmp_path: Path) -> None:
    keys = [f"k{i % 40:02d}" for i in range(400)]
    bodies = [f"body {i:03d}".encode() for i in range(400)]
    assert len(cluster.send("Orders", bodies, keys)) == 400
    cluster.caught_up()
    assert cluster.token_file is not None
    token = str(cluster.token_file)

    with pytest.raises(SourceError, match=r"refuses access \(401\): set option tokenFile to a file with the"):
        rows_of({"brokers": ",".join(cluster.urls)})
    options = {"brokers": ",".join(cluster.urls), "tokenFile": token}
    found = [r for r in rows_of(options) if r["topic"] == "Orders"]
    assert [(r["keys"], r["body"]) for r in found] == list(zip(keys, bodies, strict=True))
    assert {r["log"] for r in found} == {"a"}
    by_name_server = rows_of({"cluster": cluster.name_server, "tokenFile": token})
    assert [r for r in by_name_server if r["topic"] == "Orders"] == found
    (log,) = remote.open_logs(cluster.urls, token, 0)
    assert [url for url, _ in log.sources] == [cluster.urls[1], cluster.urls[0]]  # The slave is first.
    assert log.master == cluster.urls[0]

    job = Job(brokers=tuple(cluster.urls), token_file=token, name="demo", out=str(tmp_path / "out"), rate=64 << 20)
    report = run(spark, job).report
    orders = next(t for t in report["topics"] if t["topic"] == "Orders")
    assert (orders["records"], orders["distinctKeys"], orders["supersededRecords"]) == (400, 40, 360)
    assert orders["supersededBytes"] == orders["savedBytes"] == 360 * orders["bytes"] // 400
    assert report["growth"]["disks"][0]["freeBytes"] > 0
    assert not report["notes"]

    # Without the slave the group confirms nothing more, and the master serves the bytes.
    cluster.kill(1)
    first = cluster.send_unconfirmed("Orders", b"nobody confirmed this")
    assert first != "SEND_OK"
    assert [r for r in rows_of(options) if r["topic"] == "Orders"] == found


class Answers:
    """A broker's HTTP interface over the bytes of a store directory. A test can make it fail."""

    def __init__(self, root: Path, group: str = "a") -> None:
        self.root = root
        self.group = group
        self.segments = sorted((root / "commitlog").iterdir())
        self.size = self.segments[0].stat().st_size
        self.end = max(r.phys_offset + r.size for r in read_plain(root)[0])
        self.asked: list[tuple[int, int]] = []
        self.fail: Callable[[int, int], int] = lambda start, stop: 200
        self.closes = False
        """It closes each connection after an answer that does not say so."""
        self.lies_by = 0
        """Bytes that an answer's length names and that do not follow."""

    def info(self) -> LogInfo:
        starts = [int(p.name) for p in self.segments]
        segments = [SegmentInfo(start=s, end=min(s + self.size, self.end)) for s in starts]
        return LogInfo(
            cluster="demo", group=self.group, member=MemberRef(member=0, incarnation="x"), role="Master",
            start=starts[0], confirmed=self.end, segment_bytes=self.size, segments=segments,
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


@contextmanager
def serving(answers: Answers) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            code, body = answers.get(self.path)
            self.send_response(code)
            self.send_header("Content-Length", str(len(body) + answers.lies_by))
            self.end_headers()
            self.wfile.write(body)
            self.close_connection = answers.closes or answers.lies_by > 0

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Answers, str]]:
    writer = LogWriter(tmp_path / "store")
    writer.extend(Message(body=b"x" * 500, key=str(i)) for i in range(400))
    answers = Answers(tmp_path / "store")
    with serving(answers) as url:
        yield answers, url


def test_failed_requests_are_retried(served: tuple[Answers, str], monkeypatch: pytest.MonkeyPatch) -> None:
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
    with pytest.raises(SourceError, match=r"bytes 0 to .* of the log are not available: .*500"):
        rows_of({"brokers": url})


def test_a_connection_that_was_closed_meanwhile_is_made_again(
    served: tuple[Answers, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "ATTEMPTS", 1)
    answers, url = served
    answers.closes = True
    assert len(rows_of({"brokers": url})) == 400
    assert len(answers.asked) > 10


@pytest.mark.parametrize(("by", "why"), [(100, "ended early"), (1 << 40, "200")])
def test_an_answer_with_another_length_than_it_says_is_none(
    served: tuple[Answers, str], monkeypatch: pytest.MonkeyPatch, by: int, why: str
) -> None:
    monkeypatch.setattr(remote, "ATTEMPTS", 1)
    answers, url = served
    (log,) = remote.open_logs([url], None, 0)
    answers.lies_by = by
    with log.open(0) as source, pytest.raises(SourceError, match=f"are not available: .*{why}"):
        source.read_into(0, memoryview(bytearray(4_000)))


def test_a_segment_expired_during_the_read_is_reported(served: tuple[Answers, str]) -> None:
    answers, url = served
    reader = CommitLogReader(
        spark_schema(("keys", "physical_offset", "damage"), True), Options({"brokers": url, "damaged": "rows"})
    )
    parts = reader.partitions()
    answers.fail = lambda start, stop: 410 if start < answers.size else 200
    rows = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
    gone = [r for r in rows if r["damage"] is not None]
    assert [r["damage"].split(":")[0] for r in gone] == ["expired during the read"]
    expected = [r.props["KEYS"] for r in read_plain(answers.root)[0] if r.phys_offset >= answers.size]
    assert [r["keys"] for r in rows if r["damage"] is None] == expected
    # A read that begins now skips the expired segment too.
    again = CommitLogReader(spark_schema(("keys",)), Options({"brokers": url}))
    assert sum(b.num_rows for p in again.partitions() for b in again.read(p)) == len(expected)


def test_the_read_rate_is_limited(served: tuple[Answers, str]) -> None:
    answers, url = served
    began = time.monotonic()
    rows_of({"brokers": url, "rateLimit": str(answers.end)})
    # The first responses are immediate. Then the whole log takes one more second.
    assert time.monotonic() - began > 0.3
    # The limit of a run is the sum of the limits of its tasks.
    assert Job(brokers=(url,), rate=1000).options(4)["rateLimit"] == "250"


def test_an_error_names_a_server_that_is_no_broker(served: tuple[Answers, str]) -> None:
    answers, url = served
    answers.get = lambda path: (200, b"<html>")  # type: ignore[method-assign]
    with pytest.raises(SourceError, match=r"returns no listing of a log"):
        rows_of({"brokers": url})
    answers.get = lambda path: (404, b"not here")  # type: ignore[method-assign]
    with pytest.raises(SourceError, match=r"answers 404: not here"):
        rows_of({"brokers": url})


DEAD = "http://127.0.0.1:1"


def test_a_group_without_any_answer_fails_the_run(
    spark: SparkSession, served: tuple[Answers, str], tmp_path: Path
) -> None:
    _, url = served
    says = rf"no member of group b answers, .*: broker {DEAD} does not answer: .*; broker {DEAD}0 does not answer"
    dead = f"b={DEAD}", f"b={DEAD}0"
    with pytest.raises(SourceError, match=says):
        rows_of({"brokers": ",".join((f"a={url}", *dead))})
    job = Job(brokers=(f"a={url}", *dead), out=str(tmp_path / "out"))
    with pytest.raises(SourceError, match=says):
        run(spark, job)
    assert not (tmp_path / "out" / "report.json").exists()
    for work in (lambda out: check_compaction(job, "Orders", out), lambda out: compact(spark, job, "Orders", out)):
        with pytest.raises(SourceError, match=says):
            work(tmp_path / "compacted")
    with pytest.raises(SourceError, match=rf"broker {url} is of group a, not of b"):
        rows_of({"brokers": f"b={url}"})

    # One member that answers is enough.
    half = Job(brokers=(f"a={DEAD}", f"a={url}"))
    assert len(rows_of({"brokers": ",".join(half.brokers)})) == 400
    report = run(spark, half).report
    assert report["totals"]["records"] == 400
    assert not [n for n in report["notes"] if DEAD in n]
    assert compact(spark, half, "Orders", tmp_path / "compacted")["keptRecords"] == 400


def test_an_unreachable_address_without_group_is_reported(
    spark: SparkSession, served: tuple[Answers, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _, url = served
    says = (
        rf"broker {DEAD} does not answer: .*; if it belongs to another group than a, that group's records are missing"
    )
    assert len(rows_of({"brokers": f"{url},{DEAD}"})) == 400
    assert re.search(says, caplog.text)
    out = str(tmp_path / "out")
    report = run(spark, Job(brokers=(url, DEAD), out=out)).report
    assert len([n for n in report["notes"] if re.match(says, n)]) == 1
    assert run_summary(report, None)["notes"][0].startswith(f"broker {DEAD} does not answer")
    assert f"Note: broker {DEAD} does not answer" in summary_text(run_summary(report, None))
    for work in (check_compaction, lambda *args: compact(spark, *args)):
        with pytest.raises(SourceError, match=says):
            work(Job(brokers=(url, DEAD)), "Orders", tmp_path / "compacted")

    # The state keeps the counts of another group.
    LogWriter(tmp_path / "other").append(Message(key="other"))
    with serving(Answers(tmp_path / "other", "b")) as other:
        assert run(spark, Job(brokers=(url, other), out=out)).report["totals"]["records"] == 401
    good = (tmp_path / "out" / "state" / "state.json").read_bytes()
    with pytest.raises(SourceError, match=r"the last run read log b, and none of its members answers: broker"):
        run(spark, Job(brokers=(url, other), out=out))
    assert (tmp_path / "out" / "state" / "state.json").read_bytes() == good
    # A log without addresses was removed on purpose.
    alone = run(spark, Job(brokers=(url,), out=out)).report
    assert alone["totals"]["records"] == 400
    assert "b: the last run read this log, and it no longer exists: left out" in alone["notes"]


def test_an_unreachable_log_is_not_read_as_empty(served: tuple[Answers, str]) -> None:
    _, url = served
    brokers = f"{url},{DEAD}"
    with pytest.raises(SourceError, match="log b is no longer available"):
        rows_of({"brokers": brokers, "ranges": '{"a": [[0, 1000]], "b": [[0, 1000]]}'})
    stream = CommitLogStream(spark_schema(("keys",)), Options({"brokers": brokers}))
    assert stream.partitions({"a": 0, "b": 7}, {"a": 1000, "b": 7})
    with pytest.raises(SourceError, match="log b is no longer available"):
        stream.partitions({"a": 0, "b": 7}, {"a": 1000, "b": 900})


def test_groups_of_a_name_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group without a broker that answers is an error. A broker of Apache RocketMQ has no HTTP interface."""
    info = {"10.0.0.1:1": {"gantryHttp": "10.0.0.1:2"}, "10.0.0.4:1": {"brokerVersion": "1"}}
    groups = {"a": BrokerData("demo", "a", {0: "10.0.0.1:1", 1: "10.0.0.2:1"})}
    monkeypatch.setattr(remoting, "_runtime_info", lambda address, trust: info.get(address))

    def call(*given: object, **options: object) -> Frame:
        return Frame(0, body=json.dumps(ClusterInfo(groups, {"demo": ["a"]}).to_json()).encode())

    monkeypatch.setattr(remoting, "call", call)
    assert remoting.broker_urls("ns:9876") == ["a=http://10.0.0.1:2"]
    groups["apache"] = BrokerData("other", "apache", {0: "10.0.0.4:1"})
    assert remoting.broker_urls("ns:9876") == ["a=http://10.0.0.1:2"]
    groups["b"] = BrokerData("demo", "b", {0: "10.0.0.3:1"})
    with pytest.raises(SourceError, match=r"no broker names the HTTP interface of group b \(10.0.0.3:1\), known"):
        remoting.broker_urls("ns:9876")


def test_an_unusable_token_file_is_not_reported_as_an_unreachable_broker(tmp_path: Path) -> None:
    file = tmp_path / "token"
    with pytest.raises(SourceError, match=rf"^option tokenFile: {file} cannot be read: No such file"):
        remote.open_logs([f"a={DEAD}"], str(file), 0)
    for content in (b"", b"\n", b"a\nb", b"\xff\xfe", "ü".encode()):
        file.write_bytes(content)
        with pytest.raises(SourceError, match=rf"^option tokenFile: {file} holds no token"):
            remote.open_logs([f"a={DEAD}"], str(file), 0)
    file.write_bytes(b"se cret\n")
    assert remote.headers(str(file)) == {"Authorization": "Bearer se cret"}


def test_addresses_of_a_local_cluster_have_their_group(tmp_path: Path) -> None:
    folder = ClusterFolder(tmp_path)
    cluster = load_manifest(Path(__file__).parents[2] / "examples" / "quickstart.yaml")
    cluster.spec.brokerGroups.append(cluster.spec.brokerGroups[0].model_copy(update={"name": "b"}))
    save_manifest(folder, cluster)
    with pytest.raises(CliError, match=r"holds no port of .*: start the cluster with gantry up"):
        resolve(None, tmp_path)
    ports = Ports.load(folder.ports)
    ports.choose(plan(cluster), frozenset())
    members = [f"demo-{group}-{i}" for group in "ab" for i in range(3)]
    expected = [f"{name[5]}=http://127.0.0.1:{ports[f'{name}/http']}" for name in members]
    assert http_urls(folder) == expected
    assert resolve(None, tmp_path).brokers == tuple(expected)
    assert [remote.split_group(url)[0] for url in expected] == list("aaabbb")
    folder.manifest.write_text("{")
    with pytest.raises(CliError, match="holds a manifest of another version"):
        resolve(None, tmp_path)


def test_addresses_with_their_group_on_the_command_line() -> None:
    text = "a=http://10.0.0.1:2,b=https://10.0.0.2:2"
    assert resolve(text).brokers == tuple(text.split(","))
    assert resolve("http://10.0.0.1:2").brokers == ("http://10.0.0.1:2",)
    assert remote.split_group("a=10.0.0.1:2") == ("a", "http://10.0.0.1:2")
    assert remote.split_group("http://10.0.0.1:2/?a=b") == (None, "http://10.0.0.1:2/?a=b")


def test_opening_many_segments_is_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading the trusted certificates takes 25 ms. The listing already has the first store time of each segment."""
    made: list[int] = []
    create = ssl.create_default_context

    def counted(*args: Any, **named: Any) -> ssl.SSLContext:
        made.append(1)
        return create(*args, **named)

    monkeypatch.setattr(ssl, "create_default_context", counted)
    size = 1 << 20
    segments = [SegmentInfo(start=i * size, end=(i + 1) * size, first_store_ms=1 + i) for i in range(1000)]
    info = LogInfo(
        cluster="demo", group="a", member=MemberRef(member=0, incarnation="x"), role="Master", start=0,
        confirmed=1000 * size, segment_bytes=size, segments=segments,
    )  # fmt: skip
    log = remote.RemoteLog([(DEAD, info)], None, 0)
    for index in range(len(log.segments)):
        log.open(index).close()
    assert len(made) <= 1
    opened: list[int] = []
    monkeypatch.setattr(log, "open", opened.append)
    assert first_times(log) == [1 + i for i in range(1000)]
    assert not opened


def test_a_missing_first_store_time_is_read(served: tuple[Answers, str]) -> None:
    _, url = served
    (log,) = remote.open_logs([url], None, 0)
    assert {s.first_ms for s in log.segments} == {-1}
    assert first_times(log) == [1_700_000_000_000] * len(log.segments)
