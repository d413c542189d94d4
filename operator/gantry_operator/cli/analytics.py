"""`gantry analyze`, `gantry compact` and `gantry report`."""

from __future__ import annotations

import hashlib
import importlib
import json
import logging
import os
import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from gantry_operator.cli.errors import CliError, Exit
from gantry_operator.cli.options import ContextOption, DirOption, NamespaceOption, Output, OutputOption, on_kubernetes
from gantry_operator.cli.output import note, print_json, print_table
from gantry_operator.cli.progress import Progress
from gantry_operator.cli.target import find_local
from gantry_operator.cluster.amounts import size

if TYPE_CHECKING:
    from gantry_spark.report import Job

NEED = "Spark, numpy, pyarrow and plotly are needed for this: pip install 'gantry-mq[spark]'"
SourceArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[CLUSTER|DIR]",
        help="A local cluster's name, a store directory, brokers' HTTP addresses (GROUP=http://...), or a NameServer "
        "(host:port), or an archive (s3://...). Left out: the cluster that you started.",
        show_default=False,
    ),
]
TokenOption = Annotated[
    Path | None, typer.Option(help="Holds the brokers' admin token. Left out: the file of a local cluster.")
]
CredentialsOption = Annotated[
    Path | None,
    typer.Option(help="JSON with accessKey and secretKey of a user, for NameServers with authentication."),
]
_Done = TypeVar("_Done")


@dataclass(frozen=True)
class Source:
    """The source of the logs: one of the last three fields is set."""

    name: str
    paths: tuple[str, ...] = ()
    brokers: tuple[str, ...] = ()
    cluster: str = ""
    folder: Path | None = None

    def token_file(self, given: Path | None) -> str | None:
        """Return the file with the brokers' admin token: the given one, or that of a local cluster."""
        from gantry_operator.platforms.local.folder import ClusterFolder

        if given is not None:
            return str(given)
        return None if self.folder is None else str(ClusterFolder(self.folder).token_file)

    @property
    def out(self) -> str:
        """The default folder for its reports."""
        from gantry_operator.platforms.local.folder import state_home

        if self.folder is not None:
            return str(self.folder / "analytics")
        identity = ";".join((*self.paths, *self.brokers, self.cluster))
        mark = hashlib.sha256(identity.encode()).hexdigest()[:8]
        return str(state_home() / "analytics" / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', self.name)}-{mark}")


def resolve(text: str | None, directory: Path | None = None) -> Source:
    """Resolve the source. Raises CliError if there is no such cluster or directory."""
    if text is not None and directory is None:
        if re.match(r"([^=/]+=)?https?://", text):
            return Source(text, brokers=tuple(text.split(",")))
        if re.match(r"(s3|gs|az)://", text):
            return Source(text, paths=(text,))
        if Path(text.removeprefix("file://")).exists():
            text = text.removeprefix("file://")
            path = str(Path(text).absolute())
            return Source(path, paths=(path,))
        if re.fullmatch(r"[^/;,\s]+:[0-9]+(;[^/;,\s]+:[0-9]+)*", text):
            return Source(text, cluster=text)
        if "/" in text:
            raise CliError(f"{text} does not exist; give a store directory, the one that holds commitlog/", Exit.USAGE)
    from pydantic import ValidationError

    from gantry_operator.platforms.local.live import http_urls
    from gantry_operator.platforms.local.manifest import load_saved
    from gantry_operator.platforms.local.ports import NoPort

    try:
        folder = find_local(directory, text)
        brokers = tuple(http_urls(folder))
        cluster = load_saved(folder).name
    except ValidationError as error:
        raise CliError(f"the cluster's folder holds a manifest of another version: {error}") from None
    except NoPort as error:
        raise CliError(str(error)) from None
    return Source(cluster, brokers=brokers, folder=folder.root)


def _spark(memory: str, log_bytes: int) -> Any:
    """Return a local session for a log of this size. Raises CliError with the packages to install."""
    try:
        from gantry_spark.session import NoJava, session
    except ModuleNotFoundError as error:
        raise CliError(f"{error.name} is missing. {NEED}") from None
    try:
        spark = session("gantry", conf={"spark.driver.memory": memory}, single_read_bytes=log_bytes)
    except NoJava as error:
        raise CliError(str(error)) from None
    return spark


class _Said(logging.Handler):
    """Gives the steps that gantry_spark logs to a progress."""

    def __init__(self, progress: Progress) -> None:
        super().__init__(logging.INFO)
        self._progress = progress

    def emit(self, record: logging.LogRecord) -> None:
        (note if record.levelno >= logging.WARNING else self._progress.say)(record.getMessage())


@contextmanager
def _steps(progress: Progress) -> Iterator[None]:
    steps, handler = logging.getLogger("gantry_spark"), _Said(progress)
    before = steps.level
    steps.setLevel(logging.INFO)
    steps.addHandler(handler)
    try:
        yield
    finally:
        steps.removeHandler(handler)
        steps.setLevel(before)


def _tasks(spark: Any) -> tuple[int, int | None] | None:
    """Tasks of the stages that run at the moment: those that are done, and all. None: there are none."""
    from py4j.protocol import Py4JError

    try:
        tracker = spark.sparkContext.statusTracker()
        stages = [s for s in map(tracker.getStageInfo, tracker.getActiveStageIds()) if s is not None]
    except (Py4JError, OSError, AttributeError):
        return None  # It ends.
    return (sum(s.numCompletedTasks for s in stages), sum(s.numTasks for s in stages)) if stages else None


def _with_spark(memory: str, label: str, check: Callable[[], int], work: Callable[[Any], _Done]) -> _Done:
    """Run `check` first, then work in a session. Raises CliError. `check` returns the bytes of the logs."""
    from gantry_spark.errors import error_message

    spark = None
    try:
        with (
            Progress(label, unit="tasks", poll=lambda: None if spark is None else _tasks(spark)) as progress,
            _steps(progress),
        ):
            log_bytes = check()
            progress.say("starting Spark")
            spark = _spark(memory, log_bytes)
            progress.say(f"reading {size(log_bytes)} of log")
            return work(spark)
    except CliError:
        raise
    except Exception as error:
        if os.environ.get("GANTRY_TRACEBACK"):
            raise
        raise CliError(error_message(error)) from None
    finally:
        if spark is not None:
            spark.stop()


def _job(source: Source, **more: Any) -> Job:
    try:
        from gantry_spark.report import Job
    except ModuleNotFoundError as error:
        raise CliError(f"{error.name} is missing. {NEED}") from None
    return Job(paths=source.paths, brokers=source.brokers, cluster=source.cluster, name=source.name, **more)


def _hours(text: str, option: str) -> float:
    from gantry_spark.main import parse_hours

    try:
        return parse_hours(text)
    except ValueError as error:
        raise CliError(f"{option}: {error}", Exit.USAGE) from None


def _memory(text: str) -> str:
    from gantry_spark.main import parse_memory

    try:
        return parse_memory(text)
    except ValueError as error:
        raise CliError(f"--memory: {error}", Exit.USAGE) from None


def analyze(
    source: SourceArgument = None,
    topics: Annotated[
        list[str] | None,
        typer.Option(help="Only these topics, with * and ? as wildcards. Repeat it, or separate by commas."),
    ] = None,
    since: Annotated[str | None, typer.Option(help="Only records of the last 12h, 7d, ...")] = None,
    out: Annotated[
        str | None, typer.Option(help="Folder for reports and state: any path that Hadoop supports.")
    ] = None,
    tombstones: Annotated[str, typer.Option(help="Retention of tombstones for compaction.")] = "24h",
    top: Annotated[int, typer.Option(min=1, max=1000, help="Hot keys of each topic.")] = 20,
    rate: Annotated[int, typer.Option(min=0, help="Bytes a second read from brokers; 0: no limit.")] = 0,
    token_file: TokenOption = None,
    credentials_file: CredentialsOption = None,
    memory: Annotated[str, typer.Option(help="Memory of Spark's JVM.")] = "1g",
    timeout: Annotated[float, typer.Option(help="Kubernetes: seconds to wait for the run.")] = 1800.0,
    directory: DirOption = None,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = Output.text,
) -> None:
    """Report for each topic the savings of log compaction, hot keys, growth and ages, and the consumer groups that
    compaction would affect.

    A second run reads only new records. On Kubernetes the operator starts the cluster's own job (spec.analytics).
    """
    as_json = output == Output.json
    if on_kubernetes(context, namespace):
        given = {"--topics": topics, "--since": since, "--out": out, "--rate": rate, "--token-file": token_file,
                 "--credentials-file": credentials_file}  # fmt: skip
        for option, value in given.items():
            if value:
                raise CliError(f"{option} is for local runs; on Kubernetes write it into spec.analytics", Exit.USAGE)
        _analyze_there(source, context, namespace, timeout, as_json)
        return
    chosen_source = resolve(source, directory)
    chosen = tuple(t.strip() for text in topics or [] for t in text.split(",") if t.strip())
    job = _job(
        chosen_source,
        out=out or chosen_source.out,
        topics=chosen,
        window_hours=_hours(since, "--since") if since else None,
        tombstone_hours=_hours(tombstones, "--tombstones"),
        top=top,
        rate=rate,
        token_file=chosen_source.token_file(token_file),
        credentials_file=None if credentials_file is None else str(credentials_file),
    )
    from gantry_spark.report import preflight, run

    done = _with_spark(
        _memory(memory), f"analyzing {chosen_source.name}", lambda: preflight(job), lambda spark: run(spark, job)
    )
    if as_json:
        print_json(done.report)
    else:
        _show(done.report)
    note(f"report: {done.out}/report.html ({opens(source, out, directory)})")


def opens(source: str | None, out: str | None, directory: Path | None) -> str:
    """Return the command that opens the report of an `analyze` with these arguments."""
    options = {"--out": out} if out else {"--dir": directory and str(directory)}
    given = [word for name, value in options.items() if value for word in (name, value)]
    return shlex.join(["gantry", "report", *given, *([source] if source and not out else [])])


def _ondemand() -> Any:
    """Return the module for Kubernetes. Raises CliError with the packages to install."""
    try:
        return importlib.import_module("gantry_operator.cli.analytics_on_demand")
    except ModuleNotFoundError as error:
        raise CliError(
            f"Kubernetes needs more than a plain install ({error.name} is missing): pip install 'gantry-mq[operator]'"
        ) from None


def _analyze_there(name: str | None, context: str | None, namespace: str | None, timeout: float, as_json: bool) -> None:
    import asyncio

    there = _ondemand()
    with Progress("analyzing on Kubernetes") as progress:
        status = asyncio.run(there.analyze(context, namespace, name, timeout, progress.say))
        progress.say(f"fetching {status.get('report')}")
        _, data = asyncio.run(there.fetch(context, namespace, name, "report.json"))
    note(str(status.get("message", "")))
    report = json.loads(data)
    if as_json:
        print_json(report)
    else:
        _show(report)


def _show(report: dict[str, Any]) -> None:
    rows = []
    for t in report["topics"]:
        if t["kind"] != "user":
            continue
        saved = f"{size(t['savedBytes'])} ({t['savedBytes'] / t['bytes']:.0%})" if t["savedBytes"] else "-"
        rows.append((
            t["topic"], f"{t['records']:,}", size(t["bytes"]), f"{t['distinctKeys']:,}", f"{t['supersededRecords']:,}",
            saved, f"{t['recommendation']}. {t['reason']}",
        ))  # fmt: skip
    numbers = ("RECORDS", "BYTES", "KEYS", "SUPERSEDED", "SAVES")
    print_table(("TOPIC", *numbers, "RECOMMENDATION"), rows, right=numbers)
    growth = report["growth"]
    full = f"; the disk is full at {growth['fullAt']}" if growth["diskFullBeforeRetention"] else ""
    note(f"growth: {size(growth['bytesPerHour'])} an hour{full}")
    if report.get("missing"):
        note(f"missing: {', '.join(report['missing'])}; the notes say why")
    if report["damage"]["ranges"]:
        note(f"damage: {_damage(report['damage'])}; see the report")
    for text in report["notes"]:
        note(f"note: {text}")


def _damage(damage: dict[str, Any]) -> str:
    return f"{damage['ranges']:,} range{'' if damage['ranges'] == 1 else 's'}, {size(damage['bytes'])}"


def compact(
    topic: Annotated[str, typer.Argument(help="The topic.", show_default=False)],
    source: SourceArgument = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only report the savings.")] = False,
    out: Annotated[Path | None, typer.Option(help="New store directory for the compacted log.")] = None,
    tombstones: Annotated[str, typer.Option(help="Retention of tombstones.")] = "24h",
    as_of: Annotated[
        str | None,
        typer.Option(help="The time from which tombstones' age is counted, as a report's asOf. Default: now."),
    ] = None,
    token_file: TokenOption = None,
    memory: Annotated[str, typer.Option(help="Memory of Spark's JVM.")] = "1g",
    directory: DirOption = None,
    output: OutputOption = Output.text,
) -> None:
    """Keep only the newest record of each key of a topic: report the savings, or write the compacted log.

    The live cluster does not change. OUT is a store directory for each broker group, which a broker can open.
    """
    as_json = output == Output.json
    if dry_run == (out is not None):
        raise CliError("say what to do: --dry-run, or --out DIR", Exit.USAGE)
    chosen_source = resolve(source, directory)
    job = _job(
        chosen_source,
        tombstone_hours=_hours(tombstones, "--tombstones"),
        now_ms=None if as_of is None else _as_of(as_of),
        token_file=chosen_source.token_file(token_file),
    )
    from gantry_spark.compact import check_compaction
    from gantry_spark.compact import compact as run_compact

    done = _with_spark(
        _memory(memory),
        f"compacting {topic}",
        lambda: check_compaction(job, topic, out),
        lambda spark: run_compact(spark, job, topic, out),
    )
    if as_json:
        print_json(done)
        return
    verb = "would go" if dry_run else "are gone"
    typer.echo(
        f"{topic}: {done['savedRecords']:,} of {done['records']:,} records {verb}, {size(done['savedBytes'])} of "
        f"{size(done['bytes'])}; {done['keptRecords']:,} stay"
    )
    if done["damage"]["ranges"]:
        note(f"damage: {_damage(done['damage'])}; newest versions may have been there")
    for store in done["stores"]:
        note(f"written: {store['path']} ({store['log']}: {store['records']:,} records, {size(store['bytes'])})")


def _as_of(text: str) -> int:
    from datetime import UTC, datetime

    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise CliError(f"--as-of: {text!r}; write a time such as 2026-01-31T12:00:00Z", Exit.USAGE) from None
    return round((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000)


def report(
    source: SourceArgument = None,
    out: Annotated[str | None, typer.Option(help="The folder of `analyze --out`.")] = None,
    copy: Annotated[Path | None, typer.Option("--save", help="Copy the page there.")] = None,
    browser: Annotated[bool, typer.Option(help="Open it in a browser.")] = True,
    directory: DirOption = None,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Open the page of the last report. On Kubernetes a pod that mounts the output fetches it first."""
    if on_kubernetes(context, namespace):
        page = _fetched(source, context, namespace, copy)
    else:
        folder = _folder(out or resolve(source, directory).out)
        page = folder / "report.html"
        if not page.exists():
            raise CliError(f"there is no report in {folder} yet: run gantry analyze {source or ''}".rstrip())
        if copy is not None:
            page = _save(page.read_bytes(), copy)
    typer.echo(str(page))
    if browser and copy is None and os.isatty(1):
        import webbrowser

        webbrowser.open(page.absolute().as_uri())


def _folder(out: str) -> Path:
    from gantry_spark.output_store import is_local, local_path

    if not is_local(out):
        raise CliError(
            f"--out: {out} is not on this machine: fetch {out.rstrip('/')}/report.html from there", Exit.USAGE
        )
    return local_path(out)


def _save(page: bytes, path: Path) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(page)
    except OSError as error:
        from gantry_operator.registry.disk_errors import DiskError, disk_error

        reason = disk_error(error, path)
        message = str(reason) if isinstance(reason, DiskError) else f"{path} cannot be written: {error.strerror}"
        raise CliError(message) from None
    return path


def _fetched(name: str | None, context: str | None, namespace: str | None, copy: Path | None) -> Path:
    import asyncio

    from gantry_operator.platforms.local.folder import make_private, state_home

    with Progress("fetching the report"):
        cluster, page = asyncio.run(_ondemand().fetch(context, namespace, name, "report.html"))
    if copy is None:
        make_private(state_home())
    return _save(page, copy or state_home() / "analytics" / cluster / "report.html")


def register(app: typer.Typer) -> None:
    """Add the commands to an application."""
    app.command()(analyze)
    app.command()(compact)
    app.command()(report)
