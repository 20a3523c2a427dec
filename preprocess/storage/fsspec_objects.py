"""Objects that fsspec reads, of Hugging Face's hub and of other schemes; none are written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from bpe.errors import ChangedError
from bpe.files.locations import shown_url
from preprocess.storage.remote import ANY, WRITABLE, ObjectInfo, RemoteError, reason_of

# What file systems of fsspec call versions and times.
_VERSIONS = ("blob_id", "etag", "ETag", "version_id", "md5Hash")
_TIMES = ("mtime", "modified", "last_modified", "LastModified", "created")


class FsspecObjects:
    """An `ObjectStore` of fsspec, which can only be read."""

    is_conditional = False

    def __init__(self, root: str, library: Any) -> None:
        self._root = root
        scheme = root.partition("://")[0]
        try:
            self._system = library.filesystem(scheme)
        except (ImportError, ValueError) as error:
            raise RemoteError(
                f"{shown_url(root)}: cannot be read: {reason_of(error)}; the schemes s3, gs, az,"
                " http and https need only pip install 'tokenmill[remote]'"
            ) from error

    @contextmanager
    def _translated(self, key: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except Exception as error:  # noqa: BLE001 (of any library: each file system has its own)
            raise RemoteError(
                f"{self._shown(key)}: the request failed: {reason_of(error)}; check the URL and the"
                " network, and run the same command again"
            ) from None

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"

    def _shown(self, key: str) -> str:
        return shown_url(self._path(key))

    def pinned(self, key: str) -> str:
        return key

    def info(self, key: str) -> ObjectInfo | None:
        try:
            with self._translated(key):
                if not self.is_conditional:
                    self._system.invalidate_cache(self._path(key))  # else it may answer from there
                found = self._system.info(self._path(key))
        except FileNotFoundError:
            return None
        return self._info(found) if found.get("type", "file") == "file" else None

    def _info(self, found: Any) -> ObjectInfo:
        version = next((str(found[x]) for x in _VERSIONS if found.get(x)), "")
        time = next((found[x] for x in _TIMES if found.get(x)), 0)
        seconds = time.timestamp() if hasattr(time, "timestamp") else time
        modified = round(seconds * 1e6) * 1000 if isinstance(seconds, int | float) else 0
        return ObjectInfo(int(found["size"] or 0), modified, version)

    def read(self, key: str, start: int, stop: int, version: str = "") -> memoryview:
        try:
            with self._translated(key):
                data = memoryview(self._read(self._path(key), start, stop))
        except FileNotFoundError:
            data = memoryview(b"")
        if len(data) != max(stop - start, 0):
            raise ChangedError(
                f"{self._shown(key)}: was changed or removed while it was being read, or its server"
                " sent too few bytes; run the command again when nothing writes to it"
            )
        return data

    def _read(self, path: str, start: int, stop: int) -> bytes:
        return bytes(self._system.cat_file(path, start, stop))

    def get(self, key: str) -> bytes | None:
        try:
            with self._translated(key):
                return bytes(self._system.cat_file(self._path(key)))
        except FileNotFoundError:
            return None

    def put(self, key: str, data: bytes | memoryview, version: str | None = ANY) -> str | None:
        raise self._read_only(key)

    def copy(self, source: str, target: str) -> None:
        raise self._read_only(target)

    def remove(self, key: str) -> None:
        raise self._read_only(key)

    def _read_only(self, key: str) -> RemoteError:
        return RemoteError(
            f"{self._shown(key)}: can be read, but not written; outputs go to a directory or to"
            f" {', '.join(f'{scheme}://' for scheme in WRITABLE)}"
        )

    def keys(self, prefix: str) -> Iterator[tuple[str, ObjectInfo]]:
        try:
            with self._translated(prefix):
                found = self._system.find(self._path(prefix), detail=True)
        except FileNotFoundError:
            return
        base = self._system._strip_protocol(self._root)
        for path, info in sorted(found.items()):
            yield path.removeprefix(base).lstrip("/"), self._info(info)


class HubObjects(FsspecObjects):
    """An `ObjectStore` of repositories on Hugging Face's hub: files are of one commit."""

    is_conditional = True  # a commit never changes

    def __init__(self, root: str, library: Any) -> None:
        super().__init__(root, library)
        self._commits: dict[tuple[str, str, str], str] = {}

    def pinned(self, key: str) -> str:
        try:
            with self._translated(key):
                place = self._system.resolve_path(self._path(key))
                if not hasattr(place, "repo_id"):
                    return key  # a bucket
                of = place.repo_type, place.repo_id, place.revision
                if of not in self._commits:
                    kind, repository, revision = of
                    found = self._system._api.repo_info(
                        repository, repo_type=kind, revision=revision
                    )
                    self._commits[of] = found.sha
        except FileNotFoundError:
            return key
        at_commit = replace(place, revision=self._commits[of], _raw_revision=None)
        return str(at_commit.unresolve()).partition("/")[2]

    def _read(self, path: str, start: int, stop: int) -> bytes:
        # Without a cache exactly these bytes are requested.
        return bytes(self._system.cat_file(path, start, stop, cache_type="none"))
