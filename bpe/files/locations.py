"""Locations of files as users give them: paths on this machine, not URLs."""

from __future__ import annotations

import os
import re

from bpe.errors import TokenbinError

_URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
LOCAL = (  # end of messages about URLs
    "should be a path on this machine, for URLs can be neither read nor written; copy or mount what"
    " is there and give its path"
)


class LocationError(TokenbinError, ValueError):
    """A location is a URL."""


def is_url(location: str) -> bool:
    """Return True for text that begins with a scheme and "://".

    >>> is_url("s3://bucket/key"), is_url("data/train.txt"), is_url("C:/train.txt")
    (True, False, False)
    """
    return _URL.match(location) is not None


def local_path(location: str | os.PathLike[str]) -> str:
    """Return a location as text, unchanged; raise LocationError for a URL."""
    path = os.fspath(location)
    if is_url(path):
        raise LocationError(f"{path}: {LOCAL}")
    return path
