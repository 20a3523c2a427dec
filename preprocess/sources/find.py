"""The sources in files, directories, patterns, lists, URLs and standard input, in order.

A prefix in a bucket is read as a directory with the same files would be: in the same order, by the
same names, and what is left out there is left out here; only `.gitignore` files have no effect.
What tokenmill writes is left out, for outputs may be beside the text, and so are files that
describe data.
"""

from __future__ import annotations

import fnmatch
import glob
import logging
import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence, Set
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from bpe.errors import CorpusError
from bpe.files.locations import is_url, is_web, shown_url
from bpe.parallel import run_in_order
from preprocess.documents.batch import ReadOptions
from preprocess.locations import url_name
from preprocess.sources.base import Source, import_library
from preprocess.sources.own_files import is_log, own_files, own_files_in
from preprocess.sources.registry import is_binary, open_source
from preprocess.sources.remote import RemoteFile, corpus_errors, find_object, open_url
from preprocess.sources.standard_input import FILE_NAME as STANDARD_INPUT
from preprocess.sources.standard_input import StandardInput
from preprocess.sources.text_file import InputFile, new_array, open_file
from preprocess.storage import JOURNAL_FILE
from preprocess.storage.forked import open_anywhere
from preprocess.storage.remote import split_url

_OPENED_AT_ONCE = 16  # remote files: their servers answer slowly, but many requests at once
logger = logging.getLogger("preprocess")

# Files that Hugging Face `datasets` writes beside its Arrow files, in directories with these.
_DESCRIPTIONS = {"dataset_info.json", "dataset_dict.json"}
_BESIDE_ARROW = (*_DESCRIPTIONS, "state.json", "cache-*.arrow", "*.lock")


class Found(NamedTuple):
    """A file, its name in manifests, and whether it was found below a directory."""

    place: Path | RemoteFile
    name: str
    is_below: bool


def find_sources(
    paths: Collection[str | os.PathLike[str]], reading: ReadOptions,
    binary_files: list[Path | str] | None = None,
) -> list[Source]:
    """Find the sources in files, directories, patterns, lists and URLs, in order.

    A file is one source. A directory is searched as `_files_below` says; its binary files are
    skipped, unless they have a format with a reader, and added to `binary_files`. A path that does
    not exist and has one of the characters `*?[` is a pattern as in `glob`, `**` included; its
    matches are sorted. `@name` is a file with a path in each line, `-` standard input. A URL is an
    object, or all objects below a prefix, or those that match a pattern. Files that tokenmill has
    written are left out, unless there are no others; so are directories without text that have
    such files or match a pattern.

    Raises:
        CorpusError: A path does not exist, cannot be read or has a format without a reader; a
            directory has no files; nothing matches a pattern.
    """
    sources: list[Source] = []
    own = cache(own_files_in)
    matches, without_text = set[Path](), ""
    expanded = [*_expand(paths, matches)]
    text = [x for x in expanded if not (isinstance(x, Path) and _is_own(x, own(x.parent)))]
    if text and (named := {*map(str, paths)} & {*map(str, {*expanded} - {*text})}):
        logger.info("%d outputs of tokenmill are no text, such as %s", len(named), min(named))
    for path in text or expanded:  # if outputs alone are named, it is said what they are
        if path is None:
            sources.append(
                StandardInput(lambda path: open_source(path, STANDARD_INPUT, reading))
            )
            continue
        found = _files_at(path) if isinstance(path, str) else _files_in(path)
        opened = [x for x in _open_all(found, reading) if x is not None]
        sources += [x for x in opened if isinstance(x, Source)]
        binary = [x for x in opened if not isinstance(x, Source)]
        if binary_files is not None:
            binary_files += binary
        if len(opened) > len(binary):
            continue
        if isinstance(path, str):
            raise CorpusError(
                f"{binary[0]}: is binary, as all files that {shown_url(path)} means; give the URL"
                " of text"
            )
        without_text = (
            f"{path}: no text files in this directory or below it (names that begin with a dot,"
            " binary files, outputs of tokenmill and what .gitignore excludes are skipped); give"
            " another directory"
        )
        if path not in matches and not own(path):
            raise CorpusError(without_text)
    if without_text and not sources:
        raise CorpusError(without_text)
    return sources


def _open_all(found: Sequence[Found], reading: ReadOptions) -> list[Source | Path | str | None]:
    """Open files; one that is skipped becomes its path if it is binary, None if it is a log."""

    def open_one(each: Found) -> Source | Path | str | None:
        is_local = isinstance(each.place, Path)
        if each.is_below:
            file = open_file(each.place) if isinstance(each.place, Path) else each.place
            if is_local and is_log(file):
                return None
            if is_binary(file, each.name, reading):
                return each.place if isinstance(each.place, Path) else each.place.path
        return open_source(each.place, each.name, reading)

    is_remote = any(isinstance(each.place, RemoteFile) for each in found)
    n_threads = min(len(found), _OPENED_AT_ONCE) if is_remote else 0
    if not n_threads:
        return [open_one(each) for each in found]
    with closing(run_in_order(found, lambda: open_one, n_threads)) as opened:
        return [*opened]


def check_fields_are_used(sources: Sequence[Source], reading: ReadOptions) -> None:
    """Raise CorpusError if fields or a kind of conversations are given, and no source has them."""
    if reading.chat not in ("auto", "off") and not any(source.has_spans for source in sources):
        raise CorpusError(
            f"--chat {reading.chat} is given, and no file has conversations; leave it out, or name"
            " the format of the files (--format jsonl)"
        )
    if not (reading.content_field or reading.text_preset):
        return
    if not any(source.has_fields for source in sources):
        option = "--text-preset" if reading.text_preset else "--content-field"
        raise CorpusError(
            f"{option} is given, and all files are text without fields; leave it out, or name the"
            " format of the files (--format jsonl)"
        )


def _is_own(path: Path, own: Set[str]) -> bool:
    return path.name in own or (path.is_file() and is_log(open_file(path)))


# Paths.


def _expand(
    paths: Iterable[str | os.PathLike[str]], matches: set[Path]
) -> Iterator[Path | str | None]:
    """Yield the files, directories and URLs that paths, patterns and lists name; None: `-`.

    What matches a pattern is added to `matches`.
    """
    for given in paths:
        name = os.fspath(given)
        is_list = name.startswith("@") and not os.path.lexists(name)
        for each in _listed_paths(name[1:]) if is_list else [name]:
            if each == "-":
                yield None
            elif is_url(each):
                yield each
            elif not glob.has_magic(each) or os.path.lexists(each):
                yield Path(each)
            elif found := glob.glob(each, recursive=True):
                matches |= {*map(Path, found)}
                yield from _outermost(sorted(map(Path, found), key=os.fsencode))
            else:
                raise CorpusError(f"{each}: no file or directory matches this pattern; correct it")


def looks_into(path: str, directory: str) -> bool:
    """Return True if files of a directory would be among those that a path of text means."""
    is_remote = is_url(path)
    if is_remote != is_url(directory):
        return False
    place, inside = (
        x.rstrip("/") if is_remote else os.path.realpath(x) for x in (path, directory)
    )
    if not glob.has_magic(path) or os.path.lexists(path):
        return (is_remote or os.path.isdir(place)) and f"{inside}/".startswith(f"{place}/")
    searched = os.path.dirname(place)  # directories that match the pattern are searched, too
    return inside == searched.removesuffix("/**") or any(
        fnmatch.fnmatch(inside, pattern) for pattern in (searched, place)
    )


def _outermost(paths: list[Path]) -> Iterator[Path]:
    """Yield paths that are not below a directory among them, which is searched itself."""
    directories = {path for path in paths if path.is_dir()}
    yield from (path for path in paths if directories.isdisjoint(path.parents))


def _listed_paths(location: str) -> list[str]:
    """Return the lines of a list of paths, without blank ones."""
    data: InputFile = open_url(location) if is_url(location) else open_file(Path(location))
    try:
        text = data.read(0, data.n_bytes, new_array).tobytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CorpusError(
            f"{data.path}: the list of paths is not UTF-8 at byte {error.start:,}; correct it"
        ) from None
    found = [line.strip() for line in text.split("\n") if line.strip()]
    if not found:
        raise CorpusError(f"{data.path}: the list has no path; write one in each line")
    return found


# Directories.


def _files_in(path: Path) -> list[Found]:
    """Return the files that a path means: itself, or those below a directory."""
    if not path.is_dir():
        return [Found(path, path.name, False)]
    files = _files_below(path, (path.resolve(),), ())
    return [Found(x, x.relative_to(path).as_posix(), True) for x in files]


def _is_beside_data(name: str, names: Set[str]) -> bool:
    """Return True for what `datasets` writes beside its data; `names` are all in the directory."""
    beside = _BESIDE_ARROW if names & _DESCRIPTIONS else ()
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in beside)


def _files_below(
    directory: Path, seen: tuple[Path, ...], ignored: tuple[tuple[Path, Any], ...]
) -> Iterator[Path]:
    """Yield the files below a directory, depth first, sorted by name.

    Names that begin with a dot are skipped, and what a `.gitignore` in the directory or below it
    excludes. Symbolic links are followed, once.

    Args:
        directory: The directory.
        seen: Its ancestors.
        ignored: The .gitignore files that apply.

    Raises:
        CorpusError: A directory cannot be listed.
    """
    try:
        entries = sorted(directory.iterdir(), key=lambda entry: os.fsencode(entry.name))
    except OSError as error:
        raise CorpusError(
            f"{directory}: cannot be listed: {error.strerror}; make it readable or leave it out"
        ) from error
    names = {entry.name for entry in entries}
    own = own_files_in(directory)
    if ".gitignore" in names:
        ignored = (*ignored, (directory, _read_gitignore(directory / ".gitignore")))
    for entry in entries:
        is_directory = entry.is_dir()
        if (
            entry.name.startswith(".")
            or entry.name in own
            or _is_beside_data(entry.name, names)
            or _is_ignored(entry, is_directory, ignored)
        ):
            continue
        if not is_directory:
            yield entry
        elif (resolved := entry.resolve()) not in seen:
            yield from _files_below(entry, (*seen, resolved), ignored)


def _read_gitignore(path: Path) -> Any:
    pathspec = import_library("pathspec", ".gitignore")
    file = open_file(path)
    text = file.read(0, file.n_bytes).tobytes().decode("utf-8", "replace")
    return pathspec.GitIgnoreSpec.from_lines(text.splitlines())


def _is_ignored(path: Path, is_directory: bool, ignored: tuple[tuple[Path, Any], ...]) -> bool:
    """Return True if the innermost .gitignore that has a pattern for a path excludes it."""
    for base, spec in reversed(ignored):
        name = path.relative_to(base).as_posix() + "/" * is_directory
        if (found := spec.check_file(name).include) is not None:
            return bool(found)
    return False


# URLs.


class _Object(NamedTuple):
    """An object below a prefix: the parts of its path below it, and the file."""

    parts: tuple[str, ...]
    file: RemoteFile

    @property
    def directory(self) -> tuple[str, ...]:
        return self.parts[:-1]

    @property
    def name(self) -> str:
        return self.parts[-1]


def _files_at(url: str) -> list[Found]:
    """Return the files that a URL means, at least one: an object, a directory or a pattern.

    Raises:
        CorpusError: There is none, the URL cannot be used, or its server does not answer.
    """
    with corpus_errors():
        found = _object_at(url)
        if found is not None:
            return [Found(found, url_name(url), False)]
        if is_web(url):
            raise CorpusError(
                f"{shown_url(url)}: there is no such file; check the URL, which has to name a file,"
                " for web servers do not list theirs"
            )
        return _matches(url)


def matching_files(url: str) -> list[RemoteFile]:
    """Return the files that a URL means: an object, those directly in a directory, or matches.

    Nothing is left out but hidden files; [] if there are none.

    Raises:
        RemoteError: The URL cannot be used, or its server does not answer.
    """
    found = _object_at(url)
    if found is not None or is_web(url):
        return [] if found is None else [found]
    base, pattern = _split_pattern(url.rstrip("/"))
    return [x.file for x in _list(base) if _matches_all(pattern or ["*"], x.parts)]


def _object_at(url: str) -> RemoteFile | None:
    is_directory = not is_web(url) and (url.endswith("/") or not split_url(url)[1])
    return None if is_directory else find_object(url)


def _matches(url: str) -> list[Found]:
    """Return the files that match a pattern, or a prefix, and those below what matches."""
    base, pattern = _split_pattern(url.rstrip("/"))
    objects, groups = _list(base), defaultdict[tuple[str, ...], list[_Object]](list)
    for each in _without_own(objects):
        if (n := _match(pattern, each.parts)) >= 0:
            groups[each.parts[:n]].append(each)
    found: list[Found] = []
    for matched in sorted(groups, key=lambda parts: "/".join(parts).encode()):
        below, n = groups[matched], len(matched)
        if len(below[0].parts) > n:
            below = _without_left_out(below, n)
        for each in below:  # its name is what is below the part that was named
            name = "/".join(each.parts[n:] or each.parts[-1:])
            found.append(Found(each.file, name, n < len(each.parts)))
    if found:
        return found
    problem = "there is no such object, and none below it; check the URL and the name of the bucket"
    if pattern:
        problem = "no object matches this pattern; correct it"
    elif objects:
        problem = (
            "no text files below this prefix (names that begin with a dot are skipped); give"
            " another"
        )
    raise CorpusError(f"{shown_url(url)}: {problem}")


def _split_pattern(url: str) -> tuple[str, list[str]]:
    """Split a URL into (what is before the first part with a character of patterns, the parts)."""
    base, pattern = url, list[str]()
    while glob.has_magic(base.partition("://")[2]):
        base, _, last = base.rpartition("/")
        pattern.insert(0, last)
    return base, pattern


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
    return fnmatch.fnmatchcase(parts[0], pattern[0]) and _matches_all(pattern[1:], parts[1:])


def _list(url: str) -> list[_Object]:
    """Return all objects below a prefix, in the order of the files of a directory."""
    root, key = split_url(url)
    objects = open_anywhere(root)
    prefix = f"{objects.pinned(key)}/" if key else ""
    found = []
    for path, info in objects.keys(prefix):
        if not path.endswith("/"):  # stands for an empty directory
            below = path.removeprefix(prefix)
            file = RemoteFile(f"{url.rstrip('/')}/{below}", path, info)
            found.append(_Object(tuple(below.split("/")), file))
    return sorted(found, key=lambda each: [part.encode() for part in each.parts])


def _without_own(objects: Sequence[_Object]) -> list[_Object]:
    """Leave out files of tokenmill."""
    files = {each.parts: each.file for each in objects}
    names, runs = defaultdict[Any, set[str]](set), defaultdict[Any, set[str]](set)
    for each in objects:
        if each.name == JOURNAL_FILE and each.directory:
            runs[each.directory[:-1]].add(each.directory[-1])  # it says which files are renamed
        names[each.directory].add(each.name)

    def own_in(directory: tuple[str, ...]) -> set[str]:
        journals = [f"{run}/{JOURNAL_FILE}" for run in runs[directory]]
        return own_files(
            names[directory], journals, lambda path: files.get((*directory, *path.split("/")))
        )

    own = {directory: own_in(directory) for directory in [*names]}
    return [x for x in objects if x.name not in own[x.directory]]


def _without_left_out(objects: Sequence[_Object], n: int) -> list[_Object]:
    """Leave out what is left out of a directory, the first `n` parts: hidden files, for example."""
    visible = [x for x in objects if not any(part.startswith(".") for part in x.parts[n:])]
    names = defaultdict[Any, set[str]](set)
    for each in visible:
        names[each.directory].add(each.name)
    return [x for x in visible if not _is_beside_data(x.name, names[x.directory])]
