"""`ObjectStore` over a real S3 server and over a folder: the same results for the same calls."""

from __future__ import annotations

from pathlib import Path

import pytest
from gantry_broker.archive.chain import Archive
from gantry_broker.archive.errors import ArchiveError, Missing, Unavailable
from gantry_broker.archive.objects import Location, ObjectStore

from tests.archive.s3 import S3Server
from tests.archive.s3 import server as server


@pytest.fixture(params=["s3", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "file":
        return ObjectStore(Location(f"file://{tmp_path}/store"))
    found: S3Server = request.getfixturevalue("server")
    keys = found.credentials(tmp_path / "keys")
    return ObjectStore(
        Location(found.bucket(f"bucket-{tmp_path.name}".replace("_", "-")[:60].strip("-")), found.endpoint, keys)
    )


def test_an_object_is_created_once(store: ObjectStore) -> None:
    assert store.create("x/1", b"first")
    assert not store.create("x/1", b"second")
    assert store.get("x/1", 100) == b"first"
    assert store.size("x/1") == 5
    assert store.create("x/empty", b"")
    assert (store.get("x/empty", 100), store.size("x/empty")) == (b"", 0)


def test_ranges_end_with_the_object(store: ObjectStore) -> None:
    store.create("x/1", bytes(range(100)))
    assert store.get_range("x/1", 10, 5) == bytes(range(10, 15))
    assert store.get_range("x/1", 90, 50) == bytes(range(90, 100))
    assert store.get_range("x/1", 5, 0) == b""
    with pytest.raises(Missing):
        store.get_range("x/2", 0, 5)


def test_an_absent_object_is_missing_and_its_removal_no_error(store: ObjectStore) -> None:
    store.create("x/1", b"1")
    for call in (lambda name: store.get(name, 100), store.size):
        with pytest.raises(Missing, match="there is no such object"):
            call("x/2")
    store.delete("x/2")
    store.delete("x/1")
    store.delete("x/1")
    assert list(store.list("x/")) == []


def test_a_list_has_all(store: ObjectStore) -> None:
    names = [f"x/{n:05d}" for n in range(1_050)]
    for name in names:
        store.create(name, b"1")
    store.create("y/1", b"12")
    assert sorted(f.name for f in store.list("x/")) == names
    assert sorted(f.name for f in store.list("x/", after="x/01000")) == names[1_001:]
    assert [(f.name, f.size) for f in store.list("y/")] == [("y/1", 2)]
    assert list(store.list("z/")) == []


def test_wrong_credentials_are_named_and_their_rotation_is_seen(server: S3Server, tmp_path: Path) -> None:
    keys = server.credentials(tmp_path / "keys")
    url = server.bucket("rotated")
    store = ObjectStore(Location(url, server.endpoint, keys))
    assert store.create("x/1", b"1")
    for name in ("secretAccessKey", "accessKeyId"):  # The server answers 403 and 404.
        (keys / name).write_text("wrong")
        for call in (
            lambda: store.create("x/2", b""),
            lambda: store.get("x/1", 100),
            lambda: list(store.list("x/")),
            lambda: store.delete("x/1"),
        ):
            with pytest.raises(Unavailable, match="check the credentials"):
                call()
        server.credentials(keys)
    assert store.get("x/1", 100) == b"1"
    (keys / "accessKeyId").unlink()
    (keys / "secretAccessKey").unlink()
    with pytest.raises(ArchiveError, match="has none of accessKeyId, secretAccessKey"):
        store.get("x/1", 100)


def test_an_unknown_bucket_is_no_empty_archive(server: S3Server, tmp_path: Path) -> None:
    keys = server.credentials(tmp_path / "keys")
    store = ObjectStore(Location("s3://not-there/x", server.endpoint, keys))
    for call in (
        lambda: store.create("x/2", b""),
        lambda: list(store.list("x/")),
        lambda: store.get("x/1", 100),
        lambda: Archive(store).identity(),
    ):
        with pytest.raises(Unavailable, match="its bucket is not there; make it, or correct the url"):
            call()
