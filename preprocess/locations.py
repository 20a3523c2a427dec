"""Locations of inputs and outputs: files in directories, and objects below URLs."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote

from bpe.files.locations import is_url, is_web, shown_url

BUCKETS = ("s3", "gs", "az")  # schemes of URLs that are written, too


def url_name(url: str) -> str:
    """Return the last part of the path of a URL: the name of its file.

    >>> url_name("https://host/data/a%20b.txt?x=1")
    'a b.txt'
    """
    name = shown_url(url).rstrip("/").rpartition("/")[2]
    return unquote(name) if is_web(url) else name


def is_bucket(location: str) -> bool:
    """Return True for the URL of a place in a bucket."""
    return location.lower().startswith(tuple(f"{scheme}://" for scheme in BUCKETS))


def how_to_repair(location: str) -> str:
    """Return how files of a dataset at a location are repaired, for messages.

    >>> how_to_repair("data"), how_to_repair("s3://bucket/data")
    ('verify --repair', 'verify --repair, of a copy on this machine')
    """
    return "verify --repair" + ", of a copy on this machine" * is_url(location)


def join_location(directory: str, name: str) -> str:
    """Return the location of a file in a directory, or below a URL.

    >>> join_location("s3://bucket/data/", "train.bin"), join_location("data", "train.bin")
    ('s3://bucket/data/train.bin', 'data/train.bin')
    """
    return f"{directory.rstrip('/')}/{name}" if is_url(directory) else os.path.join(directory, name)


def relative_location(location: str, directory: str) -> str:
    """Return the way from a directory to a location; an absolute one if one of them is elsewhere.

    >>> relative_location("s3://bucket/data/train.json", "s3://bucket/rows")
    '../data/train.json'
    >>> relative_location("s3://bucket/data/train.json", "rows")
    's3://bucket/data/train.json'
    """
    roots = [x.split("/")[:3] if is_url(x) else [] for x in (location, directory)]
    return os.path.relpath(location, directory) if roots[0] == roots[1] else location


def split_location(location: str) -> tuple[str, str]:
    """Split the location of a file into (directory, name).

    >>> split_location("s3://bucket/train.bin"), split_location("train.bin")
    (('s3://bucket', 'train.bin'), ('.', 'train.bin'))
    """
    if is_url(location):
        directory, _, name = location.rpartition("/")
        return directory, name
    path = Path(location)
    return str(path.parent), path.name
