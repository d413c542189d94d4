"""The object store: a few calls over `obstore`, each bounded in time, with the errors of `errors.py`.

All calls block; they run in threads. Amazon S3 and what speaks its protocol, Google Cloud Storage, Azure Blob Storage,
and a folder (`file:///`) behave the same here: an object that must be new is created by a conditional write.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeVar
from urllib.parse import urlsplit

from gantry_broker.archive.errors import ArchiveError, Damaged, Missing, Unavailable

T = TypeVar("T")
log = logging.getLogger(__name__)


class Patience(NamedTuple):
    """How long a call may take, in seconds."""

    request_s: int
    """Of one request: one that does not move for so long is tried again."""
    retry_s: int
    """For so long one call repeats requests that failed."""


PATIENT: Final = Patience(60, 30)
"""Of programs that have time."""
BRIEF: Final = Patience(8, 4)
"""Of reads that a client waits for."""
SCHEMES: Final = ("s3", "gs", "az", "file")
_KEYS: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    "s3": {
        "access_key_id": ("accessKeyId", "AWS_ACCESS_KEY_ID"),
        "secret_access_key": ("secretAccessKey", "AWS_SECRET_ACCESS_KEY"),
        "session_token": ("sessionToken", "AWS_SESSION_TOKEN"),
        "region": ("region", "AWS_REGION"),
    },
    "gs": {"service_account_key": ("serviceAccountKey", "key.json")},
    "az": {
        "account_name": ("accountName", "AZURE_STORAGE_ACCOUNT"),
        "account_key": ("accountKey", "AZURE_STORAGE_KEY"),
        "sas_key": ("sasToken", "AZURE_STORAGE_SAS_TOKEN"),
    },
    "file": {},
}
"""By scheme: the setting, and the names of the file or key of the Secret that has it."""

NO_BUCKET: Final = "NoSuchBucket"
_REFUSED: Final = re.compile(r"status code: 40[13] |<Code>[^<]{0,100}(AccessKey|Account|Token|User)")
"""An error of credentials. Some servers answer 404 to keys that they do not know."""
MAX_ERROR: Final = 16_384
"""Characters of an error that are looked through."""
_SAID: Final = re.compile(r"<Code>([^<]{1,100})</Code>\s*<Message>([^<]{1,300})</Message>")


class ListedObject(NamedTuple):
    """An object in a listing. `modified_ms`: Unix ms by the store's clock."""

    name: str
    size: int
    modified_ms: int


class Objects(Protocol):
    """What an archive needs of an object store. Names are relative to the archive. Each call raises Unavailable or
    ArchiveError.
    """

    def create(self, name: str, data: bytes) -> bool:
        """Write an object that must be new. False: there is one already, which may be the work of this very call."""
        ...

    def get(self, name: str, most: int) -> bytes:
        """Read an object of at most `most` bytes. Raises Missing, and Damaged for a larger one, which is not read."""
        ...

    def get_range(self, name: str, at: int, size: int) -> bytes:
        """Read a part of an object; fewer bytes at its end. Raises Missing."""
        ...

    def size(self, name: str) -> int:
        """Bytes of an object. Raises Missing."""
        ...

    def modified_ms(self, name: str) -> int:
        """When an object was written, Unix ms by the store's clock. Raises Missing."""
        ...

    def list(self, prefix: str, after: str = "") -> Iterator[ListedObject]:
        """Yield the objects below a prefix that ends with a slash, in any order, those with names behind `after`."""
        ...

    def delete(self, name: str) -> None:
        """Remove an object; an absent one is no error."""
        ...


def check_url(url: str) -> str:
    """Return the scheme of an archive's URL. Raises ArchiveError, which says what to write."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ArchiveError(f"url is {url!r}: {error}") from None
    if parts.scheme not in SCHEMES:
        raise ArchiveError(
            f"url is {url!r}: write s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or file:///FOLDER"
        )
    if parts.scheme == "file" and (parts.netloc or not parts.path.startswith("/") or len(parts.path) < 2):
        raise ArchiveError(f"url is {url!r}: write file:/// and the absolute path of a folder")
    if parts.scheme != "file" and not parts.netloc:
        raise ArchiveError(f"url is {url!r}: it names no bucket; write {parts.scheme}://BUCKET/PREFIX")
    if parts.query or parts.fragment or parts.username or parts.password:
        raise ArchiveError(f"url is {url!r}: leave out credentials, ? and #; credentials belong into a Secret")
    if ".." in parts.path.split("/"):
        raise ArchiveError(f"url is {url!r}: leave out ..")
    return parts.scheme


class Location(NamedTuple):
    """Where an archive lies, and how to reach it."""

    url: str
    endpoint: str | None = None
    """URL of a server that speaks the protocol of S3; None: the cloud's own."""
    credentials: Path | None = None
    """A folder with one file for each credential, as a mounted Secret is; None: the identity of the process."""
    region: str | None = None


class ObjectStore:
    """An object store behind a URL. It reads the credentials' files again once they change."""

    def __init__(self, location: Location, patience: Patience = PATIENT) -> None:
        """Open the place. Raises ArchiveError for a URL that cannot be."""
        self._location = location
        self._patience = patience
        self._scheme = check_url(location.url)
        self._opened: tuple[dict[str, str], Any] | None = None
        """The credentials, and the store opened with them. One value: several threads call."""

    def create(self, name: str, data: bytes) -> bool:
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        def put(store: Any) -> bool:
            try:
                # A conditional write cannot be sent in parts, so it is one request: parts of an archive are bounded.
                obstore.put(store, name, data, mode="create", use_multipart=False)
            except (AlreadyExistsError, PreconditionError):
                return False
            return True

        return self._call(put, f"write {name}", new=True)

    def get(self, name: str, most: int) -> bytes:
        import obstore

        def read(store: Any) -> bytes:
            answer = obstore.get(store, name)
            if (size := int(answer.meta["size"])) > most:
                raise Damaged(f"{name}: it has {size} bytes, the limit is {most}")
            return bytes(answer.bytes())

        return self._call(read, f"read {name}")

    def get_range(self, name: str, at: int, size: int) -> bytes:
        import obstore

        if size == 0:
            return b""
        return self._call(lambda store: bytes(obstore.get_range(store, name, start=at, length=size)), f"read {name}")

    def size(self, name: str) -> int:
        import obstore

        return self._call(lambda store: int(obstore.head(store, name)["size"]), f"look at {name}")

    def modified_ms(self, name: str) -> int:
        import obstore

        def look(store: Any) -> int:
            return int(obstore.head(store, name)["last_modified"].timestamp() * 1000)

        return self._call(look, f"look at {name}")

    def list(self, prefix: str, after: str = "") -> Iterator[ListedObject]:
        import obstore

        def first(store: Any) -> Any:
            return obstore.list(store, prefix, offset=after or None, chunk_size=1_000)

        stream = self._call(first, f"list {prefix}", new=True)
        while True:
            page = self._call(lambda _: next(iter(stream), None), f"list {prefix}", new=True)
            if page is None:
                return
            for o in page:
                yield ListedObject(o["path"], int(o["size"]), int(o["last_modified"].timestamp() * 1000))

    def delete(self, name: str) -> None:
        import obstore

        def remove(store: Any) -> None:
            try:
                obstore.delete(store, name)
            except FileNotFoundError as error:
                if _REFUSED.search(str(error)[:MAX_ERROR]):
                    raise

        self._call(remove, f"remove {name}")

    def _call(self, call: Callable[[Any], T], what: str, *, new: bool = False) -> T:
        """Make a call. `new`: it needs no object that exists, so "not found" is said of the bucket."""
        from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

        try:
            return call(self._open())
        except (BaseError, OSError, ValueError) as error:
            text = str(error)[:MAX_ERROR]
            # The library has no kind of its own for a list that is refused.
            if NO_BUCKET in text:
                raise self._without_bucket(what) from error
            if isinstance(error, (PermissionDeniedError, UnauthenticatedError)) or _REFUSED.search(text):
                self._opened = None
                raise Unavailable(
                    f"{self._location.url}: may not {what}: {_short(error)}; check the credentials"
                ) from error
            if isinstance(error, FileNotFoundError):
                if new:
                    raise self._without_bucket(what) from error
                raise Missing(f"{self._location.url}: cannot {what}: there is no such object") from error
            raise Unavailable(f"{self._location.url}: cannot {what}: {_short(error)}") from error

    def _without_bucket(self, what: str) -> Unavailable:
        return Unavailable(f"{self._location.url}: cannot {what}: its bucket is not there; make it, or correct the url")

    def _open(self) -> Any:
        """Open the store. Raises ArchiveError."""
        values = self._credentials()
        opened = self._opened
        if opened is None or opened[0] != values:
            opened = self._opened = (values, self._build(values))
        return opened[1]

    def _credentials(self) -> dict[str, str]:
        """Return the credentials by setting, of the files that are there now. Raises ArchiveError."""
        folder = self._location.credentials
        values: dict[str, str] = {}
        if folder is None:
            return values
        for setting, names in _KEYS[self._scheme].items():
            for name in names:
                try:
                    values[setting] = (folder / name).read_text().strip()
                    break
                except FileNotFoundError:
                    continue
                except (OSError, UnicodeDecodeError) as error:
                    raise ArchiveError(f"credentials: cannot read {folder / name}: {error}") from error
        if not values and _KEYS[self._scheme]:
            expected = ", ".join(alternatives[0] for alternatives in _KEYS[self._scheme].values())
            raise ArchiveError(f"credentials: {folder} has none of {expected}")
        return values

    def _build(self, values: dict[str, str]) -> Any:
        from obstore.store import AzureStore, GCSStore, LocalStore, S3Store

        url, endpoint = self._location.url, self._location.endpoint
        try:
            if self._scheme == "file":
                folder = Path(urlsplit(url).path)
                return LocalStore(str(folder), mkdir=True)
            request_s, retry_s = self._patience
            options: Any = {"timeout": timedelta(seconds=request_s), "connect_timeout": timedelta(seconds=5)}
            retry: Any = {"max_retries": 5, "retry_timeout": timedelta(seconds=retry_s)}
            config: Any = dict(values)
            if endpoint is not None:
                config["endpoint"] = endpoint
                if endpoint.startswith("http://"):
                    options["allow_http"] = True
            if self._scheme == "gs":
                if key := config.get("service_account_key"):
                    json.loads(key)
                return GCSStore.from_url(url, config=config or None, client_options=options, retry_config=retry)
            if self._scheme == "az":
                return AzureStore.from_url(url, config=config or None, client_options=options, retry_config=retry)
            config.setdefault("region", self._location.region or "us-east-1")
            return S3Store.from_url(url, config=config, client_options=options, retry_config=retry)
        except Exception as error:  # The library raises many kinds for settings that it does not take.
            raise ArchiveError(f"{url}: {_short(error)}") from error


def _short(error: Exception) -> str:
    """Return the first line of an error without the library's debugging text, and what an S3 server says in its XML."""
    text = str(error).strip()
    lines = text.splitlines() or [type(error).__name__]
    s3_error = _SAID.search(text[:MAX_ERROR])
    reason = "" if s3_error is None else f" {s3_error[1]}: {s3_error[2]}"
    return lines[0].partition("<?xml")[0].strip()[:500] + reason
