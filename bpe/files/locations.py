"""Locations of files as users give them: paths on this machine, and URLs."""

from __future__ import annotations

import os
import re
from pathlib import Path

from bpe.errors import TokenmillError

_URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_LONGEST, _LONGEST_PATH = 255, 4095  # bytes of a name and of a path in any file system
_CHANGED_URL = re.compile(r"(?:s3|gs|az|hf|https?|file):/(?!/)", re.IGNORECASE)
LOCAL = (  # end of messages about URLs
    "should be a path on this machine, for this cannot be a URL; copy or mount what is there and"
    " give its path"
)
EMPTY = "should not be an empty path; the working directory is ."


class LocationError(TokenmillError, ValueError):
    """A location is a URL, empty, or not one where a file can be written."""


def is_url(location: str) -> bool:
    """Return True for text that begins with a scheme and "://".

    >>> is_url("s3://bucket/key"), is_url("data/train.txt"), is_url("C:/train.txt")
    (True, False, False)
    """
    return _URL.match(location) is not None


def local_path(location: str | os.PathLike[str]) -> str:
    """As `given_location`; raise LocationError for a URL, too."""
    path = os.fspath(location)
    if is_url(path) or _CHANGED_URL.match(path):
        raise LocationError(f"{shown_url(path)}: {LOCAL}")
    return given_location(path)


def given_location(location: str | os.PathLike[str]) -> str:
    """Return a path or URL as text.

    Raises:
        LocationError: It is empty, has a name that no file can have, is `Path("s3://bucket")`, or
            begins with `~`, of which a directory of that name would be made.
    """
    path = os.fspath(location)
    if not path:
        raise LocationError(f"{path!r} {EMPTY}")
    if len(path) > _LONGEST // 4 and not is_url(path):  # a character has up to four bytes
        content = path.encode("utf-8", "surrogatepass")
        if max(map(len, content.split(b"/"))) > _LONGEST or len(content) > _LONGEST_PATH:
            raise LocationError(
                f"{path:.50}: No such file or directory, for names have at most {_LONGEST} bytes,"
                f" and paths {_LONGEST_PATH:,}; give a path, and a text in a file of its own, or in"
                " a list where texts are taken"
            )
    if _CHANGED_URL.match(path):
        raise LocationError(
            f"{path}: is a URL that pathlib has changed, and would be a directory here; give it as"
            " text"
        )
    if path.partition("/")[0] == "~":
        raise LocationError(
            f"{path}: only a shell replaces ~ by the home directory; give"
            f" {os.path.expanduser(path)}"
        )
    return path


def path_to_write(location: str | os.PathLike[str]) -> Path:
    """Return the path of a file; raise LocationError if it is a directory, or is in none."""
    path = Path(local_path(location))
    if path.is_dir():
        raise LocationError(
            f"{path}: is a directory; give a file in it, such as {path / 'tokenizer.json'}"
        )
    if not path.parent.is_dir():
        raise LocationError(f"{path}: there is no directory {path.parent}; make it, or choose one")
    return path


def shown_url(url: str) -> str:
    """Return a URL without user, password, query and fragment: for messages and manifests.

    >>> shown_url("https://me:secret@host/a.txt?signature=x")
    'https://host/a.txt'
    """
    scheme, _, rest = url.partition("://")
    if is_web(url):
        rest = re.split("[?#]", rest, maxsplit=1)[0]
    place, slash, path = rest.partition("/")
    host, colon, port = place.partition(":")
    if colon and "@" not in place and not port.isdigit():
        return f"{scheme}://{host}"  # the rest begins with a password
    # A repository of `hf://` may have a revision after an at sign.
    shown = place if scheme == "hf" and not colon else place.rpartition("@")[2]
    return f"{scheme}://{shown}{slash}{path}"


def is_web(url: str) -> bool:
    """Return True for a URL of a web server, which may have a query and escapes."""
    return url.lower().startswith(("http://", "https://"))
