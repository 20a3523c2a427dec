"""Objects at URLs: their size and version, ranges of bytes, atomic and conditional writes.

`s3://`, `gs://`, `az://`, `http://` and `https://` are accessed with obstore; every other scheme,
such as `hf://`, is read with fsspec. Credentials come from the environment of the process, never
from a URL, so that no message, manifest or list of processes shows them.

Objects are written by one request each, never by a multi-part upload: an object is there complete
or not at all, and an interrupted write leaves no parts on the server that nobody lists. One request
writes up to 5 GB.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import lru_cache, partial
from typing import Any, Protocol
from urllib.parse import urlsplit

from msgspec import Struct

from bpe.errors import ChangedError, TokenmillError
from bpe.files.locations import shown_url
from preprocess.locations import BUCKETS

WRITABLE = BUCKETS  # schemes
ANY = None  # version of `ObjectStore.put`: whatever there is

_OBSTORE = (*WRITABLE, "http", "https")
# Variables with the URL of another server, which may be http://.
_ENDPOINTS = {
    "s3": "AWS_ENDPOINT_URL", "gs": "STORAGE_EMULATOR_HOST", "az": "AZURE_STORAGE_ENDPOINT"
}
# A server that is away is waited for; a maintenance or a fail-over takes a minute.
_PATIENCE = timedelta(minutes=5)
# Until a server has answered once: a wrong host, and credentials that are missing, do not mend.
_FIRST_PATIENCE = timedelta(seconds=20)
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 10.0  # seconds
# Processes that loaded one of the libraries; those forked from them cannot use it.
loaded_in: set[int] = set()
_answered = set[str]()  # hosts and buckets that answered a request of this process
_CLIENT = {"connect_timeout": "10s", "read_timeout": "60s", "timeout": "1h"}
_PART_OF_QUERY = re.compile(r"\?\S*")
_USER = re.compile(r"//[^/@\s]*@")


class RemoteError(TokenmillError, OSError):
    """A URL cannot be used, or a server does not answer or refuses a request."""


class ObjectInfo(Struct, frozen=True):
    """What a server says about an object."""

    n_bytes: int
    modified: int  # time of the last change, in ns
    version: str  # changes with the content; "": the server has none


class Versions(Protocol):
    """What an `ObjectLock` needs of a store: objects with versions, by key."""

    def info(self, key: str) -> ObjectInfo | None:
        """Return what is known about an object, None if it does not exist."""

    def read(self, key: str, start: int, stop: int, version: str = "") -> memoryview:
        """Read bytes [start, stop) of an object that has them all.

        Raises:
            ChangedError: The object does not exist, or has another version than `version`.
        """

    def put(self, key: str, data: bytes | memoryview, version: str | None = ANY) -> str | None:
        """Write a whole object, and return its version.

        Args:
            key: Key of the object.
            data: C-contiguous bytes, which are not copied.
            version: Version that the object must have until then, "" if it must not exist. None is
                returned, and nothing is written, if it is another. A request whose answer was lost
                is repeated, so the other version may be that of `data`.
        """

    def remove(self, key: str) -> None:
        """Remove an object if it exists."""


class ObjectStore(Versions, Protocol):
    """Objects below one root, such as a bucket, by key.

    Attributes:
        is_conditional: True if `read` notices another version; else `info` has to be asked again.

    All methods raise `RemoteError` if the server does not answer or refuses the request.
    """

    is_conditional: bool

    def pinned(self, key: str) -> str:
        """Return a key of the same object as it is now, if there is one, else the key."""

    def get(self, key: str) -> bytes | None:
        """Return a whole object, None if it does not exist."""

    def copy(self, source: str, target: str) -> None:
        """Copy an object on the server, replacing `target`."""

    def keys(self, prefix: str) -> Iterator[tuple[str, ObjectInfo]]:
        """Yield (key, info) of all objects whose keys begin with `prefix`, a directory, sorted."""


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
        return _Obstore(root, _import("obstore", root, "remote"))
    library = _import("fsspec", root, "remote")
    others = importlib.import_module("preprocess.storage.fsspec_objects")
    if scheme == "hf":
        _import("huggingface_hub", root, "hf")
    kind = others.HubObjects if scheme == "hf" else others.FsspecObjects
    found: ObjectStore = kind(root, library)
    return found


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


class _Obstore:
    """An `ObjectStore` of obstore, which repeats requests that fail, and parts of answers."""

    is_conditional = True

    def __init__(self, root: str, library: Any) -> None:
        self._root, self._library = root, library
        store = importlib.import_module("obstore.store")
        self._errors = importlib.import_module("obstore.exceptions")
        retry = {
            "max_retries": 1000,
            "backoff": {
                "init_backoff": timedelta(seconds=_FIRST_PAUSE),
                "max_backoff": timedelta(seconds=_LONGEST_PAUSE), "base": 2,
            },
        }
        scheme = root.partition(":")[0]
        endpoint = os.environ.get(_ENDPOINTS.get(scheme, ""), "")
        others: dict[str, Any] = {}
        if scheme == "s3" and (provider := _of_boto3()):
            others["credential_provider"] = provider
        elif scheme == "gs" and endpoint:  # as Google's clients take it: a host, or a URL
            endpoint = endpoint if "://" in endpoint else f"http://{endpoint}"
            # Writing asks for a token even where nothing is signed, but not of such an account.
            nobody = dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
            account = {"gcs_base_url": endpoint, "disable_oauth": True, **nobody}
            others["service_account_key"] = json.dumps(account)
        is_http = (endpoint or root).startswith("http:")
        options = {**_CLIENT, **({"allow_http": True} if is_http else {})}
        self._host = "/".join(root.split("/")[:3])
        with self._translated("", is_request=False):
            self._first_store, self._later_store = (
                store.from_url(
                    root, client_options=options, retry_config={**retry, "retry_timeout": patience},
                    **others,
                )
                for patience in (_FIRST_PATIENCE, _PATIENCE)
            )

    @property
    def _has_answered(self) -> bool:
        return self._host in _answered

    @property
    def _store(self) -> Any:
        return self._later_store if self._has_answered else self._first_store

    @contextmanager
    def _translated(self, key: str, is_request: bool = True) -> Iterator[None]:
        """Convert errors of obstore inside the `with` to RemoteError."""
        try:
            yield
            if is_request:
                _answered.add(self._host)
        except _NotThereError:
            _answered.add(self._host)
            raise
        except (self._errors.BaseError, OSError, ValueError) as error:
            if isinstance(error, TokenmillError):
                raise
            raise RemoteError(
                f"{self._shown(key)}: the request failed: {reason_of(error)}; check the URL, the"
                " credentials in the environment and the network, and run the same command again"
            ) from None  # the text of the cause may have credentials

    def _shown(self, key: str) -> str:
        return shown_url(f"{self._root}/{key}" if key else self._root)

    def pinned(self, key: str) -> str:
        return key

    def info(self, key: str) -> ObjectInfo | None:
        with self._translated(key), suppress(_NotThereError):
            try:
                return _info(_found(self._library.head, self._store, key))
            except self._errors.BaseError as error:
                if self._root.startswith(WRITABLE) or "status code" not in str(error):
                    raise
            # A signed URL is for GET; some servers know no HEAD.
            options = {"range": (0, 1)}
            return _info(_found(self._library.get, self._store, key, options=options).meta)
        return None

    def read(self, key: str, start: int, stop: int, version: str = "") -> memoryview:
        if start >= stop:
            return memoryview(b"")

        # A weak tag is never equal under a condition, and some servers have none.
        condition = {"if_match": version} if version.startswith('"') else {}
        options = {"range": (start, stop), **condition}
        with self._translated(key):
            try:
                found = _found(self._library.get, self._store, key, options=options)
                if version and _info(found.meta).version != version:
                    raise ChangedError(self._changed(key))
                data = memoryview(found.bytes())
            except (_NotThereError, self._errors.PreconditionError):
                raise ChangedError(self._changed(key)) from None
            except self._errors.NotSupportedError:
                raise RemoteError(
                    f"{self._shown(key)}: the server sends whole files only, and ranges of bytes"
                    " are needed; download the file and give its path"
                ) from None
            except self._errors.GenericError as error:
                if "status code: 416" in str(error):  # the object ends before `start`
                    raise ChangedError(self._changed(key)) from None
                raise
        if len(data) != stop - start:
            raise ChangedError(self._changed(key))
        return data

    def _changed(self, key: str) -> str:
        return (
            f"{self._shown(key)}: was changed or removed while it was being read; run the command"
            " again when nothing writes to it"
        )

    def get(self, key: str) -> bytes | None:
        with self._translated(key), suppress(_NotThereError):
            return bytes(_found(self._library.get, self._store, key).bytes())
        return None

    def put(self, key: str, data: bytes | memoryview, version: str | None = ANY) -> str | None:
        with self._translated(key):
            try:
                mode = self._mode(key, version)
                write = partial(
                    self._library.put, self._store, key, data, mode=mode, use_multipart=False
                )
                result = write() if version is ANY else self._repeat(write)
            except (self._errors.AlreadyExistsError, self._errors.PreconditionError):
                return None
            except FileNotFoundError:
                if not version:
                    raise
                return None  # the object of that version was removed
        return _version(result["e_tag"], 0)

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

    def _repeat(self, request: Callable[[], Any]) -> Any:
        """Return the result of a request that obstore does not repeat if it gets no answer."""
        began, pause = time.monotonic(), _FIRST_PAUSE
        patience = _PATIENCE if self._has_answered else _FIRST_PATIENCE
        while True:
            try:
                return request()
            except self._errors.GenericError as error:
                waited = time.monotonic() - began
                if waited >= patience.total_seconds() or "HTTP error" not in str(error):
                    raise
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def copy(self, source: str, target: str) -> None:
        with self._translated(source):
            self._library.copy(self._store, source, target)

    def remove(self, key: str) -> None:
        with self._translated(key), suppress(FileNotFoundError):
            self._repeat(partial(self._library.delete, self._store, key))

    def keys(self, prefix: str) -> Iterator[tuple[str, ObjectInfo]]:
        with self._translated(prefix):
            pages = self._library.list(self._store, prefix or None)
            found = {str(each["path"]): _info(each) for page in pages for each in page}
        # Empty objects stand for directories; their slash at the end is not shown.
        directories = {key[:i] for key in found for i, x in enumerate(key) if x == "/"}
        for key, info in sorted(found.items()):
            is_directory = not info.n_bytes and key in directories
            if key.startswith(prefix) and not is_directory:
                yield key, info


class _NotThereError(Exception):
    """An object does not exist."""


def _found(call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Return the result of a call; raise `_NotThereError` for FileNotFoundError.

    obstore raises FileNotFoundError, which would be taken for an error of a local file.
    """
    try:
        return call(*arguments, **options)
    except FileNotFoundError:
        raise _NotThereError from None


def _info(meta: Any) -> ObjectInfo:
    modified = round(meta["last_modified"].timestamp() * 1e6) * 1000
    return ObjectInfo(int(meta["size"]), modified, _version(meta["e_tag"], modified))


def _version(tag: str | None, modified: int) -> str:
    """Return the version of an object by its entity tag or, without one, by its time in ns."""
    if not tag:
        return f"modified {modified}" if modified > 0 else ""
    # Lists of Azure have no quotes around tags.
    return tag if tag.startswith(('"', "W/")) else f'"{tag}"'


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
    errors = importlib.import_module("botocore.exceptions").BotoCoreError
    try:
        if boto3.Session().get_credentials() is None:
            return None
        return importlib.import_module("obstore.auth.boto3").Boto3CredentialProvider()
    except errors as error:
        raise RemoteError(
            f"the credentials of AWS cannot be used: {reason_of(error)}; correct AWS_PROFILE or the"
            " files of the AWS command line"
        ) from None
