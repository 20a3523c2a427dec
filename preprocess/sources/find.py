"""The sources that paths, patterns, lists, URLs and standard input mean, in order.

A prefix in a bucket is read as a directory with the same files would be: in the same order, by the
same names, and what is left out there is left out here; only `.gitignore` files have no effect.
Files that describe data are left out, and so is what tokenmill has written, for outputs may be
beside the text: manifests and statistics name it. A run that was interrupted while it gave files
their final names is known by its journal, and a removal by its list, so the same command finds the
same text again.
"""

from __future__ import annotations

import errno
import fnmatch
import glob
import logging
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from functools import cache
from itertools import chain, islice
from logging import FileHandler
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from bpe.errors import CorpusError
from bpe.files.locations import given_location, is_url, is_web, shown_url
from bpe.formats.json_file import decoded
from bpe.parallel import cached_property, run_in_order
from preprocess.dataset import columns as table
from preprocess.dataset.manifest import FORMAT, spellings_of
from preprocess.documents.batch import ReadOptions
from preprocess.iterables import Documents
from preprocess.locations import url_name
from preprocess.sources.base import Source, import_library
from preprocess.sources.iterables import open_documents
from preprocess.sources.registry import is_log, is_named_text, open_source, warn_once
from preprocess.sources.remote import RemoteFile, corpus_errors, find_object, open_url
from preprocess.sources.standard_input import StandardInput
from preprocess.sources.text_file import InputFile, open_file
from preprocess.storage import JOURNAL_FILE
from preprocess.storage.forked import open_anywhere
from preprocess.storage.local import LOCK_FILE, PARTIAL, REMOVAL_FILE
from preprocess.storage.remote import split_url

_OPENED_AT_ONCE = 16  # remote files: their servers answer slowly, but many requests at once
_NAMED = 3  # most names in a warning
_BEGIN_BYTES = 4096  # of a file, which name its format
# Files that Hugging Face `datasets` writes beside its Arrow files, in directories with these.
_DESCRIPTIONS = {"dataset_info.json", "dataset_dict.json"}
_BESIDE_ARROW = (*_DESCRIPTIONS, "state.json", "cache-*.arrow", "*.lock")
logger = logging.getLogger("preprocess")


class _Given(NamedTuple):
    """What a path means: a file, a directory or documents; None: standard input."""

    shown: str  # for messages
    place: Path | RemoteFile | Documents | _Directory | None
    name: str = ""  # of a file, in manifests
    is_own: bool = False  # of tokenmill
    is_match: bool = False  # of a pattern, so it may have no text


class _Found(NamedTuple):
    """A file, its name in manifests, and whether it was found below a directory."""

    place: Path | RemoteFile | Documents | None
    name: str
    is_below: bool


def find_sources(
    paths: Collection[str | os.PathLike[str] | Documents], reading: ReadOptions,
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
    given = [*_expand(paths)]
    text = [each for each in given if not each.is_own]
    if text and (named := {*map(str, paths)} & {each.shown for each in given if each.is_own}):
        logger.info("%d outputs of tokenmill are no text, such as %s", len(named), min(named))
    given = text or given  # if outputs alone are named, it is said what they are
    found = [
        [*_files_below(each.place)] if isinstance(each.place, _Directory)
        else [_Found(each.place, each.name, False)]
        for each in given
    ]  # fmt: skip
    opened = iter(_open_all([*chain(*found)], reading))
    sources, without_text = list[Source](), ""
    for each, files in zip(given, found, strict=True):
        of_path = [*islice(opened, len(files))]
        new = [x for x in of_path if isinstance(x, Source)]
        sources += new
        binary = [x for x in of_path if isinstance(x, Path | str)]
        if binary_files is not None:
            binary_files += binary
        if names := [str(x) for x in binary if is_named_text(x)]:
            more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
            warn_once(
                f"{', '.join(names[:_NAMED])}{more}: left out as binary, for a zero byte, though"
                " named as text; remove the zero byte, or give the path of the file itself to read"
                " it so"
            )
        if not new:
            without_text = (
                f"{each.shown}: no text files in this directory or below it (names that begin with"
                " a dot, binary files, outputs of tokenmill and what .gitignore excludes are"
                " skipped); give another directory"
            )
            if not each.is_match and isinstance(each.place, _Directory) and not each.place.own:
                raise CorpusError(without_text)
    if without_text and not sources:
        raise CorpusError(without_text)
    return sources


def _open_all(found: Sequence[_Found], reading: ReadOptions) -> list[Source | Path | str | None]:
    """Open files; one that is skipped becomes its path if it is binary, None if it is a log."""

    def open_one(each: _Found) -> Source | Path | str | None:
        if each.place is None:
            return StandardInput(reading)
        if isinstance(each.place, Documents):
            return open_documents(each.place, reading)
        file = open_file(each.place) if isinstance(each.place, Path) else each.place
        return open_source(file, each.name, reading, each.is_below)

    is_remote = any(isinstance(each.place, RemoteFile) for each in found)
    n_threads = min(len(found), _OPENED_AT_ONCE) if is_remote else 1
    with closing(run_in_order(found, lambda: open_one, n_threads)) as opened:
        return [*opened]


def check_fields_are_used(sources: Sequence[Source], reading: ReadOptions) -> None:
    """Raise CorpusError if fields or a kind of conversations are given, and no source has them."""
    option, what = "", "all files are text without fields"
    if reading.chat not in ("auto", "off") and not any(source.has_spans for source in sources):
        option, what = f"--chat {reading.chat}", "no file has conversations"
    elif not any(source.has_fields for source in sources):
        option = "--text-preset" if reading.text_preset else "--content-field"
        option = option if reading.text_preset or reading.content_field else ""
    if option:
        raise CorpusError(
            f"{option} is given, and {what}; leave it out, or name the format of the files"
            " (--format jsonl)"
        )


# Paths.


def _expand(paths: Iterable[str | os.PathLike[str] | Documents]) -> Iterator[_Given]:
    """Yield what paths, patterns, lists, URLs and `-` mean."""
    listed = cache(_Directory)
    for path in paths:
        if isinstance(path, Documents):
            yield _Given(str(path), path)
            continue
        name = os.fspath(path)
        is_list = name.startswith("@") and not os.path.lexists(name)
        for each in _listed_paths(name[1:]) if is_list else [name]:
            if each == "-":
                yield _Given(each, None)
            elif is_url(each):
                with corpus_errors():
                    yield from _expand_url(each)
            else:
                yield from _expand_path(each, listed)


def _listed_paths(location: str) -> list[str]:
    """Return the lines of a list of paths, without blank ones."""
    path = given_location(location)
    data: InputFile = open_url(path) if is_url(path) else open_file(Path(path))
    try:
        text = decoded(data.read(0, data.n_bytes).tobytes())
    except UnicodeDecodeError as error:
        raise CorpusError(
            f"{data.path}: the list of paths is not {error.encoding.upper()} at byte"
            f" {error.start:,}; correct it"
        ) from None
    found = [line.strip() for line in text.split("\n") if line.strip()]
    if not found:
        raise CorpusError(f"{data.path}: the list has no path; write one in each line")
    return found


def _expand_path(given: str, listed: Callable[[Path], _Directory]) -> Iterator[_Given]:
    paths, is_match = [Path(given)], glob.has_magic(given) and not os.path.lexists(given)
    if is_match:
        matched = sorted(map(Path, glob.glob(given, recursive=True)), key=os.fsencode)
        directories = {path for path in matched if path.is_dir()}  # which are searched themselves
        paths = [path for path in matched if directories.isdisjoint(path.parents)]
        if not paths:
            raise CorpusError(f"{given}: no file or directory matches this pattern; correct it")
    for path in paths:
        own = set[str]()
        with suppress(CorpusError):  # files in a directory may be read that cannot be listed
            own = listed(path.parent).own
        is_own = path.name in own or (path.is_file() and is_log(open_file(path)))
        place = listed(path) if path.is_dir() and not is_own else path
        yield _Given(str(path), place, path.name, is_own, is_match)


def _expand_url(url: str) -> Iterator[_Given]:
    """As `_expand`, of the URL of an object, a directory or a pattern; raise RemoteError, too."""
    file, shown = _object_at(url), shown_url(url)
    if file is not None:
        yield _Given(shown, file, url_name(url))
        return
    if is_web(url):
        raise CorpusError(
            f"{shown}: there is no such file; check the URL, which has to name a file, for web"
            " servers do not list theirs"
        )
    base, pattern = _split_pattern(url)
    root = _list_objects(base)
    found = [*_matches(root, {pattern})] if pattern or root.files or root.directories else []
    if not found:
        problem = "there is no such object, and none below it; check the URL and the bucket's name"
        problem = "no object matches this pattern; correct it" if pattern else problem
        raise CorpusError(f"{shown}: {problem}")
    for path, place, parent in sorted(found, key=lambda each: each[0].encode()):
        name = path.rpartition("/")[2]
        is_own = parent is not None and name in parent.own
        yield _Given(shown_url(base + path), place, name, is_own, pattern != ())


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


# URLs.


def _object_at(url: str) -> RemoteFile | None:
    """Return the object that a URL names; None: it is that of a directory or a pattern, if any."""
    is_directory = not is_web(url) and (url.endswith("/") or not split_url(url)[1])
    return None if is_directory else find_object(url)


def _split_pattern(url: str) -> tuple[str, tuple[str, ...]]:
    """Split a URL into (what is before the first part with a character of patterns, the parts)."""
    base, pattern = url.rstrip("/"), list[str]()
    while glob.has_magic(base.partition("://")[2]):
        base, _, last = base.rpartition("/")
        pattern.insert(0, last)
    return base, (*pattern,)


def _list_objects(url: str) -> _Directory:
    """Return all objects below a prefix; raise RemoteError if it cannot be listed."""
    root, key = split_url(url)
    objects, found = open_anywhere(root), _Directory()
    prefix = f"{objects.pinned(key)}/" if key else ""
    for path, info in objects.keys(prefix):
        below = path.removeprefix(prefix)
        *parents, name = below.split("/")
        directory: Any = found
        for parent in parents:
            directory = directory.directories.setdefault(parent, _Directory())
        if name:  # else it stands for an empty directory
            directory.files[name] = RemoteFile(f"{url.rstrip('/')}/{below}", path, info)
    return found


def _matches(
    place: Any, patterns: set[tuple[str, ...]], path: str = "", parent: _Directory | None = None,
    is_whole: bool = True,
) -> Iterator[tuple[str, Any, _Directory | None]]:
    """Yield (path, file or directory, directory that it is in) of what matches one of patterns.

    `**` stands for any number of directories. As in `glob`, names that begin with a dot match only
    patterns that do.

    Args:
        place: What is at `path`, below a prefix.
        patterns: Parts of patterns, of what is below it.
        path: Parts of paths, each after a slash.
        parent: Where it is.
        is_whole: Yield directories, and nothing below them; False: files alone.
    """
    left = {x[n:] for x in patterns for n in range(len(x) + 1) if {*x[:n]} <= {"**"}}
    if () in left and (is_whole or isinstance(place, RemoteFile)):
        yield path, place, parent
        return
    if isinstance(place, RemoteFile):
        return
    for name, below in chain(place.files.items(), place.directories.items()):
        following = {
            x if x[0] == "**" else x[1:] for x in left
            if x and fnmatch.fnmatchcase(name, x[0]) and (name[:1] != "." or x[0][:1] == ".")
        }  # fmt: skip
        if following:
            yield from _matches(below, following, f"{path}/{name}", place, is_whole)


def matching_files(url: str) -> list[RemoteFile]:
    """Return the files that a URL means: an object, those directly in a directory, or matches.

    Nothing is left out but hidden files; [] if there are none.

    Raises:
        RemoteError: The URL cannot be used, or its server does not answer.
    """
    found = _object_at(url)
    if found is not None or is_web(url):
        return [] if found is None else [found]
    base, pattern = _split_pattern(url)
    files = [*_matches(_list_objects(base), {pattern or ("*",)}, is_whole=False)]
    files.sort(key=lambda each: [part.encode() for part in each[0].split("/")])
    return [file for _, file, _ in files]


# Directories.


class _Directory:
    """What is in a directory, by name; below a URL a file and a directory may have the same one.

    Raises:
        CorpusError: The directory of this machine at `path` cannot be listed.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.files: dict[str, Path | RemoteFile] = {}
        self.directories: dict[str, Path | _Directory] = {}
        self.others: dict[str, Path] = {}  # links that lead nowhere, pipes, devices
        if path is None:
            return
        try:
            with os.scandir(path) as entries:  # faster than asking each path
                for each in entries:
                    is_link = each.is_symlink()  # it may not be possible to follow it
                    is_below = os.path.isdir(each) if is_link else each.is_dir()
                    found = self.directories if is_below else self.files
                    if not is_below and _is_no_file(each):
                        self.others[each.name] = path / each.name
                    else:
                        found[each.name] = path / each.name
        except OSError as error:
            raise CorpusError(
                f"{path}: cannot be listed: {error.strerror}; make it readable or leave it out"
            ) from error

    @cached_property
    def own(self) -> set[str]:
        """The names of what tokenmill has written, also in a run that was interrupted."""
        runs = {x for x in self.directories if x.startswith(".") and x.endswith(PARTIAL)}
        logs = (Path(x.baseFilename) for x in logger.handlers if isinstance(x, FileHandler))
        own = {log.name for log in logs if self.path and log.parent == self.path.resolve()}
        own |= {*runs, LOCK_FILE, *_described_files(self)}
        removal = _content(self.files.get(REMOVAL_FILE))
        # An incomplete list of a removal is ignored.
        with suppress(msgspec.MsgspecError, RecursionError):
            own |= {*msgspec.json.decode(removal, type=dict[str, Any])}
        for run in runs:
            inside = self.directories[run]
            files = inside.files if isinstance(inside, _Directory) else {}
            journal = inside / JOURNAL_FILE if isinstance(inside, Path) else files.get(JOURNAL_FILE)
            last = _content(journal).rstrip(b"\n").rpartition(b"\n")[2]
            with suppress(msgspec.MsgspecError, RecursionError):
                said = msgspec.json.decode(last, type=_Line).entry.value.values()
                own.update(*(names for names in said if isinstance(names, list)))
        return own & {*self.files, *self.directories}


def _is_no_file(entry: os.DirEntry[str]) -> bool:
    """Return True for a link that leads nowhere, a pipe or a device."""
    try:
        return not entry.is_file()
    except OSError as error:  # reading it will say that it cannot be read, and why
        return error.errno in (errno.ELOOP, errno.ENOTDIR)


def _files_below(
    directory: _Directory, prefix: str = "", seen: tuple[Path, ...] = (),
    ignored: tuple[tuple[Path, Any], ...] = (),
) -> Iterator[_Found]:
    """Yield the files below a directory, depth first, sorted by name.

    Names that begin with a dot are skipped, and what a `.gitignore` in the directory or below it
    excludes. Symbolic links are followed, once. What is no file is left out, with a warning.

    Args:
        directory: The directory.
        prefix: Begins the names of its files: where it is below the directory that is searched.
        seen: Its ancestors.
        ignored: The .gitignore files of these that apply.

    Raises:
        CorpusError: A directory cannot be listed.
    """
    names = {*directory.files, *directory.directories}
    beside = _BESIDE_ARROW if names & _DESCRIPTIONS else ()
    if directory.path is not None:
        seen = (*seen, directory.path.resolve())
        if ".gitignore" in directory.files:
            ignored = (*ignored, (directory.path, _read_gitignore(directory.path / ".gitignore")))
    others = [x for name, x in sorted(directory.others.items()) if name[:1] != "."]
    if others := [x for x in others if not _is_ignored(x, ignored)]:
        logger.warning(
            "%s: is no file (a link that leads nowhere, a pipe or a device), and is left out%s",
            others[0], f", as are {len(others) - 1} others beside it" if others[1:] else "",
        )
    for name in sorted(names - directory.own, key=os.fsencode):
        if name[:1] == "." or any(fnmatch.fnmatchcase(name, each) for each in beside):
            continue
        file, below = directory.files.get(name), directory.directories.get(name)
        if file is not None and not _is_ignored(file, ignored):
            yield _Found(file, f"{prefix}{name}", True)
        if below is None or _is_ignored(below, ignored, "/"):
            continue
        if isinstance(below, _Directory) or below.resolve() not in seen:
            below = below if isinstance(below, _Directory) else _Directory(below)
            yield from _files_below(below, f"{prefix}{name}/", seen, ignored)


def _read_gitignore(path: Path) -> Any:
    pathspec = import_library("pathspec", ".gitignore")
    file = open_file(path)
    text = file.read(0, file.n_bytes).tobytes().decode("utf-8", "replace")
    return pathspec.GitIgnoreSpec.from_lines(text.splitlines())


def _is_ignored(place: Any, ignored: tuple[tuple[Path, Any], ...], end: str = "") -> bool:
    """Return True if the innermost .gitignore that has a pattern for a path excludes it."""
    for base, spec in reversed(ignored):
        name = place.relative_to(base).as_posix() + end
        if (found := spec.check_file(name).include) is not None:
            return bool(found)
    return False


# Files of tokenmill.


class _Entry(Struct):
    value: dict[str, list[str] | bool]  # names of files, and how they are renamed


class _Line(Struct):
    """The last line of a journal, of a run that gives files their final names."""

    entry: _Entry


class _Described(Struct):
    """What JSON files of tokenmill say about others; each kind has some of the keys."""

    format: str
    manifests: dict[str, Any] = {}
    rejects: dict[str, Any] = {}
    beside: dict[str, Any] = {}
    shards: list[dict[str, Any]] = []
    files: list[dict[str, Any]] | int = 0
    fingerprint: str | None = None


def _described_files(directory: _Directory) -> set[str]:
    """Return the names of JSON files of tokenmill, and of the files that they describe."""
    own, stems, files = set[str](), set[str](), directory.files
    todo = [name for name in files if _may_describe(name, files)]
    for name in todo:  # manifests that others list are appended
        found = _described(files[name])
        if found is None:
            continue
        stem, listed = name.removesuffix(".json"), found.shards
        listed = [*listed, *(found.files if isinstance(found.files, list) else ())]
        own |= {name, *found.rejects, *found.beside, *(str(each.get("name")) for each in listed)}
        if stem == "rows":
            own.add("tokenization_stats.json")  # has times, so their manifest does not list it
        elif stem.endswith("stats"):
            own |= {"tokenizer.json", "tokenizer_config.json"}
            if found.fingerprint is not None:  # of the tokenizer that `train` wrote
                trained = stem.removesuffix("stats").rstrip("_")
                own |= {f"{trained}.json", f"{trained}_config.json"}
            stems |= {each.removesuffix(".json") for each in found.manifests}
            todo += [x for x in found.manifests if x in files and x not in todo]
        else:
            stems.add(stem)
    suffixes = [column.name for column in table.COLUMNS]
    suffixes.append(table.PLAN)
    of_stem = rf"({'|'.join(map(re.escape, stems))})({table.SHARD})?\.({'|'.join(suffixes)})"
    of_stem = rf"(\.(?=.*\.partial))?{of_stem}"  # a plan that is being made
    return own | {name for name in files if stems and re.fullmatch(of_stem, name)}


def _may_describe(name: str, names: Collection[str]) -> bool:
    """Return True for names of descriptions, so that other JSON files are not read for this."""
    stem, suffix = os.path.splitext(name)
    data = f"{stem}.bin", f"{table.shard_name(stem, 0)}.bin"
    is_named_so = stem.endswith(("stats", "rows", "export", "config"))
    return suffix == ".json" and (is_named_so or any(each in names for each in data))


def _described(place: Path | RemoteFile) -> _Described | None:
    """Decode a JSON file; None if it is not of tokenmill, and perhaps too large to be read."""
    begins, names = _content(place, _BEGIN_BYTES), spellings_of(FORMAT)
    if any(f'"format": "{each}'.encode() in begins for each in names):
        with suppress(msgspec.MsgspecError, RecursionError):
            found = msgspec.json.decode(_content(place), type=_Described)
            return found if found.format.startswith(names) else None
    return None


def _content(place: Path | RemoteFile | None, most: int = sys.maxsize) -> bytes:
    """Return the first bytes of a file, b"" if there is none that can be opened."""
    if place is None or (isinstance(place, Path) and not place.is_file()):  # a pipe would block
        return b""
    try:
        file: InputFile = open_file(place) if isinstance(place, Path) else place
    except CorpusError:  # reported if it is text
        return b""
    return file.begins(most)
