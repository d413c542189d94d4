"""The check of the archive finds what is missing, damaged or different, and accepts what a gap names."""

from __future__ import annotations

from pathlib import Path

import pytest
from gantry_broker.archive.manifest import Gap, State
from gantry_broker.store.log.record_reader import decode_records

from tests.archive.test_topic_restore import Log
from tests.chaos.archived import Final, check_archive, not_archived
from tests.chaos.history import Place, Sent


class Run:
    """A log that was archived, and what clients know of it."""

    def __init__(self, folder: Path) -> None:
        self.log = Log(folder)
        self.log.put("T", 0, 150)
        self.log.upload()
        store = self.log.store
        data = b"".join(piece for _, piece in store.log.chunks(0, store.log.end))
        self.final = Final(0, store.state.confirmed, data)
        self.promised = [
            Sent(r.body, 0, 1, "SEND_OK", Place(0, r.queue_offset), r.phys_offset)
            for r in decode_records(data)
            if r.topic == "T"
        ]

    def faults(self, *, sync: bool = True) -> list[str]:
        return list(check_archive(self.log.archive.group("a"), self.final, self.promised, sync=sync))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_an_archive_with_everything_has_no_fault(run: Run) -> None:
    assert run.faults() == run.faults(sync=False) == []


def test_an_end_that_is_not_archived_is_found(run: Run) -> None:
    run.log.put("T", 0, 3)
    run.final = run.final._replace(confirmed=run.log.store.state.confirmed)
    [fault] = run.faults()
    assert "the archive ends at" in fault


def test_bytes_that_differ_from_the_log_are_found(run: Run) -> None:
    data = bytearray(run.final.data)
    data[100_000] ^= 1
    run.final = run.final._replace(data=bytes(data))
    assert [f.partition(":")[0] for f in run.faults()] == ["ARCHIVE DIFFERS"]
    run.final = run.final._replace(start=120_000, data=bytes(data[120_000:]))
    assert run.faults() == [], "the log has it no longer"


def test_acknowledged_messages_that_it_lacks_are_found(run: Run) -> None:
    run.promised.append(Sent(b"gone", 0, 1, "SEND_OK", Place(0, 999), 70_000))
    [fault] = run.faults()
    assert fault.startswith("NOT ARCHIVED: b'gone' was SEND_OK")
    assert run.faults(sync=False) == []
    lost = run.promised[-1:]
    assert list(not_archived(lost, set(), State(gaps=(Gap(60_000, 80_000, "x"),)))) == []
    assert list(not_archived(lost, set(), State(gaps=(Gap(0, 60_000, "x"),)))) != []


def test_a_damaged_object_is_found(run: Run) -> None:
    state = run.log.archive.group("a").load()
    name = f"groups/a/parts/{state.parts[0].name}"
    objects = run.log.archive.objects.objects  # type: ignore[attr-defined]
    objects[name] = objects[name][:-60] + bytes(60)
    found = check_archive(run.log.archive.group("a"), run.final, run.promised, sync=True)
    assert next(found).startswith("ARCHIVE DAMAGED: ")
