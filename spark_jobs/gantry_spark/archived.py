"""The logs of a cluster in its archive: object storage, or a folder. No broker is touched.

A group of the archive is a log. Its segments are those of the group's commit log; a task fetches the objects of its
range and checks their checksums.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gantry_broker.archive.errors import ArchiveError, Missing
from gantry_broker.archive.manifest import Part, State

from gantry_spark.directory import Segment
from gantry_spark.errors import SourceError
from gantry_spark.kept import KeptBytes

if TYPE_CHECKING:
    from gantry_broker.archive.chain import Archive, GroupArchive
    from gantry_broker.archive.segment import Directory, RangeReader

CLOUD: Final = re.compile(r"(s3|gs|az)://")


@dataclass(frozen=True)
class ArchivePlace:
    """Where an archive lies; see `gantry_broker.config.ArchivePlace`. Each task opens it again."""

    url: str
    endpoint: str | None = None
    region: str | None = None
    credentials: str | None = None
    key_file: str | None = None

    def open(self) -> Archive:
        """Return the archive. Raises SourceError."""
        from gantry_broker.archive.opening import open_archive
        from gantry_broker.config import ArchivePlace as Place

        try:
            return open_archive(
                Place(
                    url=self.url,
                    endpoint=self.endpoint,
                    region=self.region,
                    credentials=None if self.credentials is None else Path(self.credentials),
                    key_file=None if self.key_file is None else Path(self.key_file),
                )
            )
        except ArchiveError as error:
            raise SourceError(str(error)) from None


def archive_url(path: str) -> str | None:
    """Return the URL of the archive that a path names; None: it is a store's folder."""
    if CLOUD.match(path):
        return path
    root = Path(path.removeprefix("file://"))
    if (root / "identity").is_dir() and (root / "groups").is_dir():
        return f"file://{root.absolute()}"
    return None


class ArchivedLog:
    """The archived log of one group, as the planner and the tasks use it."""

    unreachable: tuple[str, ...] = ()
    """See `remote.RemoteLog`. Always empty: what cannot be read raises SourceError."""

    def __init__(self, place: ArchivePlace, group: str, state: State) -> None:
        self.place = place
        self.name = group
        self.parts = state.parts
        self.segments = list(_segments(state))

    def open(self, index: int) -> ArchivedBytes:
        """Open a segment. Nothing is fetched yet."""
        segment = self.segments[index]
        parts = [p for p in self.parts if p.end > segment.start and p.start < segment.limit]
        return ArchivedBytes(self.place, self.name, parts, segment.limit)


def open_logs(place: ArchivePlace) -> list[ArchivedLog]:
    """Return the logs of all groups of an archive. Raises SourceError."""
    archive = place.open()
    try:
        logs = [ArchivedLog(place, name, archive.group(name).load()) for name in archive.groups()]
    except ArchiveError as error:
        raise SourceError(str(error)) from None
    if not any(log.segments for log in logs):
        raise SourceError(f"{place.url} has no archive with records: check the URL, or wait for the first upload")
    return logs


def _segments(state: State) -> Iterator[Segment]:
    """Return the segments of a log, as far as the archive has them. A gap ends one."""
    size = state.segment_size
    run: list[Part] = []
    for part in (*state.parts, None):
        if part is not None and run and part.start == run[-1].end and part.start % size:
            run.append(part)
            continue
        if run:
            start, limit = run[0].start, run[-1].end
            yield Segment(start, start - start % size + size, limit, "", run[0].first_ms or -1)
        run = [] if part is None else [part]


class ArchivedBytes(KeptBytes):
    """Bytes of one segment by log offset. A small read fetches the block around it, a larger one the whole object."""

    def __init__(self, place: ArchivePlace, group: str, parts: list[Part], limit: int) -> None:
        super().__init__(limit)
        self._place = place
        self._name = group
        self._parts = parts
        self._group: GroupArchive | None = None
        self._readers: dict[str, tuple[RangeReader, Directory]] = {}

    def _fetch(self, at: int, much: bool) -> tuple[int, bytes]:
        try:
            return self._piece(at, much)
        except ArchiveError as error:
            raise SourceError(str(error)) from None

    def _piece(self, at: int, whole: bool) -> tuple[int, bytes]:
        part = next((p for p in self._parts if p.start <= at < p.end), None)
        if part is None:
            raise Missing(f"the archive of group {self._name} has no byte {at} of the log")
        if self._group is None:
            self._group = self._place.open().group(self._name)
        if whole:
            reader = self._group.whole(part)
            directory = reader.directory()
            return part.start, b"".join(reader.block(directory, block) for block in directory.blocks)
        if part.name not in self._readers:
            reader = self._group.reader(part)
            self._readers = {part.name: (reader, reader.directory())}
        reader, directory = self._readers[part.name]
        (block,) = directory.blocks_of(at, at + 1)
        return block.start, reader.block(directory, block)

    def close(self) -> None:
        """Give up what is kept."""
        super().close()
        self._readers = {}
