"""File formats, and the sources in given paths.

A format is one module in this package and one line in `FORMATS`. A file of a known format without a
reader is an error; it is never read as text. Compressed files have the format of their content.
"""

from __future__ import annotations

import glob
import importlib
import logging
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Set
from contextlib import closing
from fnmatch import fnmatch
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

from bpe.errors import CorpusError
from bpe.files.locations import is_url, shown_url, url_name
from bpe.parallel import run_in_order
from bpe.text_file import InputFile, new_array
from preprocess.documents.batch import ReadOptions
from preprocess.sources.base import Source, open_file
from preprocess.sources.compressed import (
    CODECS,
    CompressedSource,
    DecompressedFile,
    codec_of,
    codec_of_content,
)
from preprocess.sources.folders import encoding_of, files_below
from preprocess.sources.own_files import is_log, own_files_in
from preprocess.sources.remote import RemoteFile, open_url
from preprocess.sources.standard_input import StandardInput
from preprocess.sources.text import TextSource

OpenSource = Callable[[InputFile, str, ReadOptions], Source]

_BEGIN_BYTES = 8192  # of a file, read to recognise its format
_OPENED_AT_ONCE = 16  # remote files: their servers answer slowly, but many requests at once


class Format(NamedTuple):
    """A file format.

    Attributes:
        name: Value of --format, and name in messages.
        open: Makes a source from (file, name in the manifest, options); None: there is no reader.
        magic: A file of another or no suffix has this format if it begins with one of these, with
            which no text begins.
        is_stream: The file is read forwards, so it may be compressed.
        instead: What to do with a file if there is no reader.
    """

    name: str
    suffixes: tuple[str, ...]
    open: OpenSource | None = None
    magic: tuple[bytes, ...] = ()
    is_stream: bool = True
    instead: str = ""


def _lazy(name: str) -> OpenSource:
    """Return the function or class `module.name` of this package, imported when it is called."""
    module, attribute = name.split(".")

    def call(file: InputFile, name: str, reading: ReadOptions) -> Source:
        found: OpenSource = getattr(importlib.import_module(f"{__package__}.{module}"), attribute)
        return found(file, name, reading)

    return call


_AS_PARQUET = (
    "convert it: python -c \"from pyarrow import csv, parquet; parquet.write_table(csv.read_csv("
    "'{path}', parse_options=csv.ParseOptions(delimiter='%s', newlines_in_values=True)),"
    " '{path}.parquet')\""
)
_AS_TABLE = "convert it to Parquet"
_UNPACK = "unpack it and give the directory: mkdir '{path}.d' && tar -xf '{path}' -C '{path}.d'"
_OUTPUT = "it is an output of tokenmill; give the text it was made from"
TEXT = Format("text", (".txt",), TextSource)
FORMATS = [  # files of no other format are text
    TEXT,
    Format("jsonl", (".jsonl", ".ndjson"), _lazy("json_records.JsonLinesSource")),
    Format("json", (".json",), _lazy("json_records.open_json")),
    Format("parquet", (".parquet",), _lazy("columnar.ParquetSource"), (b"PAR1", b"PARE"), False),
    Format(
        "arrow", (".arrow", ".feather"), _lazy("columnar.open_arrow"),
        (b"ARROW1", b"\xff\xff\xff\xff"), False,
    ),
    Format("csv", (".csv",), instead=_AS_PARQUET % ","),
    Format("tsv", (".tsv",), instead=_AS_PARQUET % r"\t"),
    Format("avro", (".avro",), None, (b"Obj\x01",), instead=_AS_TABLE),
    Format("orc", (".orc",), instead=_AS_TABLE),
    Format("tar", (".tar", ".tgz", ".tbz", ".tbz2", ".txz", ".tzst"), instead=_UNPACK),
    Format("zip", (".zip",), None, (b"PK\x03\x04",), instead=(
        "unpack it and give the directory: unzip '{path}' -d '{path}.d'"
    )),
    Format("7z", (".7z",), None, (b"7z\xbc\xaf\x27\x1c",), instead=(
        "unpack it and give the directory: 7z x '{path}' -o'{path}.d'"
    )),
    Format("rar", (".rar",), None, (b"Rar!\x1a\x07",), instead=(
        "unpack it and give the directory: unrar x '{path}' '{path}.d/'"
    )),
    *(
        Format(name, suffixes, None, magic, instead=f"decompress it: {command} '{{path}}'")
        for name, suffixes, magic, command in (
            ("lz4", (".lz4",), (b"\x04\x22\x4d\x18",), "lz4 -d"),
            ("brotli", (".br",), (), "brotli -d"),
            ("lzip", (".lz",), (b"LZIP\x01",), "lzip -d"),
            ("lzop", (".lzo",), (b"\x89LZO",), "lzop -d"),
            ("compress", (".z",), (b"\x1f\x9d",), "uncompress"),
            ("snappy", (".snappy", ".sz"), (b"\xff\x06\0\0sNaPpY",), "python -m snappy -d"),
        )
    ),
    Format("bin", (".bin",), instead=_OUTPUT),
    Format("docs", (".docs",), instead=_OUTPUT),
]
_POINTERS = {b"version https://git-lfs.": "git lfs pull", b"/annex/objects/": "git annex get '{}'"}
_RECORDS = re.compile(rb'\{\s*"(?:[^"\\\n]|\\.)*"\s*:')  # an object begins so, not an empty one

logger = logging.getLogger("preprocess")
_warn_once = cache(partial(logger.warning, "%s"))  # sources are found more than once in a run


def find_sources(
    paths: Collection[str | os.PathLike[str]], reading: ReadOptions,
    binary_files: list[Path | str] | None = None,
) -> list[Source]:
    """Find the sources in files, directories, patterns, lists and URLs, in order.

    A file is one source. A directory is searched as `folders.files_below` says; its binary files
    are skipped, unless they have a format with a reader, and added to `binary_files`. A path that
    does not exist and has one of the characters `*?[` is a pattern as in `glob`, `**` included; its
    matches are sorted. `@name` is a file with a path in each line, `-` standard input. URLs are as
    `urls.files_at` says. Files that tokenmill has written are left out, unless there are no others;
    so are directories without text that have such files or match a pattern.

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
            sources.append(StandardInput(reading, open_source))
            continue
        if isinstance(path, str):
            sources += _find_remote(path, reading, binary_files)
            continue
        if not path.is_dir():
            sources.append(open_source(path, path.name, reading))
            continue
        opened = ((x, open_file(x)) for x in files_below(path))
        found = [(x, _is_skipped(file, x.name, reading)) for x, file in opened if not is_log(file)]
        if binary_files is not None:
            binary_files += [file for file, skipped in found if skipped]
        files = [file for file, skipped in found if not skipped]
        if not files:
            without_text = (
                f"{path}: no text files in this directory or below it (names that begin with a"
                " dot, binary files, outputs of tokenmill and what .gitignore excludes are"
                " skipped); give another directory"
            )
            if path not in matches and not own(path):
                raise CorpusError(without_text)
        sources += [open_source(x, x.relative_to(path).as_posix(), reading) for x in files]
    if without_text and not sources:
        raise CorpusError(without_text)
    return sources


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


def _find_remote(
    url: str, reading: ReadOptions, binary_files: list[Path | str] | None
) -> Iterator[Source]:
    """Yield the sources at a URL; several files are opened at a time."""
    from preprocess.sources.urls import FoundFile, files_at

    def open_found(found: FoundFile) -> Source | str:
        if found.is_below and _is_skipped(found.file, found.name, reading):
            return found.file.path
        return open_source(found.file, found.name, reading)

    found = files_at(url)
    opened = run_in_order(found, lambda: open_found, min(len(found), _OPENED_AT_ONCE))
    n_skipped = 0
    with closing(opened):
        for each in opened:
            if not isinstance(each, str):
                yield each
                continue
            n_skipped += 1
            if binary_files is not None:
                binary_files.append(each)
    if n_skipped == len(found):
        raise CorpusError(
            f"{found[0].file.path}: is binary, as all files that {shown_url(url)} means; give the"
            " URL of text"
        )


def _is_own(path: Path, own: Set[str]) -> bool:
    return path.name in own or (path.is_file() and is_log(open_file(path)))


def _is_skipped(file: InputFile, file_name: str, reading: ReadOptions) -> bool:
    """Return True if a file in a directory is binary and of no known format."""
    begins = _begin_of(file)
    if codec_of(file_name, begins) or _format_of(file_name, begins, reading) is not TEXT:
        return False
    is_other_text = encoding_of(begins) and reading.on_invalid_utf8 == "error"
    return b"\0" in begins and not is_other_text  # which no text has


def open_source(place: Path | RemoteFile, name: str, reading: ReadOptions) -> Source:
    """Open a file as a source that manifests list as `name`; suffix or first bytes tell its format.

    Raises:
        CorpusError: The file is missing or cannot be read, or its format has no reader.
    """
    if isinstance(place, Path):
        path, file_name = str(place), place.name
    else:
        path, file_name = place.path, url_name(place.url)
    try:
        name.encode()
    except UnicodeEncodeError:
        # The manifest is UTF-8 and names its sources.
        shown = repr(os.fsencode(path))
        raise CorpusError(f"{shown}: the name of this file is not UTF-8; rename it") from None
    file: InputFile = open_file(place) if isinstance(place, Path) else place
    begins = _begin_of(file)
    for pointer, command in _POINTERS.items():
        if begins.startswith(pointer):
            raise CorpusError(
                f"{path}: is a pointer to a file that git did not download; download it:"
                f" {command.format(path)}"
            )
    if is_log(file):
        raise CorpusError(f"{path}: is a log of tokenmill, which is not read as text; give others")
    codec = codec_of(file_name, begins)
    if codec is None:
        form = _format_of(file_name, begins, reading, path)
        _check_encoding(form, begins, path)
        return _reader(form, file, file_name)(file, name, reading)
    stem, suffix = os.path.splitext(file_name)
    is_known = any(suffix.lower() in each.suffixes for each in CODECS)
    begins = _begin_of(DecompressedFile(file, codec))
    if (second := codec_of_content(begins)) is not None:
        raise CorpusError(
            f"{path}: {codec.name} data with {second.name} data inside; decompress it once:"
            f" {codec.command} -d '{path}'"
        )
    form = _format_of(stem if is_known else file_name, begins, reading, path)
    _check_encoding(form, begins, path)
    if form.open is not None and not form.is_stream:
        raise CorpusError(
            f"{path}: {form.name} files are compressed inside, and are not read while they are"
            f" decompressed; decompress it: {codec.command} -d '{path}'"
        )
    return CompressedSource(file, name, reading, codec, _reader(form, file, file_name))


def _begin_of(file: InputFile) -> bytes:
    return file.read(0, file.clip(_BEGIN_BYTES), new_array).tobytes()


def _format_of(
    name: str, begins: bytes, reading: ReadOptions, path: Path | str | None = None
) -> Format:
    """Return the format of a file by --format, its suffix or its first bytes.

    A name without a suffix, such as part-00000, may be one of JSON. With a `path`, text that looks
    like JSON is warned of.
    """
    if reading.format:
        return next(form for form in FORMATS if form.name == reading.format)
    suffix = os.path.splitext(re.sub(r"-\d+-of-\d+$", "", name))[1].lower()
    by_suffix = next((form for form in FORMATS if suffix in form.suffixes), TEXT)
    if by_suffix is not TEXT:
        return by_suffix
    magic = (form for form in FORMATS if form.magic and begins.startswith(form.magic))
    if (found := next(magic, None)) is not None:
        return found
    first, _, following = begins.removeprefix(b"\xef\xbb\xbf").strip().partition(b"\n")
    first = first.rstrip()
    is_array = first.startswith(b"[") and _RECORDS.match(first[1:].lstrip() or following.lstrip())
    is_whole = first.endswith(b"}") or (len(begins) == _BEGIN_BYTES and not following)
    is_lines = is_whole and _RECORDS.match(first)
    if not (is_array or is_lines):
        return TEXT
    form = next(form for form in FORMATS if form.name == ("json" if is_array else "jsonl"))
    if re.fullmatch(r"(\.[\d-]*)?", suffix):
        return form
    if path is not None and (is_array or following.lstrip().startswith(b"{")):
        _warn_once(
            f"{path}: begins as {form.name} does, and is read as text; choose --format"
            f" {form.name}, or --format text if it is meant, or name it .{form.name}"
        )
    return TEXT


def _check_encoding(form: Format, begins: bytes, path: Path | str) -> None:
    """Raise CorpusError if a file of text or JSON is UTF-16 or UTF-32."""
    if form.open is not None and form.is_stream and (name := encoding_of(begins)):
        raise CorpusError(
            f"{path}: is {name}, expected UTF-8; convert it: iconv -f {name} -t UTF-8 '{path}' >"
            f" '{path}.utf-8'"
        )


def _reader(form: Format, file: InputFile, file_name: str) -> OpenSource:
    """Return the reader of a format; raise CorpusError if there is none."""
    if form.open is not None:
        return form.open
    *names, last = (form.name for form in FORMATS if form.open)
    is_remote = isinstance(file, RemoteFile)
    instead = form.instead.format(path=file_name if is_remote else file.path)
    raise CorpusError(
        f"{file.path}: {form.name} files cannot be read, only {', '.join(names)} and {last};"
        f" {'download it, and ' * is_remote}{instead}"
    )


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
        fnmatch(inside, pattern) for pattern in (searched, place)
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
