"""Files at URLs: an object, all objects below a prefix, or those that match a pattern.

A bucket is read as a directory with the same files would be: in the same order, by the same names,
and what is left out there is left out here; `.gitignore` files have no effect.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from fnmatch import fnmatchcase
from glob import has_magic
from itertools import groupby
from typing import NamedTuple

from bpe.errors import CorpusError
from bpe.files.locations import is_web, shown_url, url_name
from preprocess.sources.folders import is_beside_data
from preprocess.sources.own_files import own_files
from preprocess.sources.remote import RemoteFile, corpus_errors, find_object
from preprocess.storage import JOURNAL_FILE
from preprocess.storage.forked import open_anywhere
from preprocess.storage.remote import ObjectInfo, split_url


class FoundFile(NamedTuple):
    """A file, its name in manifests, and whether it was found below a directory."""

    file: RemoteFile
    name: str
    is_below: bool


class _Object(NamedTuple):
    """An object below a prefix: the parts of its path below it, its key, what a listing says."""

    parts: tuple[str, ...]
    key: str
    info: ObjectInfo


def files_at(url: str) -> list[FoundFile]:
    """Return the files that a URL means, at least one: an object, a directory or a pattern.

    Raises:
        CorpusError: There is none, the URL cannot be used, or its server does not answer.
    """
    with corpus_errors():
        found = None if _is_directory(url) else find_object(url)
        if found is not None:
            return [FoundFile(found, url_name(url), False)]
        if is_web(url):
            raise CorpusError(
                f"{shown_url(url)}: there is no such file; check the URL, which has to name a file,"
                " for web servers do not list theirs"
            )
        return _matches(url) if has_magic(split_url(url)[1]) else _below(url)


def matching_files(url: str) -> list[RemoteFile]:
    """Return the files that a URL means: an object, those directly in a directory, or matches.

    Nothing is left out but hidden files; [] if there are none.

    Raises:
        RemoteError: The URL cannot be used, or its server does not answer.
    """
    found = None if _is_directory(url) else find_object(url)
    if found is not None or is_web(url):
        return [] if found is None else [found]
    base, pattern = _split_pattern(url.rstrip("/"))
    pattern = pattern or ["*"]
    return [_file(base, x, 0).file for x in _list(base) if _matches_all(pattern, x.parts)]


def _is_directory(url: str) -> bool:
    return not is_web(url) and (url.endswith("/") or not split_url(url)[1])


def _below(url: str) -> list[FoundFile]:
    """Return the files below a prefix."""
    objects = _list(url.rstrip("/"))
    if not objects:
        raise CorpusError(
            f"{shown_url(url)}: there is no such object, and none below it; check the URL and the"
            " name of the bucket"
        )
    text = _without_left_out(_without_own(url, objects), 0)
    found = [_file(url, each, 0) for each in text]
    if not found:
        raise CorpusError(
            f"{shown_url(url)}: no text files below this prefix (names that begin with a dot are"
            " skipped); give another"
        )
    return found


def _matches(url: str) -> list[FoundFile]:
    """Return the files that match a pattern, and those below what matches."""
    base, pattern = _split_pattern(url)
    text = _without_own(base, _list(base))
    lengths = ((each, _match(pattern, each.parts)) for each in text)
    matching = [("/".join(each.parts[:n]), each, n) for each, n in lengths if n >= 0]
    found = []
    for _, group in groupby(sorted(matching, key=_path), _path):
        _, objects, (n, *_) = zip(*group, strict=True)
        is_file = len(objects[0].parts) == n
        found += [
            _file(base, each, n) for each in (objects if is_file else _without_left_out(objects, n))
        ]
    if not found:
        raise CorpusError(f"{shown_url(url)}: no object matches this pattern; correct it")
    return found


def _split_pattern(url: str) -> tuple[str, list[str]]:
    """Split a URL into (what is before the first part with a character of patterns, the parts)."""
    base, pattern = url, list[str]()
    while has_magic(base.partition("://")[2]):
        base, _, last = base.rpartition("/")
        pattern.insert(0, last)
    return base, pattern


def _path(matching: tuple[str, _Object, int]) -> bytes:
    return matching[0].encode()


def _match(pattern: Sequence[str], parts: Sequence[str]) -> int:
    """Return how many parts of a path a pattern matches, as few as possible; -1: it does not.

    `**` stands for any number of parts. As in `glob`, names that begin with a dot match only
    patterns that do.
    """
    return next((n for n in range(len(parts) + 1) if _matches_all(pattern, parts[:n])), -1)


def _matches_all(pattern: Sequence[str], parts: Sequence[str]) -> bool:
    if not pattern:
        return not parts
    if pattern[0] == "**":
        n = next((i for i, part in enumerate(parts) if part.startswith(".")), len(parts))
        return any(_matches_all(pattern[1:], parts[i:]) for i in range(n + 1))
    if not parts or (parts[0].startswith(".") and not pattern[0].startswith(".")):
        return False
    return fnmatchcase(parts[0], pattern[0]) and _matches_all(pattern[1:], parts[1:])


def _list(url: str) -> list[_Object]:
    """Return all objects below a prefix, in the order of the files of a directory."""
    root, key = split_url(url)
    objects = open_anywhere(root)
    prefix = f"{objects.pinned(key)}/" if key else ""
    found = [
        _Object(tuple(path.removeprefix(prefix).split("/")), path, info)
        for path, info in objects.keys(prefix)
        if not path.endswith("/")  # stands for an empty directory
    ]
    return sorted(found, key=lambda each: [part.encode() for part in each.parts])


def _without_own(url: str, objects: Sequence[_Object]) -> list[_Object]:
    """Leave out files of tokenmill."""
    by_path = {"/".join(each.parts): each for each in objects}
    names, journals = defaultdict[str, set[str]](set), defaultdict[str, dict[str, str]](dict)
    for each in objects:
        if each.parts[-1] == JOURNAL_FILE and len(each.parts) > 1:
            *above, run, name = each.parts  # it says which files are renamed
            journals["/".join(above)][run] = f"{run}/{name}"
        names["/".join(each.parts[:-1])].add(each.parts[-1])

    def own_in(directory: str) -> set[str]:
        def opened(path: str) -> RemoteFile | None:
            found = by_path.get(f"{directory}/{path}".lstrip("/"))
            return None if found is None else _file(url, found, 0).file

        return own_files(names[directory], journals[directory].values(), opened)

    own = {directory: own_in(directory) for directory in [*names]}
    return [x for x in objects if x.parts[-1] not in own["/".join(x.parts[:-1])]]


def _without_left_out(objects: Sequence[_Object], n: int) -> list[_Object]:
    """Leave out what is left out of a directory, the first `n` parts: hidden files, for example."""
    visible = [x for x in objects if not any(part.startswith(".") for part in x.parts[n:])]
    names: dict[tuple[str, ...], set[str]] = {}
    for each in visible:
        names.setdefault(each.parts[:-1], set()).add(each.parts[-1])
    return [x for x in visible if not is_beside_data(x.parts[-1], names[x.parts[:-1]])]


def _file(base: str, found: _Object, n: int) -> FoundFile:
    """Return the file of an object below `base`; `n` parts of its path are what was named."""
    url = "/".join((base.rstrip("/"), *found.parts))
    file = RemoteFile(url, found.key, found.info)
    name = found.parts[n:] or found.parts[-1:]
    return FoundFile(file, "/".join(name), n < len(found.parts))
