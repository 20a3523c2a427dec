"""Objects at URLs: their size and version, ranges of bytes, atomic and conditional writes.

`s3://`, `gs://`, `az://`, `http://` and `https://` are accessed with obstore; every other scheme,
such as `hf://`, is read with fsspec. Credentials come from the environment of the process, never
from a URL, so that no message, manifest or list of processes shows them.

Objects are there complete or not at all. Up to 5 GB are written by one request, for an interrupted
multi-part upload would leave parts on the server that nobody lists; larger ones, which are never
outputs, in parts.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from functools import lru_cache
from typing import Any, cast
from urllib.parse import urlsplit

from msgspec import Struct

from bpe.errors import ChangedError, TokenmillError
from bpe.files.locations import shown_url
from preprocess.locations import BUCKETS

WRITABLE = BUCKETS  # schemes
LARGEST_OBJECT = 5 * 10**9  # bytes that a bucket takes in one request, of all services
ANY = None  # version of `ObjectStore.put`: whatever there is

_OBSTORE = (*WRITABLE, "http", "https")
# Variables with the URL of another server, which may be http://.
_ENDPOINTS = {
    "s3": "AWS_ENDPOINT_URL", "gs": "STORAGE_EMULATOR_HOST", "az": "AZURE_STORAGE_ENDPOINT"
}
_PART_BYTES = 64 << 20  # of an object that is larger than one request
# A server that is away is waited for; a maintenance or a fail-over takes a minute.
_PATIENCE = timedelta(minutes=5)
# Until a server has answered once: a wrong host, and credentials that are missing, do not mend.
_FIRST_PATIENCE = timedelta(seconds=20)
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 10.0  # seconds
# Processes that loaded one of the libraries; those forked from them cannot use it.
loaded_in: set[int] = set()
_answered = set[str]()  # hosts and buckets that answered a request of this process
_CLIENT = {"connect_timeout": "10s", "read_timeout": "60s", "timeout": "1h"}
# What file systems of fsspec call versions and times.
_VERSIONS = ("blob_id", "etag", "ETag", "version_id", "md5Hash")
_TIMES = ("mtime", "modified", "last_modified", "LastModified", "created")
_PART_OF_QUERY = re.compile(r"\?\S*")
_USER = re.compile(r"//[^/@\s]*@")


class RemoteError(TokenmillError, OSError):
    """A URL cannot be used, or a server does not answer or refuses a request."""


class ObjectInfo(Struct, frozen=True):
    """What a server says about an object."""

    n_bytes: int
    modified: int  # time of the last change, in ns
    version: str  # changes with the content; "": the server has none


def split_url(url: str) -> tuple[str, str]:
    """Split a URL into (root for `open_objects`, key).

    >>> split_url("s3://bucket/corpus/a.txt")
    ('s3://bucket', 'corpus/a.txt')

    Raises:
        RemoteError: The URL has a user or a password, or no bucket.
    """
    scheme, colon, rest = url.partition(":")
    url = f"{scheme.lower()}{colon}{rest}"
    parts = urlsplit(url)
    if parts.scheme == "file":
        raise RemoteError(f"{url}: is on this machine; give the path without file://")
    place, _, port = parts.netloc.partition(":")
    # `#`, `?` and `/` end what a URL has of a user, so a password with one has no at sign after it.
    if (port and not port.isdigit()) or ("@" in place and parts.scheme != "hf"):
        raise RemoteError(
            f"{shown_url(url)}: has a user or a password in it, which lists of processes and logs"
            " would show; leave them out, and give them in the environment (docs/remote.md)"
        )
    if not parts.netloc:
        raise RemoteError(f"{shown_url(url)}: names no bucket or host; expected SCHEME://NAME/PATH")
    if parts.scheme in ("http", "https"):
        return url, ""
    root, key = f"{parts.scheme}://{parts.netloc}", url.split("://", 1)[1]
    return root, key.partition("/")[2]


@lru_cache(maxsize=1024)  # each file of a web server has its own
def open_objects(root: str) -> ObjectStore:
    """Open the objects below a root of `split_url`; nothing is requested yet.

    Raises:
        RemoteError: The library for the scheme is not installed, or the configuration is not valid.
    """
    scheme = root.partition("://")[0]
    if scheme in _OBSTORE:
        return ObjectStore(root, _import("obstore", root, "remote"))
    library = _import("fsspec", root, "remote")
    if scheme == "hf":
        _import("huggingface_hub", root, "hf")
        return cast("ObjectStore", _Hub(root, library))
    return cast("ObjectStore", _Fsspec(root, library))  # which is never written


def _import(library: str, root: str, extra: str) -> Any:
    loaded_in.add(os.getpid())
    try:
        return importlib.import_module(library)
    except ModuleNotFoundError as error:
        raise RemoteError(
            f"{shown_url(root)}: is read and written with {library}, which is not installed;"
            f" install it: pip install 'tokenmill[{extra}]'"
        ) from error


def reason_of(error: BaseException) -> str:
    """Return the reason in an error of a library: one line without credentials."""
    text = str(error).split("\n")[0].split(": <")[0].strip() or type(error).__name__
    return _USER.sub("//", _PART_OF_QUERY.sub("", text))


def _failed(url: str, error: BaseException) -> RemoteError:
    """Return the error of a request; raise it from None, for the cause may show credentials."""
    return RemoteError(
        f"{shown_url(url)}: the request failed: {reason_of(error)}; check the URL, the credentials"
        " in the environment and the network, and run the same command again"
    )


def _changed(url: str) -> ChangedError:
    return ChangedError(
        f"{shown_url(url)}: was changed or removed while it was being read; run the command again"
        " when nothing writes to it"
    )


class ObjectStore:
    """Objects below one root, such as a bucket, by key; with obstore.

    Requests that fail, and parts of answers, are repeated. All methods raise `RemoteError` if the
    server does not answer or refuses the request.

    Attributes:
        is_conditional: True if `read` notices another version; else `info` has to be asked again.
    """

    is_conditional = True

    def __init__(self, root: str, library: Any) -> None:
        self._root, self._library = root, library
        self._errors = importlib.import_module("obstore.exceptions")
        self._host = "/".join(root.split("/")[:3])
        from_url = importlib.import_module("obstore.store").from_url
        backoff = {
            "init_backoff": timedelta(seconds=_FIRST_PAUSE),
            "max_backoff": timedelta(seconds=_LONGEST_PAUSE), "base": 2,
        }
        try:
            options = _options(root)
            self._first_store, self._later_store = (
                from_url(
                    root, **options,
                    retry_config={"max_retries": 1000, "backoff": backoff, "retry_timeout": wait},
                )
                for wait in (_FIRST_PATIENCE, _PATIENCE)
            )
        except (self._errors.BaseError, ValueError) as error:
            raise _failed(root, error) from None

    def _url(self, key: str) -> str:
        return f"{self._root}/{key}" if key else self._root

    @property
    def _store(self) -> Any:
        return self._later_store if self._host in _answered else self._first_store

    def _request(self, key: str, ask: Callable[[], Any]) -> Any:
        """Return what `ask` returns, None if the object does not exist, or raise RemoteError."""
        try:
            found = ask()
        except FileNotFoundError:
            found = None
        except (self._errors.BaseError, OSError, ValueError) as error:
            if isinstance(error, TokenmillError):
                raise
            raise _failed(self._url(key), error) from None
        _answered.add(self._host)
        return found

    def _repeat(self, ask: Callable[[], Any]) -> Any:
        """Return what a request returns that obstore does not repeat if it gets no answer."""
        patience = _PATIENCE if self._host in _answered else _FIRST_PATIENCE
        until, pause = time.monotonic() + patience.total_seconds(), _FIRST_PAUSE
        while True:
            try:
                return ask()
            except self._errors.GenericError as error:
                if time.monotonic() >= until or "HTTP error" not in str(error):
                    raise
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def pinned(self, key: str) -> str:
        """Return a key of the same object as it is now, if there is one, else the key."""
        return key

    def info(self, key: str) -> ObjectInfo | None:
        """Return what is known about an object, None if it does not exist."""

        def ask() -> Any:
            try:
                return self._library.head(self._store, key)
            except self._errors.BaseError as error:
                if self._root.startswith(WRITABLE) or "status code" not in str(error):
                    raise
            # A signed URL is for GET; some servers know no HEAD.
            return self._library.get(self._store, key, options={"range": (0, 1)}).meta

        found = self._request(key, ask)
        return None if found is None else _info(found)

    def read(self, key: str, start: int, stop: int, version: str = "") -> memoryview:
        """Read bytes [start, stop) of an object that has them all.

        Raises:
            ChangedError: The object does not exist, or has another version than `version`.
        """
        if start >= stop:
            return memoryview(b"")

        # A weak tag is never equal under a condition, and some servers have none.
        condition = {"if_match": version} if version.startswith('"') else {}

        def ask() -> tuple[str, memoryview] | None:
            try:
                options = {"range": (start, stop), **condition}
                found = self._library.get(self._store, key, options=options)
                return _info(found.meta).version, memoryview(found.bytes())
            except self._errors.PreconditionError:
                return None
            except self._errors.NotSupportedError:
                raise RemoteError(
                    f"{shown_url(self._root)}: the server sends whole files only, and ranges of"
                    " bytes are needed; download the file and give its path"
                ) from None
            except self._errors.GenericError as error:
                if "status code: 416" in str(error):  # the object ends before `start`
                    return None
                raise

        found, data = self._request(key, ask) or ("", memoryview(b""))
        if len(data) != stop - start or version not in ("", found):
            raise _changed(self._url(key))
        return data

    def get(self, key: str) -> bytes | None:
        """Return a whole object, None if it does not exist."""
        found = self._request(key, lambda: self._library.get(self._store, key).bytes())
        return None if found is None else bytes(found)

    def put(self, key: str, data: bytes | memoryview, version: str | None = ANY) -> str | None:
        """Write a whole object, and return its version.

        Args:
            key: Key of the object.
            data: C-contiguous bytes, which are not copied.
            version: Version that the object must have until then, "" if it must not exist. None is
                returned, and nothing is written, if it is another. A request whose answer was lost
                is repeated, so the other version may be that of `data`.
        """

        def ask() -> Any:
            try:
                if len(data) > LARGEST_OBJECT:
                    return self._put_parts(key, data, version)
                mode = self._mode(key, version)
                return self._library.put(self._store, key, data, mode=mode, use_multipart=False)
            except (self._errors.AlreadyExistsError, self._errors.PreconditionError):
                return None
            except FileNotFoundError as error:
                if version:
                    return None  # the object of that version was removed
                raise _failed(self._url(key), error) from None

        result = self._request(key, ask if version is ANY else lambda: self._repeat(ask))
        return None if result is None else _version(result["e_tag"], 0)

    def _put_parts(self, key: str, data: bytes | memoryview, version: str | None) -> Any:
        """Put a large object, for which there are no conditions; None if there is another."""
        found = None if version is ANY else self.info(key)
        if version is not ANY and (found.version if found else "") != version:
            return None
        return self._library.put(
            self._store, key, data, mode="overwrite", use_multipart=True, chunk_size=_PART_BYTES
        )

    def _mode(self, key: str, version: str | None) -> Any:
        """Return the condition of a write.

        Google's storage compares generations, not tags; that of no object is 0.
        """
        if not version:
            return "overwrite" if version is ANY else "create"
        if not self._root.startswith("gs:"):
            return {"e_tag": version}
        meta = self._library.head(self._store, key)
        is_same = _version(meta["e_tag"], 0) == version
        return {"e_tag": version, "version": meta["version"] if is_same else "0"}

    def copy(self, source: str, target: str) -> None:
        """Copy an object on the server, replacing `target`."""

        def ask() -> None:
            try:
                self._library.copy(self._store, source, target)
            except FileNotFoundError as error:
                raise _failed(self._url(source), error) from None

        self._request(source, ask)

    def remove(self, key: str) -> None:
        """Remove an object if it exists."""
        self._request(key, lambda: self._repeat(lambda: self._library.delete(self._store, key)))

    def keys(self, prefix: str) -> Iterator[tuple[str, ObjectInfo]]:
        """Yield (key, info) of all objects whose keys begin with `prefix`, a directory, sorted."""

        def ask() -> dict[str, ObjectInfo]:
            pages = self._library.list(self._store, prefix or None)
            return {str(each["path"]): _info(each) for page in pages for each in page}

        found = self._request(prefix, ask) or {}
        # Empty objects stand for directories; their slash at the end is not shown.
        directories = {key[:i] for key in found for i, x in enumerate(key) if x == "/"}
        for key, info in sorted(found.items()):
            if key.startswith(prefix) and (info.n_bytes or key not in directories):
                yield key, info


def _info(meta: Any) -> ObjectInfo:
    modified = round(meta["last_modified"].timestamp() * 1e6) * 1000
    return ObjectInfo(int(meta["size"]), modified, _version(meta["e_tag"], modified))


def _version(tag: str | None, modified: int) -> str:
    """Return the version of an object by its entity tag or, without one, by its time in ns."""
    if not tag:
        return f"modified {modified}" if modified > 0 else ""
    # Lists of Azure have no quotes around tags.
    return tag if tag.startswith(('"', "W/")) else f'"{tag}"'


def _options(root: str) -> dict[str, Any]:
    """Return the arguments of a store that depend on the environment."""
    scheme, options = root.partition(":")[0], dict[str, Any]()
    endpoint = os.environ.get(_ENDPOINTS.get(scheme, ""), "")
    if scheme == "s3" and (provider := _of_boto3()):
        options["credential_provider"] = provider
    elif scheme == "gs" and endpoint:  # as Google's clients take it: a host, or a URL
        endpoint = endpoint if "://" in endpoint else f"http://{endpoint}"
        # Writing asks for a token even where nothing is signed, but not of such an account.
        nobody = dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
        account = {"gcs_base_url": endpoint, "disable_oauth": True, **nobody}
        options["service_account_key"] = json.dumps(account)
    is_http = (endpoint or root).startswith("http:")
    return {**options, "client_options": {**_CLIENT, **({"allow_http": True} if is_http else {})}}


def _of_boto3() -> Any:
    """Return a provider of the credentials that boto3 finds, None without boto3 or with variables.

    obstore reads variables of the environment and roles of machines, boto3 also the profiles of
    the AWS command line.
    """
    variables = ("AWS_ACCESS_KEY_ID", "AWS_SKIP_SIGNATURE", "AWS_WEB_IDENTITY_TOKEN_FILE")
    if any(os.environ.get(name) for name in variables):
        return None
    try:
        boto3 = importlib.import_module("boto3")
    except ModuleNotFoundError:
        return None
    try:
        if boto3.Session().get_credentials() is None:
            return None
        return importlib.import_module("obstore.auth.boto3").Boto3CredentialProvider()
    except importlib.import_module("botocore.exceptions").BotoCoreError as error:
        raise RemoteError(
            f"the credentials of AWS cannot be used: {reason_of(error)}; correct AWS_PROFILE or the"
            " files of the AWS command line"
        ) from None


class _Fsspec:
    """What an `ObjectStore` has for reading, of fsspec."""

    is_conditional = False

    def __init__(self, root: str, library: Any) -> None:
        self._root = root
        try:
            self._system, _ = library.core.url_to_fs(root)
        except (ImportError, OSError, TypeError, ValueError) as error:
            raise RemoteError(
                f"{shown_url(root)}: cannot be read: {reason_of(error)}; the schemes s3, gs, az,"
                " http and https need only pip install 'tokenmill[remote]'"
            ) from error

    def _url(self, key: str) -> str:
        return f"{self._root}/{key}"

    def _request(self, key: str, ask: Callable[[str], Any]) -> Any:
        """Return what `ask` returns for the URL, None if there is nothing, or raise RemoteError."""
        try:
            return ask(self._url(key))
        except FileNotFoundError:
            return None
        except Exception as error:  # noqa: BLE001 (of any library: each file system has its own)
            raise _failed(self._url(key), error) from None

    def info(self, key: str) -> ObjectInfo | None:
        def ask(url: str) -> Any:
            if not self.is_conditional:
                self._system.invalidate_cache(url)  # else it may answer from there
            return self._system.info(url)

        found = self._request(key, ask)
        return self._info(found) if found and found.get("type", "file") == "file" else None

    def _info(self, found: Any) -> ObjectInfo:
        version = next((str(found[x]) for x in _VERSIONS if found.get(x)), "")
        time = next((found[x] for x in _TIMES if found.get(x)), 0)
        seconds = time.timestamp() if hasattr(time, "timestamp") else time
        modified = round(seconds * 1e6) * 1000 if isinstance(seconds, int | float) else 0
        return ObjectInfo(int(found["size"] or 0), modified, version)

    def pinned(self, key: str) -> str:
        return key

    def read(self, key: str, start: int, stop: int, version: str = "") -> memoryview:
        # The hub's requests are for exactly these bytes if it has no cache.
        more = {"cache_type": "none"} if self.is_conditional else {}
        found = self._request(key, lambda url: self._system.cat_file(url, start, stop, **more))
        data = memoryview(found or b"")
        if len(data) != max(stop - start, 0):
            raise _changed(self._url(key))
        return data

    def get(self, key: str) -> bytes | None:
        found = self._request(key, self._system.cat_file)
        return None if found is None else bytes(found)

    def keys(self, prefix: str) -> Iterator[tuple[str, ObjectInfo]]:
        found = self._request(prefix, lambda url: self._system.find(url, detail=True)) or {}
        base = self._system._strip_protocol(self._root)
        for path, info in sorted(found.items()):
            yield path.removeprefix(base).lstrip("/"), self._info(info)


class _Hub(_Fsspec):
    """As `_Fsspec`, of repositories on Hugging Face's hub: files are of one commit."""

    is_conditional = True  # a commit never changes

    def __init__(self, root: str, library: Any) -> None:
        super().__init__(root, library)
        self._commits: dict[tuple[str, str, str], str] = {}

    def pinned(self, key: str) -> str:
        return self._request(key, self._pinned) or key

    def _pinned(self, url: str) -> str | None:
        place = self._system.resolve_path(url)
        if not hasattr(place, "repo_id"):
            return None  # a bucket
        kind, repository, revision = of = place.repo_type, place.repo_id, place.revision
        if of not in self._commits:
            found = self._system._api.repo_info(repository, repo_type=kind, revision=revision)
            self._commits[of] = found.sha
        at_commit = replace(place, revision=self._commits[of], _raw_revision=None)
        return str(at_commit.unresolve()).partition("/")[2]
